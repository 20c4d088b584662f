"""What an outcome makes of a job, as pure functions: the same for every way to store it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..exceptions import (
    JobNotFound,
    JobNotInflight,
    LeaseExpired,
    LeaseMismatch,
    TaskHarborError,
)
from ..lifecycle import AttemptEnd, DeadReason, JobState, OutcomeKind
from ..values import FailureUpdate, Outcome

Changes = dict[str, Any]

LOST = "The worker stopped renewing its lease before the job ended."
OVERDUE = "The job was not finished within its lifetime."
BY_HAND = "The job was buried by hand."
BY_FORCE = "The job was cancelled by force."

# Outcomes that give a job back; a request to cancel it turns them into its end.
_GIVES_BACK = frozenset({OutcomeKind.RETRY, OutcomeKind.RELEASE})
_ENDS_BY_TOKEN = {OutcomeKind.ACK: JobState.DONE, OutcomeKind.FAIL: JobState.DEAD}


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a driver must know about a stored job to settle it."""

    id: UUID
    state: str
    lease: UUID | None
    lease_version: int
    cancel_requested: bool = False
    executions: int = 0
    handler_misses: int = 0


def check_outcome(outcome: Outcome) -> None:
    """Refuse, before anything changes, what no driver could store."""
    if outcome.kind == OutcomeKind.FAIL and outcome.reason not in DeadReason.values:
        known = ", ".join(DeadReason.values)
        raise ValueError(f"{outcome.reason!r} is no reason to bury a job; there are {known}")
    if outcome.kind == OutcomeKind.RETRY and outcome.update is None:
        raise ValueError("a retry needs a FailureUpdate")


def refusal(
    held: Held | None, expires_at: datetime | None, outcome: Outcome, now: datetime
) -> TaskHarborError | None:
    """Say why the outcome's token does not move this job, or None when it does."""
    if held is None:
        return JobNotFound()
    if held.state != JobState.INFLIGHT:
        return JobNotInflight(f"The job is not inflight but {held.state}.")
    if expires_at is None or expires_at <= now:
        return LeaseExpired()
    if held.lease != outcome.token or outcome.version not in (None, held.lease_version):
        return LeaseMismatch()
    return None


def was_applied(held: Held | None, attempt: str | None, outcome: Outcome) -> bool:
    """
    Say whether a refused outcome had been applied before, its reply lost.

    `attempt` is how the Attempt of the outcome's lease version ended, None without one. Whoever
    takes a running job from its worker leaves one that is `lost`: no worker has made that end.
    """
    if held is None:
        return drops(outcome)
    if attempt is not None:
        # A late ack of a run whose failure was stored is no repeat of that.
        failed_ack = outcome.kind == OutcomeKind.ACK and attempt == AttemptEnd.FAILED
        return attempt != AttemptEnd.LOST and not failed_ack
    if outcome.kind in _ENDS_BY_TOKEN:
        return held.state == _ENDS_BY_TOKEN[outcome.kind] and held.lease == outcome.token
    return held.state != JobState.INFLIGHT and held.lease_version == outcome.version


def drops(outcome: Outcome) -> bool:
    """Say whether the job's row may go with its end."""
    return outcome.kind == OutcomeKind.ACK and not outcome.keep


def target(held: Held, outcome: Outcome, now: datetime) -> JobState:
    """The state that an accepted outcome leads to."""
    kind = outcome.kind
    if kind in _ENDS_BY_TOKEN:
        return _ENDS_BY_TOKEN[kind]
    if kind == OutcomeKind.CANCEL or held.cancel_requested:
        return JobState.CANCELLED
    return given_back_as(outcome, now)


def given_back_as(outcome: Outcome, now: datetime) -> JobState:
    """The state of a job that a retry or release gives back, when nobody has asked it to stop."""
    run_at = outcome.update.run_at if outcome.update else outcome.run_at
    return JobState.SCHEDULED if run_at is not None and run_at > now else JobState.READY


def changes(held: Held, outcome: Outcome, now: datetime) -> Changes:
    """The columns that an accepted outcome writes."""
    state = target(held, outcome, now)
    made: Changes = {"state": state.value, "updated_at": now, "started_at": outcome.started_at}
    if state in (JobState.DONE, JobState.DEAD, JobState.CANCELLED):
        made["finished_at"] = outcome.finished_at or now
    # Of a lifetime that ran out nobody may say later that its own call ended the job.
    if outcome.kind not in _ENDS_BY_TOKEN or outcome.reason == DeadReason.LIFETIME:
        made["lease"] = None
    if outcome.kind == OutcomeKind.ACK:
        made |= {"result": outcome.result, "result_expires_at": outcome.result_expires_at}
    if outcome.update is not None:
        made |= _failure(outcome.update, now)
    if outcome.kind in _GIVES_BACK and state != JobState.CANCELLED:
        made |= _place_in_line(outcome, now)
    if outcome.kind == OutcomeKind.RELEASE:
        made |= _released(held, outcome)
    return made


def _failure(update: FailureUpdate, now: datetime) -> Changes:
    return {
        "attempts": update.attempts,
        "last_error": update.last_error,
        "failed_at": update.failed_at or now,
        "failure_category": update.category.value,
        "failure_code": update.code,
    }


def _place_in_line(outcome: Outcome, now: datetime) -> Changes:
    """A retry goes to the end of the line, a release without a time keeps its place."""
    if outcome.update is not None:
        run_at = outcome.update.run_at
        return {"run_at": run_at, "available_at": max(run_at or now, now)}
    if outcome.run_at is None or outcome.run_at <= now:
        return {}
    return {"run_at": outcome.run_at, "available_at": outcome.run_at}


def _released(held: Held, outcome: Outcome) -> Changes:
    """An execution that never started was none."""
    return {
        "executions": held.executions - (outcome.started_at is None),
        "handler_misses": held.handler_misses + outcome.missed,
    }


def attempt_end(outcome: Outcome) -> AttemptEnd | None:
    """How the attempt is to be recorded, None when it leaves no row."""
    if outcome.kind in (OutcomeKind.RETRY, OutcomeKind.FAIL):
        return AttemptEnd.FAILED
    return AttemptEnd.DONE if outcome.kind == OutcomeKind.ACK and outcome.record else None


_VARIABLE_PART = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*|\d+")


def fingerprint(task: str, reason: str, error_class: str, error: str) -> str:
    """Group errors that differ only in numbers, ids and addresses."""
    shape = _VARIABLE_PART.sub("#", error[:1000])
    text = f"{task}\0{reason}\0{error_class}\0{shape}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
