"""
How long a part of the worker waits for its database, and what ends the waiting.

A server can be gone without a word: its machine is lost, a box in between forgets the connection,
its processes are stopped. It then answers nothing and closes nothing, and no time limit of a
statement helps, for it is the server that would have to keep it. So each part says how long it
waits. A connection that is silent for longer is cut from this side: the part sees an error,
connects anew and tries again. What had been sent may still be done, late; every verb of the
worker bears that.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from django.db import Error as DatabaseTrouble
from django.db import OperationalError, connections

from ..clock import steady
from ..drivers.ground import bound_connecting
from .connections import shut_socket
from .trouble import Trouble, disconnect

SHORTEST, LONGEST = 5.0, 30.0  # a busy server must not be taken for a silent one
MOST_DOUBLINGS = 3
CONNECT = 10
NETWORKED = frozenset({"postgresql", "mysql"})


class Wait:
    """One thread that waits for a database."""

    __slots__ = ("is_cut", "until", "wrapper")

    def __init__(self, wrapper: Any, until: float) -> None:
        self.wrapper = wrapper
        self.until = until
        self.is_cut = False


class Lines:
    """Who waits for the database, and until when; `cut_silent` is to be called again and again."""

    def __init__(self, using: str, silent_for: float = LONGEST) -> None:
        self._using = using
        self._silent_for = silent_for
        self._lock = threading.Lock()
        self._waits: dict[int, Wait] = {}
        self._cuts: Counter[int] = Counter()

    @contextlib.contextmanager
    def waiting(self, share: float = 1.0, *, wrapper: Any = None) -> Iterator[None]:
        """Let this thread wait only so long for its answers; longer after it was cut off."""
        me = threading.get_ident()
        if me in self._waits:  # what calls this waits already, for no longer than it wants
            yield
            return
        wrapper = connections[self._using] if wrapper is None else wrapper
        seconds = min(max(self._silent_for * share, SHORTEST), LONGEST)
        if wrapper.connection is None and wrapper.vendor in NETWORKED:
            bound_connecting(wrapper, {"connect_timeout": min(CONNECT, int(seconds))})
        # Or a statement that rightly takes long would never come to its end.
        seconds *= 2 ** min(self._cuts[me], MOST_DOUBLINGS)
        wait = self._waits[me] = Wait(wrapper, steady() + seconds)
        try:
            yield
        except Exception as error:
            with self._lock:  # who cuts it is still at it when this thread wakes up
                is_cut = wait.is_cut
            if is_cut:
                self._cuts[me] += 1
                text = f"no answer in {seconds:.0f} s, the connection was cut"
                raise OperationalError(text) from error
            raise
        else:
            self._cuts[me] = max(0, self._cuts[me] - 1)
        finally:
            with self._lock:  # it is not cut any more from here on
                del self._waits[me]

    def connect(
        self, trouble: Trouble, *, wait: Callable[[float], object], over: Callable[[], bool]
    ) -> None:
        """Open this thread's connection, however long that takes; give up when all is over."""
        while not over():
            try:
                with self.waiting():
                    connections[self._using].ensure_connection()
            except DatabaseTrouble as error:
                disconnect(self._using)
                wait(trouble.began(error))
            else:
                trouble.ended()
                return

    def cut_silent(self) -> None:
        """Cut the connections of those whose time is up; also another one that they have opened."""
        now = steady()
        with self._lock:
            for wait in list(self._waits.values()):
                if wait.until <= now:
                    wait.is_cut = cut(wait.wrapper) or wait.is_cut


def cut(wrapper: Any) -> bool:
    """Shut the connection's socket, under whoever waits for it; False when there is none."""
    if wrapper.vendor not in NETWORKED or wrapper.connection is None:
        return False  # while it connects, the time limit of connecting holds
    with contextlib.suppress(Exception):  # closed just now
        shut_socket(wrapper)
        return True
    return False
