"""Workers: who is there, what each runs now, and what is asked of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from ..models import Job, Lease, Worker
from ..operations import ask_workers
from ..operations.figures import SILENT_FOR, workers_of
from ..values import is_storable
from .screen import Screen, database_of, may
from .telling import log

MOST_RUNNING = 1_000
MOST_GONE = 20
# what is asked -> the request it leaves, the permission it needs
REQUESTS = {
    "quiet": ("quiet", "quiet_worker"),
    "go_on": ("", "quiet_worker"),
    "stop": ("stop", "stop_worker"),
}


@admin.register(Worker)
class WorkerAdmin(Screen):
    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        asking = path("ask/<slug:what>/", view(self.ask_view), name="taskharbor_worker_ask")
        return [asking, *super().get_urls()]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        using, now = database_of(request), self.now(request)
        # By name, and not by heartbeat: a row that moves is a row that somebody stops by mistake.
        workers = sorted(workers_of(using, now), key=lambda worker: (worker.name, worker.pk))
        running = running_by_worker(using)
        gone = Worker.objects.using(using).exclude(stopped_at=None).order_by("-last_beat_at")
        return self.respond(
            request,
            "workers.html",
            _("Workers"),
            now=now,
            rows=[(worker, running.get(worker.pk, [])) for worker in workers],
            gone=gone[:MOST_GONE],
            silent_for=SILENT_FOR,
            may_quiet=may(request, "quiet_worker"),
            may_stop=may(request, "stop_worker"),
            **(extra_context or {}),
        )

    def change_view(self, request: HttpRequest, *_args: Any, **_options: Any) -> HttpResponse:
        """All workers are on one page."""
        self.require_view(request)
        return self._back()

    @method_decorator(require_POST)
    def ask_view(self, request: HttpRequest, what: str) -> HttpResponse:
        if what not in REQUESTS:
            raise Http404
        wish, permission = REQUESTS[what]
        if not (self.has_view_permission(request) and may(request, permission)):
            raise PermissionDenied
        worker = request.POST.get("worker", "")
        if is_storable(worker) and ask_workers([worker], wish, using=database_of(request)):
            log(request, Worker, [(worker, worker)], what)
            messages.success(request, _("The worker hears of it with its next heartbeat."))
        else:
            messages.warning(request, _("That worker has stopped, or was asked to."))
        return self._back()

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(
            reverse("admin:taskharbor_worker_changelist", current_app=self.admin_site.name)
        )


def running_by_worker(using: str) -> dict[str, list[Job]]:
    """What each worker holds just now, through its leases."""
    jobs = (
        Job.objects.using(using)
        .inflight()
        .only("id", "task", "queue", "state", "lease", "started_at", "updated_at", "progress")
    )
    held = list(jobs.order_by("updated_at")[:MOST_RUNNING])
    leases = Lease.objects.using(using).filter(pk__in={job.lease for job in held})
    owners = dict(leases.values_list("token", "worker"))
    found: dict[str, list[Job]] = defaultdict(list)
    for job in held:
        found[owners.get(job.lease or job.pk, "")].append(job)
    return dict(found)
