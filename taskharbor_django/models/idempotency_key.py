"""Which job a caller's key stands for, until the key expires."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..values import KEY_MAX_CHARS, NAME_MAX_CHARS


class IdempotencyKey(models.Model):
    task = models.CharField(_("task"), max_length=NAME_MAX_CHARS)
    key = models.CharField(_("key"), max_length=KEY_MAX_CHARS)
    job = models.ForeignKey(
        "taskharbor.Job", models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    payload_digest = models.CharField(_("payload digest"), max_length=64, blank=True)
    expires_at = models.DateTimeField(_("expires at"), db_index=True)

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        constraints = [
            models.UniqueConstraint(fields=["task", "key"], name="taskharbor_key_once"),
        ]

    def __str__(self) -> str:
        return self.key
