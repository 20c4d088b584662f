"""
How a worker learns that there may be something to do: NOTIFY, and polling as the truth.

The listener has a connection of its own. Where it cannot listen (no PostgreSQL, a pooler that
shares sessions) nothing is lost but a part of a poll interval.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Set as AbstractSet
from typing import Any

from django.db import connections

from ..operations.notify import CHANNEL
from .lines import Lines
from .trouble import Pause

logger = logging.getLogger(__name__)

LISTEN_FOR = 5.0


class Wakeup:
    """An event with a listener behind it, if the database has one."""

    def __init__(self, using: str, lines: Lines, *, listen: bool) -> None:
        self._lines = lines
        self._event = threading.Event()
        self._names: deque[str] = deque()
        self._stopping = threading.Event()
        self._doubted = False
        self._listener: threading.Thread | None = None
        self._pause = Pause()
        if listen and connections[using].vendor == "postgresql":
            self._listener = threading.Thread(
                target=self._listen, args=(using,), name="taskharbor-listener", daemon=True
            )

    def start(self) -> None:
        if self._listener is not None:
            self._listener.start()

    def set(self) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for a call; True when one came."""
        called = self._event.wait(timeout)
        self._event.clear()
        return called

    def take_names(self) -> AbstractSet[str]:
        """The queues that somebody enqueued to since this was last asked; \"\" for any of them."""
        names = set()
        with contextlib.suppress(IndexError):
            while True:  # one by one: the listener adds meanwhile
                names.add(self._names.popleft())
        return names

    def doubt(self) -> None:
        """The database was away: a listener that hears nothing does not know, and listens anew."""
        self._doubted = True

    def close(self) -> None:
        self._stopping.set()

    def _listen(self, using: str) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(Exception):  # polling goes on; the next turn tries again
                self._listen_once(using)
            self._stopping.wait(self._pause.grow())

    def _listen_once(self, using: str) -> None:
        wrapper: Any = connections[using].copy()
        # Not one of a pool's: it is kept as long as it lasts.
        wrapper.settings_dict["OPTIONS"].pop("pool", None)
        self._doubted = False
        try:
            with self._lines.waiting(wrapper=wrapper):
                connection = self._connect(wrapper)
            self._pause.end()
            self._names.append("")  # what was sent before this is found by looking
            self._event.set()
            while not (self._stopping.is_set() or self._doubted):
                for notice in connection.notifies(timeout=LISTEN_FOR, stop_after=1):
                    self._names.append(notice.payload)
                    self._event.set()
        finally:
            if wrapper.connection is not None:
                wrapper.connection.close()

    def _connect(self, wrapper: Any) -> Any:
        wrapper.connection = wrapper.get_new_connection(wrapper.get_connection_params())
        wrapper.connection.autocommit = True
        wrapper.connection.execute(f"LISTEN {CHANNEL}")
        return wrapper.connection
