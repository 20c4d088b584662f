"""What a worker does right before it exits: settle what can be settled, and hold nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import Error as DatabaseTrouble

from ..drivers import DatabaseDriver
from ..lifecycle import OutcomeKind
from ..operations import decide
from ..operations.settle import settle
from ..values import Outcome
from .completer import Finished
from .holdings import Running

logger = logging.getLogger(__name__)

# A handler that will not stop goes on until its process is gone: nobody begins its job before.
# The last signals and the last log lines (LAST_LINES of runworker) have less than that together.
HEAD_START, LAST_SIGNALS = 2.0, 1.0


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
        refused = settle(driver, [outcome for _, outcome in left], now=now)
        emptied = {it.token for it, _ in left} - {it.outcome.token for it in refused}
        # To renew leases that cover nothing removes their rows, as no beat will.
        driver.extend_leases(emptied, now=now, lease_for=lease)
    except DatabaseTrouble:
        logger.warning(
            "%d jobs could not be settled or given back; their leases will expire", len(left)
        )
        return []
    lost = {(it.outcome.token, it.outcome.job_id) for it in refused if not it.repeated}
    return [(it, outcome) for it, outcome in left if (it.token, it.job_id) not in lost]
