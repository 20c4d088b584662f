"""
settle: inflight -> done | scheduled | ready | dead | cancelled, as workers report; one outcome
never stops the others.

Locks, fence and repeat are the driver's; see drivers/settling.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from django.db import Error as DatabaseTrouble

from ..drivers import Driver
from ..drivers.transient import is_bad_data
from ..exceptions import NotSettled
from ..lifecycle import DeadReason, FailureCategory, OutcomeKind
from ..values import FailureUpdate, Outcome, Rejection
from .logs import fault

logger = logging.getLogger(__name__)

REFUSED = "The database refused to store the outcome of this job ({kind})."


def settle(driver: Driver, outcomes: Sequence[Outcome], *, now: datetime) -> list[Rejection]:
    """
    Settle a batch; one that raises is halved until the outcome that does is alone.

    Refused for its data, that one becomes a plain failure. Anything else that it raises, a fault in
    what is told of its end, is its rejection. Trouble with the database itself is raised.
    """
    try:
        return driver.settle(outcomes, now=now)
    except Exception as error:
        if _is_trouble(error):
            raise
        if len(outcomes) > 1:
            middle = len(outcomes) // 2
            first = settle(driver, outcomes[:middle], now=now)
            return first + settle(driver, outcomes[middle:], now=now)
        return _settle_alone(driver, outcomes[0], error, now)


def _is_trouble(error: Exception) -> bool:
    return isinstance(error, DatabaseTrouble) and not is_bad_data(error)


def _settle_alone(
    driver: Driver, outcome: Outcome, error: Exception, now: datetime
) -> list[Rejection]:
    """What becomes of the outcome that raised this; whatever it is, the others go on."""
    told = {"job_id": str(outcome.job_id)}
    if not is_bad_data(error):
        fault(logger, error, "job %s cannot be settled yet", outcome.job_id, **told)
        return [Rejection(outcome, NotSettled())]
    try:
        return driver.settle([_plain_failure(outcome, error, now)], now=now)
    except Exception as again:
        if _is_trouble(again):
            raise
        # No more than its name: the database's text would show the row with its payload.
        text = "job %s cannot be settled, nor buried: %s"
        logger.error(text, outcome.job_id, type(again).__name__, extra=told)  # noqa: TRY400  a line, not a traceback
        return [Rejection(outcome, NotSettled())]


def _plain_failure(outcome: Outcome, error: Exception, now: datetime) -> Outcome:
    """The same end without the data that was refused: running it again would not help."""
    attempts = outcome.update.attempts if outcome.update else 1
    update = FailureUpdate(
        attempts=attempts,
        last_error=REFUSED.format(kind=type(error).__name__),
        failed_at=now,
        category=FailureCategory.SYSTEM,
        code="outcome",
        error_class=type(error).__name__,
    )
    return replace(
        outcome,
        kind=OutcomeKind.FAIL,
        reason=DeadReason.PERMANENT,
        update=update,
        result=None,
        run_at=None,
    )
