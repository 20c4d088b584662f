"""
settle: apply what workers report, and never let one outcome stop the others.

Locks, fence and repeat are the driver's; see drivers/settling.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from ..drivers import Driver
from ..drivers.transient import is_bad_data
from ..lifecycle import DeadReason, FailureCategory, OutcomeKind
from ..values import FailureUpdate, Outcome, Rejection

REFUSED = "The database refused to store the outcome of this job ({kind})."


def settle(driver: Driver, outcomes: Sequence[Outcome], *, now: datetime) -> list[Rejection]:
    """Settle a batch; one that is refused for its data is halved until the bad outcome is alone."""
    try:
        return driver.settle(outcomes, now=now)
    except Exception as error:
        if not is_bad_data(error):
            raise
        if len(outcomes) > 1:
            middle = len(outcomes) // 2
            first = settle(driver, outcomes[:middle], now=now)
            return first + settle(driver, outcomes[middle:], now=now)
        return driver.settle([_plain_failure(outcomes[0], error, now)], now=now)


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
