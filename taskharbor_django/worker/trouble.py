"""A database that is away: a growing pause, and one log line for each change."""

from __future__ import annotations

import contextlib
import logging
import random

from django.db import Error as DatabaseTrouble
from django.db import connections

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


class Trouble:
    """Knows whether one part of the worker is cut off, and how long to leave it alone."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._pause = 0.0

    @property
    def lasts(self) -> bool:
        return self._pause > 0

    def began(self, error: BaseException) -> float:
        """Note a failure; return how long to pause."""
        with contextlib.suppress(Exception):  # a part that tries again must not end by its log
            self._tell(error)
        self._pause = min(max(FIRST_PAUSE, self._pause * 2), LONGEST_PAUSE)
        jitter = random.uniform(0.75, 1.25)  # noqa: S311  not a secret
        return min(self._pause * jitter, LONGEST_PAUSE)

    def ended(self) -> bool:
        """Note a success; say whether it is the first one after a failure."""
        if not self.lasts:
            return False
        self._pause = 0.0
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
