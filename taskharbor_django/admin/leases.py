"""Leases: who holds what until when; the one that expires next stands first."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..models import Job, Lease, Worker
from .paging import Order, page
from .screen import Screen, database_of

NEXT = Order(names=("expires_at", "token"))


@admin.register(Lease)
class LeaseAdmin(Screen):
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.require_view(request)
        using = database_of(request)
        found = page(Lease.objects.using(using), NEXT, request.GET)
        tokens = [lease.token for lease in found.rows]
        held = Job.objects.using(using).inflight().filter(lease__in=tokens).order_by()
        counts = dict(held.values_list("lease").annotate(Count("pk")))
        workers = Worker.objects.using(using).in_bulk({lease.worker for lease in found.rows})
        return self.respond(
            request,
            "leases.html",
            _("Leases"),
            page=found,
            rows=[
                (lease, counts.get(lease.token, 0), workers.get(lease.worker))
                for lease in found.rows
            ],
            **(extra_context or {}),
        )

    def change_view(self, request: HttpRequest, *_args: Any, **_options: Any) -> HttpResponse:
        """All leases are on one page."""
        return self.changelist_view(request)
