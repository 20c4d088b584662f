"""Dead letters: grouped by what went wrong; a group, a selection or all of them can be repaired."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, Max, Min, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from ..lifecycle import DeadReason, JobState
from ..models import DeadLetter
from .actions import actions_for
from .criteria import CriteriaForm
from .paging import Order, page
from .screen import Screen, database_of, may

MOST_GROUPS = 100
SORTS = {"last": "-last", "count": "-number", "first": "first"}
NEWEST = Order(names=("died_at", "id"), newest_first=True)


@admin.register(DeadLetter)
class DeadLetterAdmin(Screen):
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        form = CriteriaForm(request.GET)
        valid = form.is_valid()
        letters = DeadLetter.objects.using(database_of(request)).none()
        if valid:
            letters = form.selection(JobState.DEAD).letters(database_of(request))
        context = {
            **(extra_context or {}),
            "form": form,
            "fields": form.visible(JobState.DEAD),
            "actions": actions_for(JobState.DEAD, request.user),
            "all_matching": form.pairs() if valid else [],
            "state": JobState.DEAD,
        }
        if valid and form.criteria().get("fingerprint"):
            return self._group(request, letters, context)
        return self._groups(request, letters, context)

    def _groups(
        self, request: HttpRequest, letters: QuerySet[DeadLetter], context: dict[str, Any]
    ) -> HttpResponse:
        sort = request.GET.get("sort", "")
        sort = sort if sort in SORTS else "count"
        hidden = 0
        if not context["form"].data.get("reason"):
            hidden = letters.filter(reason=DeadReason.DEPENDENCY).count()
            letters = letters.exclude(reason=DeadReason.DEPENDENCY)
        found = groups(letters, SORTS[sort])
        return self.respond(
            request,
            "dead_letters.html",
            _("Dead letters"),
            groups=found[:MOST_GROUPS],
            more=len(found) > MOST_GROUPS,
            total=sum(group["number"] for group in found),
            hidden=hidden,
            sort=sort,
            quick=next((each for each in context["actions"] if each.name == "requeue"), None),
            **context,
        )

    def _group(
        self, request: HttpRequest, letters: QuerySet[DeadLetter], context: dict[str, Any]
    ) -> HttpResponse:
        facts = letters.aggregate(number=Count("pk"), first=Min("died_at"), last=Max("died_at"))
        latest = NEWEST.sorted(letters).first()
        rows = letters.defer("traceback")
        return self.respond(
            request,
            "dead_group.html",
            name_of(latest) if latest else _("An error group"),
            facts=facts,
            latest=latest,
            page=page(rows, NEWEST, request.GET),
            may_trace=may(request, "view_traceback"),
            **context,
        )

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002  Django's signature
        extra_context: dict[str, Any] | None = None,  # noqa: ARG002  Django's signature
    ) -> HttpResponse:
        """A letter is read on the page of its job."""
        self.require_view(request)
        letter = self.get_object(request, object_id)
        if letter is None:
            return HttpResponseRedirect(reverse("admin:taskharbor_deadletter_changelist"))
        return HttpResponseRedirect(reverse("admin:taskharbor_job_change", args=[letter.job_id]))


def name_of(letter: DeadLetter) -> str:
    """What an operator calls this kind of death."""
    return letter.error_class or str(letter.get_reason_display())


def groups(letters: QuerySet[DeadLetter], sort: str) -> list[dict[str, Any]]:
    """The kinds of errors, each with its number, its times and its latest letter."""
    rows = letters.order_by().values("fingerprint")
    counted = rows.annotate(
        number=Count("pk"), first=Min("died_at"), last=Max("died_at"), latest=Max("pk")
    )
    found = list(counted.order_by(sort, "fingerprint")[: MOST_GROUPS + 1])
    named = DeadLetter.objects.using(letters.db).defer("traceback")
    samples = named.in_bulk([group["latest"] for group in found])
    return [{**group, "letter": samples.get(group["latest"])} for group in found]
