"""
Signals of a worker, sent by a thread of their own: a receiver that is slow, or does not return,
holds up neither outcomes nor reserving.

There is no thread before somebody listens. Of what receivers do not keep up with some is left out,
and the log says how much.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import Error as DatabaseTrouble
from django.db import connections as django_connections

from .. import signals
from ..drivers import DatabaseDriver
from ..lifecycle import JobState, Verb
from ..operations.telling import Settled, moves_of, outcomes_wanted
from ..signals import Move
from . import connections
from .errands import Errands
from .trouble import Trouble, disconnect, tell_fault

if TYPE_CHECKING:
    from .completer import Finished
    from .holdings import Running

logger = logging.getLogger(__name__)


class Announcer:
    def __init__(self, driver: DatabaseDriver, worker: str) -> None:
        self._driver = driver
        self._worker = worker
        self._errands = Errands("taskharbor-announcer", on_left_out=_tell_left_out)
        self._trouble = Trouble("signals")
        self._closing = threading.Event()

    # -- from the other threads ------------------------------------------------------------------

    def settled(self, finished: Sequence[Finished], *, now: datetime) -> None:
        if finished and outcomes_wanted():
            pairs = [Settled(it.reservation, outcome, it.error) for it, outcome in finished]
            self._put(lambda: signals.tell(self._moves_of(pairs, now)), len(pairs))

    def _moves_of(self, pairs: Sequence[Settled], now: datetime) -> list[Move]:
        """Ask what became of them, again while the database is away: who listens waits, too."""
        while True:
            try:
                moves = moves_of(self._driver, pairs, now=now)
            except DatabaseTrouble as error:
                disconnect(self._driver.using)
                if self._closing.wait(self._trouble.began(error)):
                    _tell_left_out(len(pairs))
                    return []
            else:
                self._trouble.ended()
                return moves

    def reserved(self, taken: Sequence[Running]) -> None:
        if signals.reserved.wanted:
            self.put([self._reserved(running) for running in taken])

    def put(self, moves: Sequence[Move]) -> None:
        self._put(lambda: signals.tell(moves), len(moves))

    def _reserved(self, running: Running) -> Move:
        job = running.reservation.job
        return Move(
            verb=Verb.RESERVE,
            job_id=job.id,
            task=job.task,
            queue=job.queue,
            using=self._driver.using,
            state=JobState.INFLIGHT.value,
            attempt=job.executions,
            worker=self._worker,
        )

    def _put(self, telling: Callable[[], object], count: int) -> None:
        if not self._errands.put(lambda: _tell(telling), count):
            logger.warning("receivers of signals are too slow: some are not called any more")

    def close(self, patience: float) -> None:
        """Send what waits, as far as receivers and the database let it."""
        self._closing.set()
        self._errands.close(patience)


def _tell(telling: Callable[[], object]) -> None:
    try:
        telling()
        connections.clean()
    except BaseException as error:  # noqa: BLE001  SystemExit of a receiver, too
        tell_fault(logger, error, "signals could not be sent")
        django_connections.close_all()


def _tell_left_out(moves: int) -> None:
    logger.warning("receivers were not called for %d moves", moves)
