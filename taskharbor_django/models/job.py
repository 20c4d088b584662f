"""One request to run a task."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.core.checks import CheckMessage
from django.db import models
from django.db.models import Q
from django.db.models.functions import Length
from django.db.models.lookups import Range
from django.utils.translation import gettext_lazy as _

from ..lifecycle import (
    ENDED,
    PRIORITY_FIRST,
    PRIORITY_LAST,
    FailureCategory,
    Input,
    JobState,
    Priority,
    StateFacts,
    state_in,
)
from ..values import (
    CODE_MAX_CHARS,
    CORRELATION_MAX_CHARS,
    KEY_MAX_CHARS,
    NAME_MAX_CHARS,
    URL_MAX_CHARS,
)
from .expressions import StateLiteral, state_condition, without_partial_index_warnings


class JobQuerySet(models.QuerySet["Job"]):
    def in_state(self, state: JobState) -> JobQuerySet:
        # SQLite uses a partial index only where its whole condition is written down. Without, it
        # read the table: to count done jobs among 200,000 took 96 ms instead of 2.
        jobs = self.ended() if state in ENDED else self
        return jobs.filter(state=StateLiteral(state))

    def ready(self) -> JobQuerySet:
        return self.in_state(JobState.READY)

    def due(self, now: datetime) -> JobQuerySet:
        return self.in_state(JobState.SCHEDULED).filter(available_at__lte=now)

    def inflight(self) -> JobQuerySet:
        return self.in_state(JobState.INFLIGHT)

    def ended(self) -> JobQuerySet:
        return self.filter(state__in=[StateLiteral(state) for state in sorted(ENDED)])

    def in_line(self) -> JobQuerySet:
        """In the order of reservation; the ready index has exactly these columns."""
        return self.order_by("priority", "available_at", "seq")


def _link(to: str, related_name: str) -> Any:
    """
    A foreign key without constraint or index.

    The constraint's trigger costs more than the write it guards, and a full index costs an entry on
    every change of state; what needs an index has a partial one in Meta.
    """
    return models.ForeignKey(
        to,
        models.DO_NOTHING,
        null=True,
        blank=True,
        editable=False,
        db_constraint=False,
        db_index=False,
        related_name=related_name,
    )


def _linked(field: str) -> Any:
    """Index the few jobs that have this link, and no others."""
    name = f"taskharbor_job_{field}"
    return models.Index(fields=[field], name=name, condition=Q(**{f"{field}__isnull": False}))


class Job(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    task = models.CharField(_("task"), max_length=NAME_MAX_CHARS)
    queue = models.CharField(_("queue"), max_length=128, default="default")
    state = models.CharField(_("state"), max_length=9, choices=JobState.choices, editable=False)
    priority = models.SmallIntegerField(
        _("priority"), default=Priority.NORMAL.value, db_default=Priority.NORMAL.value
    )
    payload = models.BinaryField(_("payload"), default=b"")
    run_at = models.DateTimeField(_("run at"), null=True, blank=True)
    available_at = models.DateTimeField(_("available at"))
    seq = models.BigIntegerField(_("sequence"), default=0, editable=False)
    timeout = models.DurationField(_("timeout"), null=True, blank=True)
    attempts = models.IntegerField(_("attempts"), default=0, db_default=0)
    executions = models.IntegerField(_("executions"), default=0, db_default=0)
    max_attempts = models.IntegerField(_("max attempts"), default=0, db_default=0)

    lease = models.UUIDField(_("lease"), null=True, blank=True, editable=False)
    lease_version = models.BigIntegerField(
        _("lease version"), default=0, db_default=0, editable=False
    )
    lease_losses = models.IntegerField(_("lease losses"), default=0, db_default=0, editable=False)

    last_error = models.TextField(_("last error"), blank=True, default="", db_default="")
    failure_category = models.CharField(
        _("failure category"),
        max_length=9,
        choices=FailureCategory.choices,
        blank=True,
        default="",
        db_default="",
    )
    failure_code = models.CharField(
        _("failure code"), max_length=CODE_MAX_CHARS, blank=True, default="", db_default=""
    )
    failed_at = models.DateTimeField(_("failed at"), null=True, blank=True)

    created_at = models.DateTimeField(_("created at"))
    updated_at = models.DateTimeField(_("updated at"))
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)

    result = models.BinaryField(_("result"), null=True, blank=True)
    result_expires_at = models.DateTimeField(_("result expires at"), null=True, blank=True)
    progress = models.SmallIntegerField(_("progress"), null=True, blank=True)
    progress_message = models.CharField(
        _("progress message"), max_length=200, blank=True, default="", db_default=""
    )
    checkpoint = models.BinaryField(_("checkpoint"), null=True, blank=True)

    tags = models.JSONField(_("tags"), null=True, blank=True)
    # NULL, not "", where there is none: the partial indexes hold only the jobs that have one.
    correlation_id = models.CharField(  # noqa: DJ001  NULL keeps it out of a partial index
        _("correlation id"), max_length=CORRELATION_MAX_CHARS, null=True, blank=True
    )
    callback_url = models.CharField(
        _("callback URL"), max_length=URL_MAX_CHARS, blank=True, default="", db_default=""
    )
    idempotency_key = models.CharField(  # noqa: DJ001  NULL keeps it out of a partial index
        _("idempotency key"), max_length=KEY_MAX_CHARS, null=True, blank=True
    )
    parent = _link("self", "children")
    workflow = _link("taskharbor.Workflow", "jobs")
    dependencies_left = models.IntegerField(
        _("dependencies left"), default=0, db_default=0, editable=False
    )
    has_dependents = models.BooleanField(
        _("has dependents"), default=False, db_default=False, editable=False
    )
    input = models.CharField(
        _("input"),
        max_length=5,
        choices=Input.choices,
        blank=True,
        default="",
        db_default="",
        editable=False,
    )
    schedule = _link("taskharbor.Schedule", "jobs")
    schedule_slot = models.DateTimeField(_("schedule slot"), null=True, blank=True)
    replay_of = _link("self", "replays")
    handler_misses = models.IntegerField(
        _("handler misses"), default=0, db_default=0, editable=False
    )
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True, blank=True)
    trace = models.JSONField(_("trace context"), null=True, blank=True, editable=False)

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        indexes = [
            models.Index(
                fields=["queue", "priority", "available_at", "seq"],
                name="taskharbor_job_ready",
                condition=Q(state=JobState.READY.value),
            ),
            models.Index(
                fields=["available_at"],
                name="taskharbor_job_scheduled",
                condition=Q(state=JobState.SCHEDULED.value),
            ),
            models.Index(
                fields=["lease"],
                name="taskharbor_job_inflight",
                condition=Q(state=JobState.INFLIGHT.value),
            ),
            models.Index(
                fields=["created_at"],
                name="taskharbor_job_blocked",
                condition=Q(state=JobState.BLOCKED.value),
            ),
            models.Index(
                fields=["state", "finished_at"],
                name="taskharbor_job_ended",
                condition=Q(state__in=sorted(state.value for state in ENDED)),
            ),
            _linked("workflow"),
            _linked("parent"),
            _linked("correlation_id"),
            _linked("replay_of"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["schedule", "schedule_slot"],
                name="taskharbor_job_slot",
                condition=Q(schedule__isnull=False),
            ),
            models.CheckConstraint(
                condition=Q(state__in=JobState.values), name="taskharbor_job_state"
            ),
            models.CheckConstraint(
                condition=Q(priority__gte=PRIORITY_FIRST, priority__lte=PRIORITY_LAST),
                name="taskharbor_job_priority",
            ),
            # One look for a character that does not belong: 0.8 us a row on PostgreSQL. A pattern
            # of the whole name ("^[...]{1,128}$") takes 16, on each of a job's writes, and lets a
            # newline at the end pass on SQLite and MariaDB.
            models.CheckConstraint(
                condition=~Q(queue__regex=r"[^A-Za-z0-9_.:-]")
                & Q(Range(Length("queue"), (1, 128)))
                & ~Q(task=""),
                name="taskharbor_job_names",
            ),
            models.CheckConstraint(
                condition=Q(
                    attempts__gte=0,
                    executions__gte=0,
                    lease_losses__gte=0,
                    dependencies_left__gte=0,
                ),
                name="taskharbor_job_counts",
            ),
            *(
                models.CheckConstraint(
                    condition=state_condition(state), name=f"taskharbor_job_{state.value}_rule"
                )
                for state in JobState
            ),
        ]
        permissions = [
            ("view_payload", _("Can view the payload and result of a job")),
            ("view_traceback", _("Can view tracebacks")),
            ("cancel_job", _("Can cancel a job, or ask it to stop")),
            ("force_cancel_job", _("Can take a running job away from its worker")),
            ("run_job_now", _("Can let a scheduled job run at once")),
            ("reschedule_job", _("Can change when and where a waiting job runs")),
            ("bury_job", _("Can bury a job by hand")),
            ("erase_job", _("Can erase the data of an ended job")),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.id}"

    @classmethod
    def check(cls, **kwargs: Any) -> list[CheckMessage]:
        return without_partial_index_warnings(super().check(**kwargs))

    def state_in(self, dialect: str) -> str:
        """Name the state in another vocabulary, such as "gopherqueue"."""
        facts = StateFacts(
            state=self.state,
            failures=self.attempts,
            started=self.started_at is not None,
            reason=self._dead_reason() if self.state == JobState.DEAD else "",
        )
        return state_in(dialect, facts)

    def _dead_reason(self) -> str:
        letter = self.dead_letters.filter(open_for=self.pk).only("reason").first()
        return letter.reason if letter else ""
