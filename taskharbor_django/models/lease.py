"""Temporary ownership of jobs by a worker, and what it must be told about one of them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Lease(models.Model):
    """
    One row for all unblemished jobs of a reserve call, one for each job that lost a lease before.

    Only heartbeat, reclaim and removal lock these rows; everyone else reads them.
    """

    token = models.UUIDField(primary_key=True, editable=False)
    call = models.UUIDField(_("reserve call"), editable=False)
    worker = models.CharField(_("worker"), max_length=64, blank=True)
    acquired_at = models.DateTimeField(_("acquired at"))
    expires_at = models.DateTimeField(_("expires at"))

    class Meta:
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        indexes = [models.Index(fields=["expires_at"], name="taskharbor_lease_expiry")]

    def __str__(self) -> str:
        return str(self.token)


class Notice(models.Model):
    """A row that tells a worker about one of its jobs; its heartbeat reads and removes it."""

    class Kind(models.TextChoices):
        CANCEL = "cancel", _("cancel")
        REVOKED = "revoked", _("revoked")

    token = models.UUIDField(_("lease"), db_index=True)
    job = models.ForeignKey(
        "taskharbor.Job", models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    kind = models.CharField(_("kind"), max_length=8, choices=Kind.choices)
    created_at = models.DateTimeField(_("created at"))

    class Meta:
        verbose_name = _("notice")
        verbose_name_plural = _("notices")

    def __str__(self) -> str:
        return f"{self.kind} {self.job_id}"
