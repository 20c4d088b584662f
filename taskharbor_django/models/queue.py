"""What was said about a queue. Queues are made by use; one nobody spoke about has no row."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class QueueQuerySet(models.QuerySet["Queue"]):
    def paused(self, now: datetime) -> QueueQuerySet:
        return self.filter(
            Q(paused_until__isnull=True) | Q(paused_until__gt=now), paused_at__isnull=False
        )


class Queue(models.Model):
    name = models.CharField(_("name"), max_length=128, primary_key=True)
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    paused_until = models.DateTimeField(_("paused until"), null=True, blank=True)

    objects = QueueQuerySet.as_manager()

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")

    def __str__(self) -> str:
        return self.name
