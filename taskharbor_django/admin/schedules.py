"""Schedules: what comes back and when next; paused, run now, and made by hand."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from ..conf import get_settings
from ..exceptions import InvalidSchedule, TaskHarborError
from ..models import Schedule
from ..operations.callback import CALLBACK_TASK
from ..operations.schedules import (
    change_schedule,
    create_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule_now,
)
from ..payload import decode_call
from ..schedules import declare
from ..tasks import registry
from ..timing import CatchUp, Overlap
from .screen import Screen, database_of, may
from .telling import log

MOST = 500
# what is asked -> the verb, the permission it needs, what is said afterwards
REQUESTS: dict[str, tuple[Any, str, Any]] = {
    "pause": (
        pause_schedule,
        "pause_schedule",
        gettext_lazy("The schedule %(name)s is paused."),
    ),
    "resume": (
        resume_schedule,
        "resume_schedule",
        gettext_lazy("The schedule %(name)s goes on."),
    ),
    "run": (
        run_schedule_now,
        "run_schedule",
        gettext_lazy("A job of the schedule %(name)s is enqueued."),
    ),
}


class ArgumentsField(forms.JSONField):
    """JSON that may be left out, where Django would write null."""

    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)


class ScheduleForm(forms.Form):
    """What `declare` takes; whatever is wrong with it, that says."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=255)
    task = forms.ChoiceField(label=gettext_lazy("Task"))
    kwargs = ArgumentsField(
        label=gettext_lazy("Arguments"),
        required=False,
        help_text=gettext_lazy('By name, as JSON: {"days": 7}'),
    )
    cron = forms.CharField(
        label=gettext_lazy("Cron"),
        required=False,
        help_text=gettext_lazy("Minute, hour, day, month and weekday; or give an interval."),
    )
    time_zone = forms.CharField(label=gettext_lazy("Time zone"), required=False)
    fixed_rate = forms.DurationField(label=gettext_lazy("Every"), required=False)
    fixed_delay = forms.DurationField(
        label=gettext_lazy("After each end"),
        required=False,
        help_text=gettext_lazy("Intervals as hours:minutes:seconds."),
    )
    queue = forms.CharField(label=gettext_lazy("Queue"), required=False)
    overlap = forms.ChoiceField(label=gettext_lazy("While one is open"), choices=Overlap.choices)
    catch_up = forms.ChoiceField(
        label=gettext_lazy("After a downtime"), choices=CatchUp.choices, required=False
    )
    jitter = forms.DurationField(
        label=gettext_lazy("Jitter"),
        required=False,
        help_text=gettext_lazy("Each job waits for a random part of this."),
    )
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"),
        required=False,
        help_text=gettext_lazy("From -100 (first) to 100; the task's if it is empty."),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Names of the registry only: nothing that somebody types is ever imported. Callbacks are
        # left out: this would sign whatever somebody types.
        names = [name for name, _task in registry if name != CALLBACK_TASK]
        self.fields["task"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]

    def save(self, schedule: Schedule | None) -> Schedule:
        """Make or change the schedule, or raise why not."""
        given = {name: value for name, value in self.cleaned_data.items() if value or value == 0}
        if schedule is not None and schedule.anchor and "fixed_rate" in given:
            given["anchor"] = schedule.anchor  # of one that code has made; the form has none
        declared = declare(given.pop("name"), given.pop("task"), **given)
        if schedule is None:
            return create_schedule(declared)
        change_schedule(schedule, declared)
        return schedule


def asked_for(schedule: Schedule) -> dict[str, Any]:
    """What the form has to say for a schedule to be as this one, or raise why it cannot."""
    if schedule.declared:
        raise InvalidSchedule(f"{schedule.name} is declared in code: change it there")
    args, kwargs = decode_call(bytes(schedule.payload), codec=get_settings().payload_codec)
    try:
        json.dumps(kwargs)
    except TypeError:
        args = ("not JSON",)
    if args:
        raise InvalidSchedule(f"{schedule.name} has arguments that no form has a place for")
    same = ("name", "task", "cron", "time_zone", "queue", "overlap", "catch_up", "jitter")
    times = {} if schedule.cron else {schedule.kind: schedule.interval}
    kept = {name: getattr(schedule, name) for name in (*same, "priority")}
    return kept | times | {"kwargs": kwargs or None}


def may_edit(request: HttpRequest) -> bool:
    """The form shows the arguments, for which there is a permission of its own."""
    return may(request, "change_schedule") and may(request, "view_payload")


@admin.register(Schedule)
class ScheduleAdmin(Screen):
    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        place = "<int:schedule_id>/ask/<slug:what>/"
        edit = "<int:schedule_id>/edit/"
        return [
            path(place, view(self.ask_view), name="taskharbor_schedule_ask"),
            path(edit, view(self.edit_view), name="taskharbor_schedule_edit"),
            *super().get_urls(),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return may(request, "add_schedule")

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        schedules = Schedule.objects.using(database_of(request)).defer("payload")
        rows = schedules.order_by(F("next_at").asc(nulls_last=True), "name")[:MOST]
        return self.respond(
            request,
            "schedules.html",
            _("Schedules"),
            rows=[(schedule, schedule.upcoming()) for schedule in rows],
            may_add=self.has_add_permission(request),
            may_edit=may_edit(request),
            may_pause=may(request, "pause_schedule"),
            may_resume=may(request, "resume_schedule"),
            may_run=may(request, "run_schedule"),
            **(extra_context or {}),
        )

    def add_view(
        self,
        request: HttpRequest,
        form_url: str = "",  # noqa: ARG002  Django's signature
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = ScheduleForm(request.POST or None)
        if self._saved(request, form, None, _("The schedule %(name)s is made.")):
            return self._back()
        return self.respond(
            request, "schedule_form.html", _("A new schedule"), form=form, **(extra_context or {})
        )

    def edit_view(self, request: HttpRequest, schedule_id: int) -> HttpResponse:
        if not (self.has_view_permission(request) and may_edit(request)):
            raise PermissionDenied
        schedule = self.get_object(request, str(schedule_id))
        if schedule is None:
            raise Http404
        try:
            form = ScheduleForm(request.POST or None, initial=asked_for(schedule))
        except TaskHarborError as problem:
            messages.error(request, str(problem))
            return self._back()
        if self._saved(request, form, schedule, _("The schedule %(name)s is changed.")):
            return self._back()
        return self.respond(request, "schedule_form.html", schedule.name, form=form)

    def _saved(
        self, request: HttpRequest, form: ScheduleForm, schedule: Schedule | None, said: str
    ) -> bool:
        """Do what was sent; False when nothing was, or something is wrong with it."""
        if request.method != "POST" or not form.is_valid():
            return False
        try:
            made = form.save(schedule)
        except (TaskHarborError, ValueError) as problem:
            form.add_error(None, str(problem))
            return False
        log(request, Schedule, [(str(made.pk), made.name)], "change" if schedule else "add")
        messages.success(request, said % {"name": made.name})
        return True

    def change_view(
        self, request: HttpRequest, object_id: str, *_args: Any, **_options: Any
    ) -> HttpResponse:
        """A schedule's jobs are its page."""
        self.require_view(request)
        jobs = reverse("admin:taskharbor_job_changelist")
        return HttpResponseRedirect(f"{jobs}?state=done&schedule={object_id}")

    @method_decorator(require_POST)
    def ask_view(self, request: HttpRequest, schedule_id: int, what: str) -> HttpResponse:
        if what not in REQUESTS:
            raise Http404
        verb, permission, said = REQUESTS[what]
        if not (self.has_view_permission(request) and may(request, permission)):
            raise PermissionDenied
        schedule = self.get_object(request, str(schedule_id))
        if schedule is None:
            raise Http404
        try:
            verb(schedule)
        except TaskHarborError as problem:
            messages.error(request, str(problem))
        else:
            log(request, Schedule, [(str(schedule.pk), schedule.name)], what)
            messages.success(request, said % {"name": schedule.name})
        return self._back()

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(
            reverse("admin:taskharbor_schedule_changelist", current_app=self.admin_site.name)
        )
