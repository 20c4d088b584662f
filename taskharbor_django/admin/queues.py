"""Queues: their figures, and a pause for each."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from ..models import Queue
from ..operations import pause, resume
from ..operations.figures import queue_figures, workers_of
from ..values import is_queue_name
from .screen import Screen, database_of, may
from .sparkline import sparkline
from .telling import log


class PauseForm(forms.Form):
    until = forms.DateTimeField(
        label=gettext_lazy("Until"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text=gettext_lazy("Empty: until somebody resumes it."),
    )
    note = forms.CharField(label=gettext_lazy("Why"), required=False, max_length=1000)


@admin.register(Queue)
class QueueAdmin(Screen):
    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("pause/", view(self.pause_view), name="taskharbor_queue_pause"),
            path("resume/", view(self.resume_view), name="taskharbor_queue_resume"),
            *super().get_urls(),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        using, now = database_of(request), self.now(request)
        found = queue_figures(using, now, workers_of(using, now))
        return self.respond(
            request,
            "queues.html",
            _("Queues"),
            now=now,
            rows=[(queue, sparkline(queue.minutes)) for queue in found],
            form=PauseForm(),
            may_pause=may(request, "pause_queue"),
            may_resume=may(request, "resume_queue"),
            **(extra_context or {}),
        )

    def change_view(
        self, request: HttpRequest, object_id: str, *_args: Any, **_options: Any
    ) -> HttpResponse:
        """A queue's jobs are its page."""
        self.require_view(request)
        jobs = reverse("admin:taskharbor_job_changelist")
        query = urlencode({"state": "ready", "queue": object_id})
        return HttpResponseRedirect(f"{jobs}?{query}")

    @method_decorator(require_POST)
    def pause_view(self, request: HttpRequest) -> HttpResponse:
        name = self._asked(request, "pause_queue")
        form = PauseForm(request.POST)
        if name is None or not form.is_valid():
            messages.error(request, _("This pause makes no sense; nothing was changed."))
            return self._back()
        given = form.cleaned_data
        pause(name, **given, by=request.user.pk, using=database_of(request))
        log(request, Queue, [(name, name)], "; ".join(filter(None, ("Pause", given["note"]))))
        messages.success(request, _("The queue %(name)s is paused.") % {"name": name})
        return self._back()

    @method_decorator(require_POST)
    def resume_view(self, request: HttpRequest) -> HttpResponse:
        name = self._asked(request, "resume_queue")
        if name is not None and resume(name, using=database_of(request)):
            log(request, Queue, [(name, name)], "Resume")
            messages.success(request, _("The queue %(name)s goes on.") % {"name": name})
        else:
            messages.warning(request, _("No such queue was paused."))
        return self._back()

    def _asked(self, request: HttpRequest, permission: str) -> str | None:
        if not (self.has_view_permission(request) and may(request, permission)):
            raise PermissionDenied
        name = request.POST.get("queue", "")
        return name if is_queue_name(name) else None

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(
            reverse("admin:taskharbor_queue_changelist", current_app=self.admin_site.name)
        )
