"""The dead-letter queue: why a job is dead, and what was done about it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from ..lifecycle import DeadReason, FailureCategory
from ..values import CODE_MAX_CHARS, NAME_MAX_CHARS
from .expressions import without_partial_index_warnings
from .people import forget


class DeadLetter(models.Model):
    job = models.ForeignKey(
        "taskharbor.Job", models.DO_NOTHING, db_constraint=False, related_name="dead_letters"
    )
    # The job's id while the letter is open, NULL afterwards: unique on every database, also on
    # those without conditional constraints.
    open_for = models.UUIDField(null=True, unique=True, editable=False)
    task = models.CharField(_("task"), max_length=NAME_MAX_CHARS)
    queue = models.CharField(_("queue"), max_length=128)
    reason = models.CharField(_("reason"), max_length=10, choices=DeadReason.choices)
    category = models.CharField(
        _("category"), max_length=9, choices=FailureCategory.choices, blank=True
    )
    code = models.CharField(_("code"), max_length=CODE_MAX_CHARS, blank=True)
    error_class = models.CharField(_("error class"), max_length=NAME_MAX_CHARS, blank=True)
    error = models.TextField(_("error"), blank=True)
    traceback = models.TextField(_("traceback"), blank=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=64, blank=True)
    attempts = models.IntegerField(_("attempts"), default=0)
    cause = models.ForeignKey(
        "taskharbor.Job",
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    died_at = models.DateTimeField(_("died at"))
    closed_at = models.DateTimeField(_("closed at"), null=True, blank=True)
    closed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        forget,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    note = models.TextField(_("note"), blank=True)

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        permissions = [
            ("requeue_deadletter", _("Can requeue dead jobs")),
            ("replay_deadletter", _("Can replay dead jobs as new ones")),
            ("discard_deadletter", _("Can discard dead jobs")),
        ]
        indexes = [
            models.Index(
                fields=["fingerprint", "died_at"],
                name="taskharbor_letter_open",
                condition=Q(open_for__isnull=False),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(open_for__isnull=True, closed_at__isnull=False)
                # NOT NULL is said, because a check that is neither true nor false is passed.
                | Q(open_for__isnull=False, open_for=F("job"), closed_at__isnull=True),
                name="taskharbor_letter_open_rule",
            ),
            models.CheckConstraint(
                condition=Q(reason__in=DeadReason.values), name="taskharbor_letter_reason"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.job_id}: {self.reason}"

    @classmethod
    def check(cls, **kwargs: Any) -> list[CheckMessage]:
        return without_partial_index_warnings(super().check(**kwargs))
