"""A database that is away: a growing pause, and one log line for each change."""

from __future__ import annotations

import contextlib
import logging
from datetime import timedelta

from django.db import Error as DatabaseTrouble
from django.db import connections

from ..backoff import Backoff
from ..clock import steady
from ..operations.logs import fault

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
JITTER = 0.25
WELL_FOR = 5.0  # so long it has to go well until what failed before counts no more


class Pause:
    """
    How long to leave alone what has failed: longer each time, until it goes well for a while.

    The first success ends the pause and not the count. A disk that is nearly full lets one write
    through and not the next; each of them would else begin with the shortest pause.
    """

    def __init__(self, longest: float = LONGEST_PAUSE, *, jitter: float = JITTER) -> None:
        first, most = timedelta(seconds=FIRST_PAUSE), timedelta(seconds=longest)
        self._backoff = Backoff(initial=first, maximum=most, jitter=jitter)
        self._count = 0
        self._until = self._well_since = 0.0  # by the steady clock
        self.seconds = 0.0

    @property
    def failures(self) -> int:
        """How many there were, the latest flaps included; 0 while it goes well."""
        return self._count if self.seconds else 0

    @property
    def left(self) -> float:
        """
        For how long nobody is to be heard who calls before the time.

        After the first failure everybody is: it may have been one session's alone.
        """
        return max(0.0, self._until - steady()) if self.failures > 1 else 0.0

    def grow(self) -> float:
        """Note a failure; return how long to pause."""
        if not self.seconds and steady() - self._well_since >= WELL_FOR:
            self._count = 0
        self._count += 1
        self.seconds = self._backoff.delay(self._count).total_seconds()
        self._until = steady() + self.seconds
        return self.seconds

    def cut_short(self) -> None:
        """Something else went well: it is worth another try now."""
        self._until = 0.0

    def end(self) -> None:
        """Note a success."""
        if self.seconds:
            self.seconds, self._well_since = 0.0, steady()

    def forget(self) -> None:
        """Note that all is well, and has been for long enough."""
        self._count, self.seconds = 0, 0.0


class Trouble:
    """Knows whether one part of the worker is cut off, and how long to leave it alone."""

    def __init__(self, part: str) -> None:
        self._part = part
        self.pause = Pause()

    @property
    def lasts(self) -> bool:
        return self.pause.seconds > 0

    def began(self, error: BaseException) -> float:
        """Note a failure; return how long to pause."""
        with contextlib.suppress(Exception):  # a part that tries again must not end by its log
            self._tell(error)
        return self.pause.grow()

    def ended(self) -> bool:
        """Note a success; say whether it is the first one after a failure."""
        if not self.lasts:
            return False
        self.pause.end()
        with contextlib.suppress(Exception):
            logger.info("%s: the database is back", self._part, extra={"part": self._part})
        return True

    def _tell(self, error: BaseException) -> None:
        if not isinstance(error, DatabaseTrouble):
            fault(logger, error, "%s failed, trying again", self._part)
        elif not self.lasts:
            text = " ".join(str(error).split())
            logger.warning(
                "%s: the database cannot be used, trying again: %s",
                self._part,
                text,
                extra={"part": self._part, "error": text},
            )


def tell_fault(log: logging.Logger, error: BaseException, text: str, *facts: object) -> None:
    """Log what was raised; a filter or handler that raises in its turn ends no thread."""
    with contextlib.suppress(Exception):
        fault(log, error, text, *facts)


def disconnect(using: str) -> None:
    """Forget this thread's connection; the next query opens another."""
    with contextlib.suppress(Exception):  # a connection that is broken may fail to close, too
        connections[using].close()
