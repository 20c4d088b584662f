"""What a worker does right before it exits: settle what can be settled, and hold nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import Error as DatabaseTrouble

from ..clock import steady
from ..drivers import DatabaseDriver
from ..exceptions import JobLocked
from ..lifecycle import OutcomeKind
from ..operations import decide
from ..operations.settle import settle
from ..values import Outcome, Rejection
from .completer import LOCKED_PAUSE, Finished
from .holdings import Running

logger = logging.getLogger(__name__)

# A handler that will not stop goes on until its process is gone: nobody begins its job before.
# The last signals and log lines (LAST_LINES of runworker) have less than that together, and so has
# the wait for rows that others have locked, which is longer than a page or an action takes.
HEAD_START, LAST_SIGNALS, LOCKED_FOR = 3.0, 1.0, 1.0


def released(running: Running, run_at: datetime) -> Outcome:
    """The outcome that gives a job back, to be run from then on."""
    return decide.outcome(
        OutcomeKind.RELEASE, running.reservation, started_at=running.started_at, run_at=run_at
    )


def settle_rest(
    driver: DatabaseDriver, left: Sequence[Finished], *, now: datetime, lease: timedelta
) -> list[Finished]:
    """Settle what could not be settled before; return what was."""
    if not left:
        return []
    try:
        refused = _settle(driver, [outcome for _, outcome in left], now)
        emptied = {it.token for it, _ in left} - {it.outcome.token for it in refused}
        # To renew leases that cover nothing removes their rows, as no beat will.
        driver.extend_leases(emptied, now=now, lease_for=lease)
    except DatabaseTrouble:
        logger.warning(
            "%d jobs could not be settled or given back; their leases will expire", len(left)
        )
        return []
    if locked := sum(map(_is_locked, refused)):
        logger.warning("%d jobs are locked by others; their leases will expire", locked)
    lost = {(it.outcome.token, it.outcome.job_id) for it in refused if not it.repeated}
    return [(it, outcome) for it, outcome in left if (it.token, it.job_id) not in lost]


def _settle(driver: DatabaseDriver, left: list[Outcome], now: datetime) -> list[Rejection]:
    """Settle these; what is locked again and again for a moment, for there is no later."""
    refused = settle(driver, left, now=now)
    until = steady() + LOCKED_FOR
    while steady() < until and (locked := [it for it in refused if _is_locked(it)]):
        time.sleep(LOCKED_PAUSE)
        others = [it for it in refused if not _is_locked(it)]
        refused = others + settle(driver, [it.outcome for it in locked], now=now)
    return refused


def _is_locked(rejection: Rejection) -> bool:
    return isinstance(rejection.error, JobLocked)
