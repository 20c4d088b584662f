"""
How a worker learns that there may be something to do: NOTIFY, and polling as the truth.

The listener has a connection of its own. Where it cannot listen (no PostgreSQL, a pooler that
shares sessions) nothing is lost but a part of a poll interval.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

from django.db import connections

from ..operations.notify import CHANNEL

logger = logging.getLogger(__name__)

LISTEN_FOR = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


class Wakeup:
    """An event with a listener behind it, if the database has one."""

    def __init__(self, using: str, *, listen: bool) -> None:
        self._event = threading.Event()
        self._stopping = threading.Event()
        self._listener: threading.Thread | None = None
        self._pause = FIRST_PAUSE
        if listen and connections[using].vendor == "postgresql":
            self._listener = threading.Thread(
                target=self._listen, args=(using,), name="taskharbor-listener", daemon=True
            )

    def start(self) -> None:
        if self._listener is not None:
            self._listener.start()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float) -> bool:
        """Wait for a call; True when one came."""
        called = self._event.wait(timeout)
        self._event.clear()
        return called

    def close(self) -> None:
        self._stopping.set()

    def _listen(self, using: str) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(Exception):  # polling goes on; the next turn tries again
                self._listen_once(using)
            self._stopping.wait(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _listen_once(self, using: str) -> None:
        wrapper = connections[using].copy()
        # Not one of a pool's: it is kept as long as it lasts.
        wrapper.settings_dict["OPTIONS"].pop("pool", None)
        connection: Any = wrapper.get_new_connection(wrapper.get_connection_params())
        try:
            connection.autocommit = True
            connection.execute(f"LISTEN {CHANNEL}")
            self._pause = FIRST_PAUSE
            self._event.set()  # what was sent before this is found by looking
            while not self._stopping.is_set():
                for _ in connection.notifies(timeout=LISTEN_FOR, stop_after=1):
                    self._event.set()
        finally:
            connection.close()
