"""Where a pool keeps what is reserved and finds no slot yet."""

from __future__ import annotations

import contextlib
from collections import deque

from ..clock import steady
from .holdings import Running


class WaitingLine(deque[Running]):
    """Filled by the worker's loop, drawn from by the slots meanwhile."""

    def oldest_wait(self) -> float:
        try:
            return steady() - self[0].reserved
        except IndexError:
            return 0.0

    def take_back(self) -> list[Running]:
        """Take out everything, none of which has started."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:  # one by one: slots draw from it meanwhile
                taken.append(self.popleft())
        return taken
