"""What each worker did in each minute, so that nobody has to count jobs."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class QueueMinute(models.Model):
    """One row per worker, so that workers never wait for each other to count."""

    minute = models.DateTimeField(_("minute"))
    queue = models.CharField(_("queue"), max_length=128)
    worker = models.CharField(_("worker"), max_length=64)
    done = models.IntegerField(_("done"), default=0)
    failed = models.IntegerField(_("failed"), default=0)
    dead = models.IntegerField(_("dead"), default=0)

    class Meta:
        verbose_name = _("queue minute")
        verbose_name_plural = _("queue minutes")
        constraints = [
            models.UniqueConstraint(
                fields=["minute", "queue", "worker"], name="taskharbor_minute_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.minute:%H:%M}"
