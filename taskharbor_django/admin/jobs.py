"""Jobs: a tab for each state in the order of its index, filters, search, and the page of one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from ..lifecycle import JobState
from ..models import IdempotencyKey, Job
from ..operations.figures import state_counts
from ..tasks import registry
from ..values import is_storable
from . import job_page
from .acting import act
from .actions import actions_for
from .criteria import INDEXED, CriteriaForm
from .paging import Order, Page, page
from .screen import Screen, database_of

LOOKED_AT = 100_000
NEAR = 5_000
MOST_FOUND = 100
SHOWN = (
    "id",
    "task",
    "queue",
    "state",
    "priority",
    "attempts",
    "max_attempts",
    "lease_losses",
    "last_error",
    "progress",
    "seq",
    "created_at",
    "updated_at",
    "available_at",
    "started_at",
    "finished_at",
    "tags",
)
_ENDED = Order(names=("finished_at", "id"), newest_first=True)
# Each tab in the order of its index; inflight are no more than there are slots, and are sorted.
ORDERS = {
    JobState.INFLIGHT: Order(names=("updated_at", "id")),
    JobState.READY: Order(names=("queue", "priority", "available_at", "seq", "id")),
    JobState.SCHEDULED: Order(names=("available_at", "id")),
    JobState.BLOCKED: Order(names=("created_at", "id")),
    JobState.DEAD: _ENDED,
    JobState.DONE: _ENDED,
    JobState.CANCELLED: _ENDED,
}
# what the time of a row is, in each tab
WHEN = {
    JobState.INFLIGHT: gettext_lazy("reserved"),
    JobState.READY: gettext_lazy("waits since"),
    JobState.SCHEDULED: gettext_lazy("due"),
    JobState.BLOCKED: gettext_lazy("enqueued"),
    JobState.DEAD: gettext_lazy("died"),
    JobState.DONE: gettext_lazy("finished"),
    JobState.CANCELLED: gettext_lazy("ended"),
}
_BY_AGE = Order(names=("created_at", "id"), newest_first=True)


@admin.register(Job)
class JobAdmin(Screen):
    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        acting = path("act/<slug:name>/", view(self.act_view), name="taskharbor_job_act")
        return [acting, *super().get_urls()]

    @method_decorator(require_POST)
    def act_view(self, request: HttpRequest, name: str) -> HttpResponse:
        return act(self, request, name)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        using, text = database_of(request), request.GET.get("q", "").strip()
        form = CriteriaForm(request.GET)
        state = _state(request.GET.get("state"))
        context = {**(extra_context or {}), "form": form, "state": state, "q": text}
        if text:
            found = search(using, text)
            if len(found) == 1:
                return HttpResponseRedirect(
                    reverse("admin:taskharbor_job_change", args=[found[0].pk])
                )
            context |= {"page": Page(rows=found), "searched": True}
        else:
            context |= self._tab(using, state, form, request.GET)
        return self.respond(
            request,
            "jobs.html",
            _("Jobs"),
            tabs=_tabs(using, form),
            fields=form.visible(state),
            beside=form.beside() if form.is_valid() else [],
            # In a tab all have the same state; those that run have their progress beside it.
            shows_state=bool(text) or state == JobState.INFLIGHT,
            shows_error=any(job.last_error for job in context["page"].rows),
            when=WHEN[state],
            actions=actions_for(None if text else state, request.user),
            all_matching=form.pairs() if form.is_valid() else [],
            **context,
        )

    def _tab(self, using: str, state: JobState, form: CriteriaForm, asked: Any) -> dict[str, Any]:
        if not form.is_valid():
            return {"page": Page(rows=[])}
        criteria = form.criteria()
        jobs = form.selection(state).jobs(using).only(*SHOWN)
        if INDEXED & criteria.keys():
            return {"page": page(jobs, _BY_AGE, asked)}
        order = ORDERS[state]
        if criteria.keys() - ({"queue"} if state == JobState.READY else set()):
            all_of_state = Job.objects.using(using).in_state(state)
            found, cut = _looked_for(jobs, all_of_state, order, asked)
            return {"page": found, "cut": LOOKED_AT if cut else 0}
        return {"page": page(jobs, order, asked), "cut": 0}

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002  Django's signature
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        self.require_view(request)
        job = self.get_object(request, object_id)
        if job is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        context = job_page.facts(job, request)
        return self.respond(request, "job.html", job.task, **context, **(extra_context or {}))


def _state(text: str | None) -> JobState:
    return JobState(text) if text in JobState.values else JobState.INFLIGHT


def _tabs(using: str, form: CriteriaForm) -> list[tuple[JobState, Any]]:
    """The states with their counts; with a filter without, for counting would look at them all."""
    states = list(ORDERS)
    if not form.is_valid() or form.criteria():
        return [(state, None) for state in states]
    counts = state_counts(using)
    return [(state, counts[state]) for state in states]


def _looked_for(jobs: Any, all_of_state: Any, order: Order, asked: Any) -> tuple[Page, bool]:
    """
    Read a page of a filter without an index, from the first 100,000 of the tab; and whether those
    were looked through and are not all.

    What is frequent fills a page near the start, and then nothing else is asked: 4,200 pages of
    the table, where to find the 100,000th costs up to 100,000. For the rest the index would lead
    through the table row by row, which PostgreSQL does whenever a value was frequent once: among a
    million jobs in no order 355 ms to find nothing, and 159 by a bitmap and a sort.
    """
    if not asked.get("before"):  # a page backwards may begin behind the start
        near, more = _bounded(jobs, all_of_state, order, NEAR)
        found = page(near, order, asked)
        if found.older or not more:
            return found, False
    wide, cut = _bounded(jobs, all_of_state, order, LOOKED_AT)
    return page(wide, replace(order, by_index=False), asked), cut


def _bounded(jobs: Any, all_of_state: Any, order: Order, most: int) -> tuple[Any, bool]:
    """Those among the first so many of the tab's index, and whether there are more."""
    # Without the primary key, which is in no index but its own: the index alone answers.
    bound = replace(order, names=order.names[:-1])
    last = bound.sorted(all_of_state).values_list(*bound.names)[most : most + 1]
    for key in last:
        return bound.behind(jobs, key, reverse=True), True
    return jobs, False


def search(using: str, text: str) -> list[Job]:
    """Find jobs by id, idempotency key or correlation id: what has an index."""
    if not is_storable(text):
        return []
    ids = set(_keyed(using, text))
    with contextlib.suppress(ValueError):
        ids.add(UUID(text))
    jobs = Job.objects.using(using).only(*SHOWN)
    named = list(jobs.filter(pk__in=ids))
    related = jobs.filter(~Q(pk__in=ids), correlation_id=text).order_by("-created_at")
    return [*named, *related[:MOST_FOUND]]


def _keyed(using: str, key: str) -> list[UUID]:
    """The index of keys begins with the task, so ask for every one that is known."""
    tasks = [name for name, _task in registry]
    keys = IdempotencyKey.objects.using(using).filter(task__in=tasks, key=key)
    return list(keys.values_list("job", flat=True))
