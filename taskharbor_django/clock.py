"""What time it is. Decisions take `now` as an argument; these are what gives it to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

SLOW, TRIES = 0.25, 3

# Runs on while the machine sleeps, where there is such a clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds that no one sets back, counting those in suspend."""
    return time.clock_gettime(_STEADY)


_pretended: Callable[[], datetime | None] | None = None


def pretend(now: Callable[[], datetime | None]) -> None:
    """For tests: ask this for the time; None stands for the real one."""
    global _pretended  # noqa: PLW0603  one for the process
    _pretended = now


def pretended() -> datetime | None:
    """The time that a test is at; None in earnest."""
    return None if _pretended is None else _pretended()


class Clock(Protocol):
    def now(self) -> datetime: ...


class LocalClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class FixedClock:
    """A clock for tests: stands still until it is moved."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def move(self, duration: timedelta) -> None:
        self._now += duration


class DatabaseClock:
    """
    The database's time, kept between two answers of it by this machine's steady clock.

    A local clock that is an hour off, or is being set, changes nothing.
    """

    def __init__(self, ask: Callable[[], datetime]) -> None:
        self._ask = ask
        self._offset: float | None = None  # of its time, in seconds of the epoch

    def now(self) -> datetime:
        """The time as last learnt, carried on; asks when nothing was learnt yet."""
        if self._offset is None:
            self.measure()
            return self.now()
        return datetime.fromtimestamp(steady() + self._offset, UTC)

    def measure(self) -> None:
        """Ask the database now, and again when the answer took too long to say when it was true."""
        for _ in range(TRIES):
            before = steady()
            told = self._ask()
            received = steady()
            if received - before < SLOW:  # the first question may have had to connect, or to wait
                break
        self.learn(told, before, received)

    def learn(self, told: datetime, sent: float, received: float) -> None:
        """Take over a time that came with an answer; it was true between those two instants."""
        self._offset = told.timestamp() - (sent + received) / 2
