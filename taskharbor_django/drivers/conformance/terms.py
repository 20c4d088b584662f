"""The terms in which the rules are written: times, facts, what is stored, and demands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from ...exceptions import JobLocked
from ...lifecycle import FailureCategory, OutcomeKind
from ...values import FailureUpdate, Outcome, Rejection, Reservation

T0 = datetime(2031, 5, 17, 9, 30, 0, 123_457, tzinfo=UTC)
TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)

FAILURE = FailureUpdate(
    attempts=2,
    last_error="no route to host",
    failed_at=T0 + 5 * SECOND + TICK,
    category=FailureCategory.TIMEOUT,
    code="E42",
)

# The worker's times of a run, apart from the time at which its outcome is settled.
STARTED, FINISHED, NOW = T0 + SECOND + TICK, T0 + 2 * SECOND + TICK, T0 + 3 * SECOND

# What is stored of FAILURE, and of a lease that is given up.
FAILED: dict[str, Any] = {
    "attempts": 2,
    "last_error": "no route to host",
    "failed_at": T0 + 5 * SECOND + TICK,
    "failure_category": "timeout",
    "failure_code": "E42",
    "attempt_ends": ((1, "failed"),),
}
NO_LEASE: dict[str, Any] = {"lease": None, "lease_expires_at": None}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a driver has stored about one job, read back past the driver's verbs."""

    state: str
    queue: str
    priority: int
    payload: bytes
    created_at: datetime
    available_at: datetime
    run_at: datetime | None
    expires_at: datetime | None
    """end of the job's lifetime"""
    attempts: int
    max_attempts: int
    executions: int
    handler_misses: int
    lease: UUID | None
    """the token on the job, whether or not that lease is still stored"""
    lease_expires_at: datetime | None
    """of the lease with that token; None when no such lease is stored (any more)"""
    lease_version: int
    lease_losses: int
    last_error: str
    failed_at: datetime | None
    failure_category: str
    failure_code: str
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    result: bytes | None
    result_expires_at: datetime | None
    reason: str
    """of the open dead letter, else empty"""
    dead_letters: int
    """how many are open"""
    attempt_ends: tuple[tuple[int, str], ...]
    """(lease version, done | failed | lost) of each recorded attempt, by version"""

    @classmethod
    def of(cls, row: object, **others: Any) -> Stored:
        """Take each field from `others`, or else from the attribute of that name."""
        names = {field.name for field in fields(cls)} - others.keys()
        return cls(**{name: getattr(row, name) for name in names}, **others)


def require(fact: bool, about: object) -> None:  # noqa: FBT001  reads as an assert
    """Assert, also where Python leaves `assert` out."""
    if not fact:
        raise AssertionError(about)


def same(found: object, expected: object, about: object = "") -> None:
    require(found == expected, f"{about}: expected {expected!r}, found {found!r}")


def different(found: object, *others: object) -> None:
    require(found not in others, f"{found!r} was there before")


def changed(before: Stored, after: Stored) -> dict[str, Any]:
    """Name the fields that differ, with their new values."""
    names = (field.name for field in fields(Stored))
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    return {name: new for name, (old, new) in pairs.items() if old != new}


def refused(
    error: type[Exception], call: Callable[..., object], *args: Any, about: object = "", **more: Any
) -> Exception:
    """Demand that the call raises exactly this error: a child of it is another answer."""
    try:
        answer = call(*args, **more)
    except error as exception:
        require(type(exception) is error, f"{about}: {exception!r}, not {error.__name__}")
        return exception
    raise AssertionError(f"{about}: returned {answer!r}, did not raise {error.__name__}")


def outcome(kind: OutcomeKind, held: Reservation, **facts: Any) -> Outcome:
    """Report about a reservation what its worker would."""
    if kind == OutcomeKind.RETRY:
        facts.setdefault("update", FAILURE)
    if kind == OutcomeKind.FAIL:
        facts.setdefault("reason", "exhausted")
    facts = {"token": held.lease.token, "version": held.lease.version, **facts}
    return Outcome(job_id=held.job.id, kind=kind, **facts)


def persist(driver: Any, outcomes: Sequence[Outcome], now: datetime) -> list[Rejection]:
    """Settle, and settle again what met a lock, as a worker does."""
    final: list[Rejection] = []
    for _ in range(100_000):
        rejected = driver.settle(outcomes, now=now)
        final += [each for each in rejected if not isinstance(each.error, JobLocked)]
        outcomes = [each.outcome for each in rejected if isinstance(each.error, JobLocked)]
        if not outcomes:
            return final
    raise AssertionError("the job stayed locked")
