"""Workflows: how far each is, a picture of its jobs, and what can be done about them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from ..lifecycle import ENDED, JobState
from ..models import Job, Workflow
from ..operations.workflow import WorkflowHandle, state_of
from .actions import ACTIONS
from .graph import graph
from .paging import Order, page
from .screen import Screen, database_of, may
from .telling import log, say

NEWEST = Order(names=("created_at", "id"), newest_first=True)
# what is asked -> the permission it needs, the action whose words it has
REQUESTS = {
    "cancel": ("cancel_workflow", ACTIONS["cancel"]),
    "resume": ("resume_workflow", ACTIONS["requeue"]),
}


class NoteForm(forms.Form):
    note = forms.CharField(required=False, max_length=1000)


@admin.register(Workflow)
class WorkflowAdmin(Screen):
    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        place = "<uuid:workflow_id>/ask/<slug:what>/"
        return [
            path(place, view(self.ask_view), name="taskharbor_workflow_ask"),
            *super().get_urls(),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        using = database_of(request)
        found = page(Workflow.objects.using(using), NEWEST, request.GET)
        counts = states_of(using, [workflow.pk for workflow in found.rows])
        return self.respond(
            request,
            "workflows.html",
            _("Workflows"),
            page=found,
            rows=[(workflow, _progress(counts.get(workflow.pk, {}))) for workflow in found.rows],
            **(extra_context or {}),
        )

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002  Django's signature
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        self.require_view(request)
        workflow = self.get_object(request, object_id)
        if workflow is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        handle = WorkflowHandle(id=workflow.pk, using=database_of(request))
        counts = handle.counts
        return self.respond(
            request,
            "workflow.html",
            str(workflow),
            workflow=workflow,
            progress=_progress(counts),
            counts=[(state, number) for state, number in counts.items() if number],
            graph=graph(handle.drawing()),
            may_cancel=workflow.open_jobs and may(request, "cancel_workflow"),
            may_resume=counts[JobState.DEAD] and may(request, "resume_workflow"),
            **(extra_context or {}),
        )

    @method_decorator(require_POST)
    def ask_view(self, request: HttpRequest, workflow_id: UUID, what: str) -> HttpResponse:
        if what not in REQUESTS:
            raise Http404
        permission, action = REQUESTS[what]
        if not (self.has_view_permission(request) and may(request, permission)):
            raise PermissionDenied
        workflow = self.get_object(request, str(workflow_id))
        form = NoteForm(request.POST)
        if workflow is None or not form.is_valid():
            raise Http404
        note = form.cleaned_data["note"]
        handle = WorkflowHandle(id=workflow.pk, using=database_of(request))
        by: Any = request.user
        moved = handle.cancel() if what == "cancel" else handle.resume(by=by.pk, note=note)
        log(request, Workflow, [(str(workflow.pk), str(workflow))], f"{what}: {note}")
        say(request, action.done, moved)
        return HttpResponseRedirect(
            reverse(
                "admin:taskharbor_workflow_change",
                args=[workflow.pk],
                current_app=self.admin_site.name,
            )
        )


def states_of(using: str, ids: list[Any]) -> dict[Any, dict[JobState, int]]:
    """How many jobs of each workflow are in each state."""
    jobs = Job.objects.using(using).filter(workflow__in=ids).order_by()
    found: dict[Any, dict[JobState, int]] = {}
    for workflow, state, number in jobs.values_list("workflow", "state").annotate(Count("pk")):
        found.setdefault(workflow, {})[JobState(state)] = number
    return found


def _progress(counts: dict[JobState, int]) -> dict[str, Any]:
    return {
        "all": sum(counts.values()),
        "ended": sum(number for state, number in counts.items() if state in ENDED),
        "dead": counts.get(JobState.DEAD, 0),
        "state": state_of(counts),
    }
