"""A worker process that is, or was, alive."""

from __future__ import annotations

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
    started_at = models.DateTimeField(_("started at"))
    last_beat_at = models.DateTimeField(_("last beat at"), db_index=True)
    request = models.CharField(_("request"), max_length=5, blank=True, choices=Request.choices)
    stopped_at = models.DateTimeField(_("stopped at"), null=True, blank=True)

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return f"{self.name} ({self.host}:{self.pid})"
