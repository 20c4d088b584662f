"""
Signals of a worker, sent by a thread of their own: a receiver that is slow, or does not return,
holds up neither outcomes nor reserving.

There is no thread before somebody listens. What receivers do not keep up with is left out, and the
log says how much.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import connections as django_connections

from .. import signals
from ..clock import steady
from ..drivers import DatabaseDriver
from ..lifecycle import JobState, Verb
from ..operations.telling import Settled, outcomes_wanted, tell_settled
from ..signals import Move
from . import connections

if TYPE_CHECKING:
    from .completer import Finished
    from .holdings import Running

logger = logging.getLogger(__name__)

MOST_BATCHES = 10_000


class Announcer:
    def __init__(self, driver: DatabaseDriver, worker: str) -> None:
        self._driver = driver
        self._worker = worker
        self._line: queue.Queue[Callable[[], object] | None] = queue.Queue(MOST_BATCHES)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._left_out = 0

    # -- from the other threads ------------------------------------------------------------------

    def settled(self, finished: Sequence[Finished], *, now: datetime) -> None:
        if finished and outcomes_wanted():
            pairs = [Settled(it.reservation, outcome, it.error) for it, outcome in finished]
            self._put(lambda: tell_settled(self._driver, pairs, now=now), len(pairs))

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
        if self._thread is None:
            self._start()
        try:
            self._line.put_nowait(telling)
        except queue.Full:
            if not self._left_out:
                logger.warning("receivers of signals are too slow: some are not called any more")
            self._left_out += count

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="taskharbor-announcer", daemon=True
                )
                self._thread.start()

    def close(self, patience: float) -> None:
        """Send what waits, as far as receivers let it."""
        if self._thread is None:
            return
        until = steady() + patience
        try:
            self._line.put(None, timeout=patience)
        except queue.Full:
            return
        self._thread.join(max(0.0, until - steady()))

    # -- in its thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while (telling := self._line.get()) is not None:
            try:
                telling()
                connections.clean()
            except Exception:
                logger.exception("signals could not be sent")
                django_connections.close_all()
            if self._left_out and self._line.empty():
                logger.warning("receivers were not called for %d moves", self._left_out)
                self._left_out = 0
        django_connections.close_all()
