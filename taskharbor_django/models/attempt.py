"""One failed or lost run of a job (or any run, with RECORD_ATTEMPTS="all")."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..lifecycle import AttemptEnd, FailureCategory
from ..values import CODE_MAX_CHARS, NAME_MAX_CHARS


class Attempt(models.Model):
    job = models.ForeignKey(
        "taskharbor.Job",
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="attempt_rows",
    )
    lease_version = models.BigIntegerField(_("lease version"))
    number = models.IntegerField(_("number"))
    end = models.CharField(_("end"), max_length=6, choices=AttemptEnd.choices)
    worker = models.CharField(_("worker"), max_length=64, blank=True)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"))
    category = models.CharField(
        _("category"), max_length=9, choices=FailureCategory.choices, blank=True
    )
    code = models.CharField(_("code"), max_length=CODE_MAX_CHARS, blank=True)
    error_class = models.CharField(_("error class"), max_length=NAME_MAX_CHARS, blank=True)
    error = models.TextField(_("error"), blank=True)
    traceback = models.TextField(_("traceback"), blank=True)
    previous = models.ForeignKey(
        "self",
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = [
            models.UniqueConstraint(
                fields=["job", "lease_version"], name="taskharbor_attempt_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.number}"
