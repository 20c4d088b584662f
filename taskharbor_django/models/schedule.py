"""Work that comes back."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from itertools import islice

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..exceptions import InvalidSchedule
from ..timing import CRON_MAX_CHARS, CatchUp, Overlap, ScheduleKind, Timing
from ..values import NAME_MAX_CHARS

UPCOMING = 5


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def active(self) -> ScheduleQuerySet:
        """Those that have slots: not paused, not disabled, and not stopped by a problem."""
        return self.filter(
            paused_at__isnull=True, disabled_at__isnull=True, next_at__isnull=False, problem=""
        )

    def due(self, now: datetime) -> ScheduleQuerySet:
        return self.active().filter(next_at__lte=now).order_by("next_at", "pk")


class Schedule(models.Model):
    """`next_at` is the cursor: the first slot that was not dealt with."""

    Kind = ScheduleKind

    name = models.CharField(_("name"), max_length=NAME_MAX_CHARS, unique=True)
    task = models.CharField(_("task"), max_length=NAME_MAX_CHARS)
    queue = models.CharField(_("queue"), max_length=128, blank=True, default="")
    priority = models.SmallIntegerField(_("priority"), null=True, blank=True)
    payload = models.BinaryField(_("payload"), default=b"")
    kind = models.CharField(_("kind"), max_length=11, choices=ScheduleKind.choices)
    cron = models.CharField(_("cron"), max_length=CRON_MAX_CHARS, blank=True, default="")
    time_zone = models.CharField(_("time zone"), max_length=64, blank=True, default="")
    interval = models.DurationField(_("interval"), null=True, blank=True)
    anchor = models.DateTimeField(_("anchor"), null=True, blank=True)
    catch_up = models.CharField(
        _("catch up"), max_length=4, choices=CatchUp.choices, default=CatchUp.SKIP
    )
    overlap = models.CharField(
        _("overlap"), max_length=5, choices=Overlap.choices, default=Overlap.SKIP
    )
    jitter = models.DurationField(_("jitter"), null=True, blank=True)

    declared = models.BooleanField(_("declared in code"), default=False, editable=False)
    next_at = models.DateTimeField(_("next at"), null=True, blank=True, db_index=True)
    last_slot = models.DateTimeField(_("last slot"), null=True, blank=True, editable=False)
    last_job = models.UUIDField(_("last job"), null=True, blank=True, editable=False)
    enqueued = models.BigIntegerField(_("enqueued"), default=0, editable=False)
    skipped = models.BigIntegerField(_("skipped"), default=0, editable=False)
    problem = models.TextField(_("problem"), blank=True, default="", editable=False)
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    disabled_at = models.DateTimeField(_("disabled at"), null=True, blank=True, editable=False)
    created_at = models.DateTimeField(_("created at"))

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions = [
            ("pause_schedule", _("Can pause a schedule")),
            ("resume_schedule", _("Can resume a schedule")),
            ("run_schedule", _("Can run a schedule now")),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def timing(self) -> Timing:
        return Timing(
            kind=ScheduleKind(self.kind),
            cron=self.cron,
            time_zone=self.time_zone,
            interval=self.interval,
            anchor=self.anchor,
        )

    def upcoming(self, count: int = UPCOMING) -> list[datetime]:
        """The next slots; of a fixed delay only the first is known, and it may come later."""
        if self.next_at is None or self.paused_at or self.disabled_at or self.problem:
            return []
        slots = [self.next_at]
        with suppress(InvalidSchedule):  # its time zone has vanished; the next tick says so
            slots += islice(self.timing.slots(self.next_at), count - 1)
        return slots
