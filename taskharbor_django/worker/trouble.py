"""A database that is away: a growing pause, and one log line for each change."""

from __future__ import annotations

import contextlib
import logging
from datetime import timedelta

from django.db import Error as DatabaseTrouble
from django.db import connections

from ..backoff import Backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
JITTER = 0.25


class Pause:
    """How long to leave alone what has failed: longer each time, until it goes well again."""

    def __init__(self, longest: float = LONGEST_PAUSE, *, jitter: float = JITTER) -> None:
        first, most = timedelta(seconds=FIRST_PAUSE), timedelta(seconds=longest)
        self._backoff = Backoff(initial=first, maximum=most, jitter=jitter)
        self._failures = 0
        self.seconds = 0.0

    def grow(self) -> float:
        """Note a failure; return how long to pause."""
        self._failures += 1
        self.seconds = self._backoff.delay(self._failures).total_seconds()
        return self.seconds

    def end(self) -> None:
        """Note a success."""
        self._failures, self.seconds = 0, 0.0


class Trouble:
    """Knows whether one part of the worker is cut off, and how long to leave it alone."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._pause = Pause()

    @property
    def lasts(self) -> bool:
        return self._pause.seconds > 0

    def began(self, error: BaseException) -> float:
        """Note a failure; return how long to pause."""
        with contextlib.suppress(Exception):  # a part that tries again must not end by its log
            self._tell(error)
        return self._pause.grow()

    def ended(self) -> bool:
        """Note a success; say whether it is the first one after a failure."""
        if not self.lasts:
            return False
        self._pause.end()
        with contextlib.suppress(Exception):
            logger.info("%s: the database is back", self._part, extra={"part": self._part})
        return True

    def _tell(self, error: BaseException) -> None:
        if not isinstance(error, DatabaseTrouble):
            logger.error("%s failed, trying again", self._part, exc_info=error)
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
        log.error(text, *facts, exc_info=error)


def disconnect(using: str) -> None:
    """Forget this thread's connection; the next query opens another."""
    with contextlib.suppress(Exception):  # a connection that is broken may fail to close, too
        connections[using].close()
