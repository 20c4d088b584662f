"""A worker process that is, or was, alive."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models
from django.utils.translation import gettext_lazy as _


class Worker(models.Model):
    """One row per start of a process; the id is never a name and never used twice."""

    class Request(models.TextChoices):
        QUIET = "quiet", _("reserve nothing more")
        STOP = "stop", _("stop")

    id = models.CharField(primary_key=True, max_length=64, editable=False)
    name = models.CharField(_("name"), max_length=255)
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("pid"))
    version = models.CharField(_("version"), max_length=32)
    queues = models.TextField(_("queues"))
    slots = models.IntegerField(_("slots"), default=0)
    busy = models.IntegerField(_("busy"), default=0)
    memory_bytes = models.BigIntegerField(_("memory"), null=True, blank=True)
    lease = models.DurationField(_("lease"), default=timedelta(seconds=30))
    started_at = models.DateTimeField(_("started at"))
    last_beat_at = models.DateTimeField(_("last beat at"), db_index=True)
    request = models.CharField(_("request"), max_length=5, blank=True, choices=Request.choices)
    stopped_at = models.DateTimeField(_("stopped at"), null=True, blank=True)

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        permissions = [
            ("quiet_worker", _("Can let a worker reserve nothing more, and go on")),
            ("stop_worker", _("Can stop a worker")),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.host}:{self.pid})"

    @property
    def queue_names(self) -> list[str]:
        return self.queues.split(",")

    def is_silent(self, now: datetime) -> bool:
        """Whether it was not heard of for so long that it has lost its leases."""
        return self.last_beat_at <= now - self.lease
