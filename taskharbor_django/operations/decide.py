"""What a failure means: pure functions from an exception to an outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ..backoff import Backoff
from ..conf import get_settings
from ..drivers.moves import OVERDUE
from ..exceptions import (
    CancelRequested,
    JobTimeout,
    PayloadCorrupt,
    PermanentError,
    Snooze,
    TemporaryError,
)
from ..lifecycle import DeadReason, FailureCategory, OutcomeKind
from ..payload import describe_exception, sanitise_text
from ..tasks import Task
from ..values import (
    CODE_MAX_CHARS,
    NAME_MAX_CHARS,
    FailureUpdate,
    Outcome,
    Reservation,
    as_duration,
)
from ..wire import type_name
from .logs import fault, shown, traceback_of

logger = logging.getLogger(__name__)

FIRST_MISS = timedelta(seconds=7)
MAX_HANDLER_MISSES = 10
SYSTEM_ERRORS = (MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit)


def category_of(error: BaseException) -> FailureCategory:
    """Exactly one category for each failure."""
    if isinstance(error, PermanentError | PayloadCorrupt):
        return FailureCategory.PERMANENT
    if isinstance(error, JobTimeout):
        return FailureCategory.TIMEOUT
    if isinstance(error, CancelRequested):
        return FailureCategory.CANCELLED
    return FailureCategory.SYSTEM if isinstance(error, SYSTEM_ERRORS) else FailureCategory.TEMPORARY


def outcome_of(
    error: BaseException,
    reservation: Reservation,
    task: Task[Any, Any] | None,
    *,
    now: datetime,
    started_at: datetime | None = None,
    category: FailureCategory | None = None,
    code: str = "",
) -> Outcome:
    """Retry, bury, snooze or cancel: what this exception makes of this run."""
    times = {"started_at": started_at, "finished_at": now}
    if isinstance(error, Snooze):
        return outcome(
            OutcomeKind.RELEASE, reservation, run_at=now + as_duration(error.delay), **times
        )
    category = category or category_of(error)
    if category == FailureCategory.CANCELLED:
        return outcome(OutcomeKind.CANCEL, reservation, **times)
    update = _update(error, reservation, category, code or _code(error), now)
    reason = _burial(error, category, task, update.attempts, reservation)
    if reason is not None:
        return outcome(OutcomeKind.FAIL, reservation, reason=reason, update=update, **times)
    run_at = now + _delay(error, task, update.attempts)
    return outcome(OutcomeKind.RETRY, reservation, update=replace(update, run_at=run_at), **times)


def outcome(kind: OutcomeKind, reservation: Reservation, **facts: Any) -> Outcome:
    """An outcome of this reservation."""
    lease, made = reservation.lease, object.__new__(Outcome)
    facts["job_id"], facts["kind"] = reservation.job.id, kind
    facts["token"], facts["version"] = lease.token, lease.version
    object.__setattr__(made, "__dict__", facts)
    return made


def lifetime_over(reservation: Reservation, now: datetime) -> Outcome:
    update = FailureUpdate(
        attempts=reservation.job.attempts,
        last_error=OVERDUE,
        failed_at=now,
        category=FailureCategory.SYSTEM,
    )
    return outcome(OutcomeKind.FAIL, reservation, reason=DeadReason.LIFETIME, update=update)


def handler_missing(reservation: Reservation, now: datetime) -> Outcome:
    """Give a job of an unknown task back, later each time; bury it after ten."""
    misses = reservation.job.handler_misses
    if misses + 1 < MAX_HANDLER_MISSES:
        run_at = now + FIRST_MISS * 2**misses
        return outcome(OutcomeKind.RELEASE, reservation, run_at=run_at, missed=True)
    update = FailureUpdate(
        attempts=reservation.job.attempts,
        last_error=f"No worker knows the task {reservation.job.task}.",
        failed_at=now,
        category=FailureCategory.SYSTEM,
    )
    return outcome(OutcomeKind.FAIL, reservation, reason=DeadReason.NO_HANDLER, update=update)


def _burial(
    error: BaseException,
    category: FailureCategory,
    task: Task[Any, Any] | None,
    attempts: int,
    reservation: Reservation,
) -> DeadReason | None:
    """Why the job is buried now, None when it is to be tried again."""
    wanted = task is not None and _matches(error, category, (TemporaryError, *task.retry_on))
    if task is not None and _matches(error, category, task.bury_on):
        return DeadReason.PERMANENT
    if category == FailureCategory.PERMANENT and not wanted:
        return DeadReason.PERMANENT
    if category == FailureCategory.TEMPORARY and task and task.retry_on and not wanted:
        return DeadReason.PERMANENT
    most = reservation.job.max_attempts or get_settings().max_attempts
    return DeadReason.EXHAUSTED if attempts >= most else None


def _matches(error: BaseException, category: str, wanted: Iterable[Any]) -> bool:
    return any(
        category == item if isinstance(item, str) else isinstance(error, item) for item in wanted
    )


def _delay(error: BaseException, task: Task[Any, Any] | None, attempts: int) -> timedelta:
    if isinstance(error, TemporaryError) and error.retry_after is not None:
        return as_duration(error.retry_after)
    policy: Backoff = (task.backoff if task else None) or get_settings().backoff
    try:
        return policy.delay(attempts)
    except ValueError as problem:  # a function of the project's, which raised or gave nonsense
        fault(logger, problem, "the backoff of a job cannot be used: the default is used instead")
        return Backoff().delay(attempts)


def _update(
    error: BaseException,
    reservation: Reservation,
    category: FailureCategory,
    code: str,
    now: datetime,
) -> FailureUpdate:
    settings = get_settings()
    return FailureUpdate(
        attempts=reservation.job.attempts + 1,
        last_error=shown(describe_exception(error), settings),
        failed_at=now,
        category=category,
        code=sanitise_text(code, CODE_MAX_CHARS),
        error_class=sanitise_text(type_name(type(error)), NAME_MAX_CHARS),
        traceback=traceback_of(error, settings),
    )


def _code(error: BaseException) -> str:
    """The code that an exception gives itself, whatever its class does when asked."""
    try:
        code = getattr(error, "code", None)
        return "" if code is None else str(code)
    except BaseException:  # noqa: BLE001  SystemExit too: it is the handler's, not ours
        return ""
