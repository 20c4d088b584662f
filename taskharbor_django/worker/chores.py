"""
What one worker does for all of them, now and then: bury the overdue, remove the old.

On a thread of its own, with a connection only while there is work, and with a rest after each batch
that is longer than the batch: chores must not be felt by jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from random import uniform

from ..clock import Clock, steady
from ..drivers import DatabaseDriver
from ..operations.chores import claim_chore, finish_chore
from ..operations.expire import expire
from ..operations.prune import prune
from .lines import Lines
from .trouble import Trouble, disconnect

LOOK_EACH = 60.0
EACH = timedelta(minutes=10)
CLAIMED_FOR = timedelta(minutes=3)
AT_A_TIME = 60.0
# Times as long as the batch before it. With 2, a busy worker on two cores kept 89 % of its rate
# (97 % by the median of 20 windows) while it pruned 1,800 jobs a second, more than it did.
REST = 2.0

Work = Callable[[], Iterable[object]]


class Chores(threading.Thread):
    def __init__(self, driver: DatabaseDriver, clock: Clock, lines: Lines, worker: str) -> None:
        super().__init__(name="taskharbor-chores", daemon=True)
        self._driver = driver
        self._clock = clock
        self._lines = lines
        self._worker = worker
        self._stopping = threading.Event()
        self._trouble = Trouble("chores")
        self._chores: dict[str, Work] = {
            "expire": lambda: expire(driver, now=clock.now()),
            "prune": lambda: prune(driver, now=clock.now()),
        }

    def close(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        # Workers that were started together do not look together.
        while not self._stopping.wait(LOOK_EACH * uniform(0.5, 1)):  # noqa: S311  no secret
            try:
                while self.turn() and not self._stopping.is_set():
                    pass
                self._trouble.ended()
            except Exception as error:  # noqa: BLE001  the next look may go through
                self._trouble.began(error)
            finally:
                disconnect(self._driver.using)

    def turn(self) -> bool:
        """Do what is due, for a while; True when something is left to do."""
        left = [self._do(name, work) for name, work in self._chores.items()]
        return any(left)

    def _do(self, name: str, work: Work) -> bool:
        now, mine = self._clock.now(), {"worker": self._worker}
        with self._lines.waiting():
            if not claim_chore(self._driver, name, now=now, until=now + CLAIMED_FOR, **mine):
                return False
        finished = self._batches(work())
        now = self._clock.now()
        next_at = now + EACH if finished else now
        with self._lines.waiting():
            finish_chore(self._driver, name, now=now, next_at=next_at, **mine)
        return not finished

    def _batches(self, batches: Iterable[object]) -> bool:
        """Work through it with rests; False when time ran out before the end."""
        until, each = steady() + AT_A_TIME, iter(batches)
        while True:
            before = steady()
            with self._lines.waiting():
                if next(each, None) is None:
                    return True
            if self._stopping.wait((steady() - before) * REST) or steady() > until:
                return False
