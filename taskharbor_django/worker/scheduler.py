"""
The part of the loop that ticks: schedules become jobs.

An idle process asks one question each few seconds; the time it learns of is kept, so that a slot
is not late by that.
"""

from __future__ import annotations

from datetime import datetime
from random import uniform

from ..clock import Clock, steady
from ..drivers import DatabaseDriver
from ..operations.schedules import put_in_step
from ..operations.tick import BATCH, first_due, tick
from .lines import Lines
from .trouble import Trouble, disconnect

LOOK_EACH = 5.0
SOONEST = 0.05


class Scheduler:
    def __init__(
        self, driver: DatabaseDriver, clock: Clock, lines: Lines, *, takes_part: bool
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._lines = lines
        self._takes_part = takes_part
        self._look_at = 0.0  # by the steady clock
        self._trouble = Trouble("schedules")

    def start(self) -> None:
        """Put the rows in step with the code of this process."""
        if self._takes_part:
            put_in_step(self._driver)

    def turn(self) -> None:
        """Tick if it is time to; a database that is away is asked again later."""
        if not self._takes_part or steady() < self._look_at:
            return
        try:
            with self._lines.waiting():
                self._look_at = steady() + self._look()
        except Exception as error:  # noqa: BLE001  a worker outlives whatever it is
            disconnect(self._driver.using)
            self._look_at = steady() + self._trouble.began(error)
        else:
            self._trouble.ended()

    def within(self, pause: float) -> float:
        """No longer than until the next look."""
        if not self._takes_part:
            return pause
        return max(SOONEST, min(pause, self._look_at - steady()))

    def _look(self) -> float:
        """Tick what is due; return how long nothing is."""
        first = first_due(self._driver)
        if first is None or first > self._clock.now():
            return self._until(first)
        if tick(self._driver, now=self._clock.now()) == BATCH:
            return 0.0
        first = first_due(self._driver)
        # What is due still is locked by another process, or for one that knows its task.
        return self._until(first if first is not None and first > self._clock.now() else None)

    def _until(self, first: datetime | None) -> float:
        look_each = LOOK_EACH * uniform(0.75, 1.25)  # noqa: S311  jitter, not a secret
        if first is None:
            return look_each
        return min(look_each, max(0.0, (first - self._clock.now()).total_seconds()))
