"""What an end leaves behind: attempts and dead letters, written in the transaction of the move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Max

from ..lifecycle import AttemptEnd, DeadReason, FailureCategory, OutcomeKind
from ..models import Attempt, DeadLetter
from ..values import Outcome
from .moves import LOST, Held, attempt_end, fingerprint

# Somebody must learn of the end of a job that has one of these, in the transaction that ends it.
_FOLLOWERS = ("has_dependents", "workflow", "callback_url")
# A row with one of these is looked at after its end.
_NEEDS = ("idempotency_key", "schedule")
STORED_FIELDS = (
    "id",
    "state",
    "lease",
    "lease_version",
    "lease_losses",
    "cancel_requested_at",
    "executions",
    "handler_misses",
    "task",
    "queue",
    "attempts",
    "last_error",
    "failure_category",
    "failure_code",
    "started_at",
    *_NEEDS,
    *_FOLLOWERS,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored(Held):
    """A locked row: what settling needs and what its end must leave behind."""

    task: str
    queue: str
    attempts: int
    lease_losses: int
    last_error: str
    failure_category: str
    failure_code: str
    started_at: datetime | None
    followed: bool
    needed: bool
    """the row outlives its end, whatever the task says about keeping it"""


def stored(row: dict[str, Any]) -> Stored:
    """Make a Stored from a row of STORED_FIELDS."""
    followed = any([row.pop(name) for name in _FOLLOWERS])  # noqa: C419  pop every one
    needed = any([row.pop(name) for name in _NEEDS]) or followed  # noqa: C419  likewise
    cancel_requested = row.pop("cancel_requested_at") is not None
    return Stored(cancel_requested=cancel_requested, followed=followed, needed=needed, **row)


def record_settled(
    settled: Iterable[tuple[Stored, Outcome]], workers: dict[UUID, str], now: datetime, using: str
) -> None:
    """Write the attempts and dead letters of accepted outcomes."""
    settled = list(settled)
    attempts = [
        _attempt(job, outcome, workers, now) for job, outcome in settled if attempt_end(outcome)
    ]
    _write_attempts(attempts, using)
    failed = [pair for pair in settled if pair[1].kind == OutcomeKind.FAIL]
    DeadLetter.objects.using(using).bulk_create(
        [_letter(job, outcome, now) for job, outcome in failed]
    )


def record_lost(
    lost: Iterable[Stored],
    buried: Iterable[Stored],
    workers: dict[UUID, str],
    now: datetime,
    using: str,
) -> None:
    """Write the attempts of lost leases and the dead letters of those that were one too many."""
    _write_attempts([_lost_attempt(job, workers, now) for job in lost], using)
    DeadLetter.objects.using(using).bulk_create(
        [
            _opened(
                job,
                now,
                reason=DeadReason.LEASE_LOST,
                category=FailureCategory.SYSTEM,
                error=LOST,
                attempts=job.attempts,
            )
            for job in buried
        ]
    )


def record_buried(
    buried: Sequence[Stored],
    now: datetime,
    using: str,
    *,
    reason: DeadReason,
    category: FailureCategory,
    error: str,
) -> None:
    """Write the dead letters of jobs that no outcome ended, and the attempts that this cut off."""
    record_cut_off(buried, now, using, error=error)
    facts = {"reason": reason, "category": category, "error": error}
    DeadLetter.objects.using(using).bulk_create(
        [_opened(job, now, attempts=job.attempts, **facts) for job in buried]
    )


def record_cut_off(jobs: Sequence[Stored], now: datetime, using: str, *, error: str) -> None:
    """Write the attempts of those jobs that were running: what their workers say is no repeat."""
    running = [job for job in jobs if job.lease is not None]
    _write_attempts([_lost_attempt(job, {}, now, error) for job in running], using)


def _write_attempts(attempts: list[Attempt], using: str) -> None:
    if not attempts:
        return
    known = Attempt.objects.using(using).filter(job__in={attempt.job_id for attempt in attempts})
    latest = dict(known.order_by().values_list("job").annotate(latest=Max("pk")))
    for attempt in attempts:
        attempt.previous_id = latest.get(attempt.job_id)
    Attempt.objects.using(using).bulk_create(attempts)


def _attempt(job: Stored, outcome: Outcome, workers: dict[UUID, str], now: datetime) -> Attempt:
    update = outcome.update
    return Attempt(
        job_id=job.id,
        lease_version=job.lease_version,
        number=job.executions,
        end=attempt_end(outcome) or "",
        worker=workers.get(outcome.token, ""),
        started_at=outcome.started_at,
        finished_at=outcome.finished_at or now,
        category=update.category if update else "",
        code=update.code if update else "",
        error_class=update.error_class if update else "",
        error=update.last_error if update else outcome.reason,
        traceback=update.traceback if update else "",
    )


def _lost_attempt(
    job: Stored, workers: dict[UUID, str], now: datetime, error: str = LOST
) -> Attempt:
    return Attempt(
        job_id=job.id,
        lease_version=job.lease_version,
        number=job.executions,
        end=AttemptEnd.LOST,
        worker=workers.get(job.lease, "") if job.lease else "",
        started_at=job.started_at,
        finished_at=now,
        category=FailureCategory.SYSTEM,
        error=error,
    )


def _letter(job: Stored, outcome: Outcome, now: datetime) -> DeadLetter:
    update = outcome.update
    if update is None:
        return _opened(
            job,
            now,
            reason=outcome.reason,
            category=job.failure_category,
            code=job.failure_code,
            error=job.last_error,
            attempts=job.attempts,
        )
    return _opened(
        job,
        now,
        reason=outcome.reason,
        category=update.category,
        code=update.code,
        error_class=update.error_class,
        error=update.last_error,
        traceback=update.traceback,
        attempts=update.attempts,
    )


def _opened(job: Stored, now: datetime, **facts: Any) -> DeadLetter:
    letter = DeadLetter(
        job_id=job.id, open_for=job.id, task=job.task, queue=job.queue, died_at=now, **facts
    )
    letter.fingerprint = fingerprint(job.task, letter.reason, letter.error_class, letter.error)
    return letter


def stored_rows(rows: Any) -> list[Stored]:
    """Read a (locked) queryset of jobs as Stored."""
    return [stored(row) for row in rows.values(*STORED_FIELDS)]
