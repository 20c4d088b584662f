"""What was said about a queue. Queues are made by use; one nobody spoke about has no row."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .people import forget


class QueueQuerySet(models.QuerySet["Queue"]):
    def paused(self, now: datetime) -> QueueQuerySet:
        return self.filter(
            Q(paused_until__isnull=True) | Q(paused_until__gt=now), paused_at__isnull=False
        )


class Queue(models.Model):
    name = models.CharField(_("name"), max_length=128, primary_key=True)
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    paused_until = models.DateTimeField(_("paused until"), null=True, blank=True)
    paused_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        forget,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    note = models.TextField(_("note"), blank=True)

    objects = QueueQuerySet.as_manager()

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        permissions = [
            ("pause_queue", _("Can pause a queue")),
            ("resume_queue", _("Can resume a queue")),
        ]

    def __str__(self) -> str:
        return self.name
