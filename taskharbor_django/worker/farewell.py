"""
How a supervised process says that it ends well, and that isolated children outlive it.

No exit code can say it: a handler may call `os._exit` with any. So each process has the writing end
of a pipe of its own. It says goodbye there when it holds nothing any more; one that ended without
has died. It also says that it starts a guard (guard.py), which then has that end too and says when
the children are gone: as long as they are not, their jobs are theirs to give back.
"""

from __future__ import annotations

import contextlib
import os

from ..clock import steady
from .guard import CHILDREN_GONE, PATIENCE

FINISHED = b"f"  # goodbye: it was told to stop, or nothing is left to do
MAKES_WAY = b"m"  # goodbye: it wants a new process in its place
GUARDED = b"g"

MOST = PATIENCE + 1.0  # the guard kills them after its own; one that was killed says nothing


def say(word: bytes, farewell: int | None) -> None:
    """Say it to the supervisor, if there is one."""
    if farewell is not None:
        with contextlib.suppress(OSError):  # it is gone
            os.write(farewell, word)


class Farewell:
    """The supervisor's end of the pipe; asked when the process has ended, and never waited for."""

    def __init__(self, reading: int) -> None:
        os.set_blocking(reading, False)
        self._reading = reading
        self._said = b""
        self._until: float | None = None

    def goodbye(self) -> bytes:
        """FINISHED or MAKES_WAY; nothing when the process has died."""
        self._hear()
        words = [word for word in (FINISHED, MAKES_WAY) if word in self._said]
        return max(words, key=self._said.rfind, default=b"")

    def is_over(self) -> bool:
        """Look whether the children of a process that died are gone, too, or out of time."""
        self._until = self._until or steady() + MOST
        all_gone = self._hear()
        # Not by the end of the pipe alone: what a handler has forked may hold it open for ever.
        guarded = self._said.rfind(GUARDED) > self._said.rfind(CHILDREN_GONE)
        return all_gone or not guarded or steady() >= self._until

    def close(self) -> None:
        os.close(self._reading)

    def _hear(self) -> bool:
        """Take what was said meanwhile; True when there is nobody left who could say more."""
        with contextlib.suppress(BlockingIOError):
            while said := os.read(self._reading, 1024):
                self._said += said
            return True
        return False
