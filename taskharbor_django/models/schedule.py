"""Work that comes back."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..values import NAME_MAX_CHARS


class Schedule(models.Model):
    class Kind(models.TextChoices):
        CRON = "cron", _("cron")
        FIXED_RATE = "fixed_rate", _("fixed rate")
        FIXED_DELAY = "fixed_delay", _("fixed delay")

    name = models.CharField(_("name"), max_length=NAME_MAX_CHARS, unique=True)
    task = models.CharField(_("task"), max_length=NAME_MAX_CHARS)
    queue = models.CharField(_("queue"), max_length=128)
    payload = models.BinaryField(_("payload"), default=b"")
    kind = models.CharField(_("kind"), max_length=11, choices=Kind.choices)
    cron = models.CharField(_("cron"), max_length=200, blank=True)
    time_zone = models.CharField(_("time zone"), max_length=64, blank=True)
    interval = models.DurationField(_("interval"), null=True, blank=True)
    next_at = models.DateTimeField(_("next at"), null=True, blank=True, db_index=True)
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    created_at = models.DateTimeField(_("created at"))

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")

    def __str__(self) -> str:
        return self.name
