"""What one worker does for all of them, now and then."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Chore(models.Model):
    """Whoever moves `next_at` does the work; nobody else looks before that time."""

    name = models.CharField(_("name"), max_length=32, primary_key=True)
    next_at = models.DateTimeField(_("next at"))
    worker = models.CharField(_("worker"), max_length=64, blank=True, default="")
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        verbose_name = _("chore")
        verbose_name_plural = _("chores")

    def __str__(self) -> str:
        return self.name
