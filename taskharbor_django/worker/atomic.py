"""
Atomic tasks: the handler's writes and the ack commit together, or not at all.

Locks:  the job's own row, waited for with a time limit, at the end of the handler.
Fence:  as in settle; a stale lease rolls the handler's writes back.
Repeat: a commit whose reply was lost is found out by the retry that follows: a job that is done by
        this token refuses it as repeated.
"""

from __future__ import annotations

from functools import partial

from ..clock import Clock
from ..drivers import DatabaseDriver
from ..failpoints import reach
from ..lifecycle import OutcomeKind
from ..operations import decide
from ..operations.additions import add
from ..operations.storage import driver_for
from ..values import Outcome
from . import executor
from .executor import Prepared
from .holdings import Running
from .interrupts import Interruptible


class NotMine(Exception):
    """Rolls the handler's writes back: its job cannot be acked."""


def _add(driver: DatabaseDriver, running: Running) -> None:
    """Store what the handler has added to its workflow, in its own transaction."""
    for asked in running.context.additions if running.context else ():
        add(driver, running.reservation, asked)


def run_atomic(
    using: str, running: Running, prepared: Prepared, clock: Clock, stretch: Interruptible
) -> Outcome:
    """Run handler and ack in one transaction; `running.settled` says that the ack is done."""
    driver = driver_for(using)
    try:
        with driver.atomic():
            value = executor.call(prepared, running.context)
            stretch.leave()
            reach("atomic.called")
            outcome = executor.finished(prepared, running.reservation, value, clock.now())
            also = partial(_add, driver, running)
            if driver.settle_waiting(outcome, now=clock.now(), also=also):
                raise NotMine  # noqa: TRY301  on its way out it undoes the transaction
            reach("atomic.settled")
    except NotMine:
        # Nothing of the run is left, so nothing is charged; if the lease is lost, neither is this.
        started_at = prepared.started_at
        return decide.outcome(OutcomeKind.RELEASE, running.reservation, started_at=started_at)
    running.settled = True
    return outcome
