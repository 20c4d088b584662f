"""End the leases of processes that were seen to die, so that nobody waits until they expire."""

from __future__ import annotations

import logging
import queue
import threading

from django.db import Error as DatabaseTrouble

from ..operations.storage import driver_for
from ..operations.workers import stop_worker
from .lines import Lines
from .trouble import Trouble, disconnect

logger = logging.getLogger(__name__)

LAST_WORDS = 5.0


class LeaseEnder(threading.Thread):
    """A thread of the supervisor that tries again however long the database is away."""

    def __init__(self, using: str) -> None:
        super().__init__(name="taskharbor-lease-ender", daemon=True)
        self._using = using
        self._dead: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._left: set[str] = set()
        self._closing = threading.Event()
        self._trouble = Trouble("ending leases")
        self.lines = Lines(using)
        self._pause = 0.0

    @property
    def busy(self) -> bool:
        return bool(self._left)

    def end(self, worker: str) -> None:
        self._left.add(worker)
        self._dead.put(worker)

    def close(self) -> None:
        """Finish, but not for ever."""
        self._closing.set()
        self._dead.put("")
        self.join(LAST_WORDS)
        if self._left:
            logger.warning("dead workers whose leases are left to expire: %d", len(self._left))

    def run(self) -> None:
        while worker := self._dead.get():
            while not self._try(worker) and not self._closing.is_set():
                self._closing.wait(self._pause)
        disconnect(self._using)

    def _try(self, worker: str) -> bool:
        driver = driver_for(self._using)
        try:
            with self.lines.waiting():
                now = driver.now()
                ended = driver.expire_leases(worker, now=now)
                stop_worker(driver, worker, now=now)
        except DatabaseTrouble as error:
            disconnect(self._using)
            self._pause = self._trouble.began(error)
            return False
        self._trouble.ended()
        self._left.discard(worker)
        facts = {"worker": worker, "leases": ended}
        logger.info("leases ended of the dead worker %s: %d", worker[:8], ended, extra=facts)
        return True
