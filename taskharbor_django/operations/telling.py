"""Signals about outcomes that were settled; see signals.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..drivers import DatabaseDriver
from ..drivers.moves import given_back_as
from ..lifecycle import JobState, OutcomeKind, Verb
from ..models import Job
from ..signals import SIGNALS, Move, tell
from ..values import Outcome, Reservation

# outcome -> the arrow, and the state at its end; None where that depends on the time
_ARROWS: dict[OutcomeKind, tuple[Verb, JobState | None]] = {
    OutcomeKind.ACK: (Verb.ACK, JobState.DONE),
    OutcomeKind.RETRY: (Verb.RETRY, None),
    OutcomeKind.FAIL: (Verb.FAIL, JobState.DEAD),
    OutcomeKind.RELEASE: (Verb.RELEASE, None),
    OutcomeKind.CANCEL: (Verb.CANCEL, JobState.CANCELLED),
}
_OUTCOMES = {verb: SIGNALS[verb] for verb, _ in _ARROWS.values()}
_GIVEN_BACK = (Verb.RETRY, Verb.RELEASE)


@dataclass(frozen=True, slots=True)
class Settled:
    """An accepted outcome, and what the handler raised, if that is known here."""

    reservation: Reservation
    outcome: Outcome
    exception: BaseException | None = None


def outcomes_wanted() -> bool:
    """Say whether anybody listens to any end of a run."""
    return any(signal.receivers for signal in _OUTCOMES.values())


def tell_settled(driver: DatabaseDriver, settled: Sequence[Settled], *, now: datetime) -> None:
    """Tell of outcomes that were stored at that time."""
    if outcomes_wanted():
        tell(moves_of(driver, settled, now=now))


def moves_of(driver: DatabaseDriver, settled: Sequence[Settled], *, now: datetime) -> list[Move]:
    """What these outcomes have made of their jobs; the database is asked about those given back."""
    given_back = [it.outcome.job_id for it in settled if _verb(it.outcome) in _GIVEN_BACK]
    cancelled = _cancelled(driver, given_back) if given_back else set()
    return [_move(driver.using, it, it.outcome.job_id in cancelled, now) for it in settled]


def _verb(outcome: Outcome) -> Verb:
    return _ARROWS[outcome.kind][0]


def _cancelled(driver: DatabaseDriver, ids: Sequence[UUID]) -> set[UUID]:
    """Those that ended when they were given back, because somebody had asked them to stop."""
    jobs = Job.objects.using(driver.using).filter(pk__in=ids, state=JobState.CANCELLED.value)
    return set(jobs.values_list("pk", flat=True))


def _move(using: str, it: Settled, cancelled: bool, now: datetime) -> Move:  # noqa: FBT001  of one job
    job, lease, outcome = it.reservation.job, it.reservation.lease, it.outcome
    verb, state = _ARROWS[outcome.kind]
    facts: dict[str, Any] = {}
    if outcome.update is not None:
        update = outcome.update
        facts = {"category": str(update.category), "code": update.code, "error": update.last_error}
    run_at = outcome.update.run_at if outcome.update else outcome.run_at
    if cancelled:
        verb, state, run_at = Verb.CANCEL, JobState.CANCELLED, None
    elif state is None:
        state = given_back_as(outcome, now)
    return Move(
        verb=verb,
        job_id=job.id,
        task=job.task,
        queue=job.queue,
        using=using,
        state=state.value,
        attempt=job.executions,
        worker=lease.worker,
        started_at=outcome.started_at,
        finished_at=outcome.finished_at,
        run_at=run_at,
        reason=str(outcome.reason),
        exception=it.exception,
        **facts,
    )
