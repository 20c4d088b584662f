"""Django's connections around jobs: clean at the start, and cut off when a thread will not stop."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

from django.db import connections, reset_queries
from django.db.backends.signals import connection_created


def clean() -> None:
    """
    Leave nothing of one job to the next: no open transaction, no dead or outdated connection.

    Looks only at connections that this thread has; a task that uses none costs none.
    """
    for connection in connections.all(initialized_only=True):
        if connection.connection is None and not connection.in_atomic_block:
            continue  # to ask for its autocommit would open it
        if connection.in_atomic_block or not connection.get_autocommit():
            # In this order: inside a transaction close() would keep what it has closed.
            connection.in_atomic_block = False
            connection.close()
        else:
            connection.close_if_unusable_or_obsolete()
    reset_queries()


class Opened:
    """Which thread opened which connections, so that those of a lost thread can be cut."""

    def __init__(self) -> None:
        self._by_thread: dict[int, list[Any]] = {}

    def watch(self) -> None:
        connection_created.connect(self._note, dispatch_uid=f"taskharbor-{id(self)}", weak=False)

    def unwatch(self) -> None:
        connection_created.disconnect(dispatch_uid=f"taskharbor-{id(self)}")

    def _note(self, connection: Any, **_: Any) -> None:
        mine = self._by_thread.setdefault(threading.get_ident(), [])
        mine[:] = [known for known in mine if known is not connection] + [connection]

    def cut(self, thread: int) -> None:
        """Cut the thread's sessions: what it still does is not stored, and its locks go."""
        for connection in self._by_thread.pop(thread, []):
            with contextlib.suppress(Exception):  # closed already, or a driver without a socket
                _cut(connection)

    def forget(self, thread: int) -> None:
        self._by_thread.pop(thread, None)


def _cut(wrapper: Any) -> None:
    raw = wrapper.connection
    if wrapper.vendor == "postgresql":
        # Closing it here could free memory that the other thread is using: shut the socket instead.
        with socket.socket(fileno=os.dup(raw.fileno())) as channel:
            channel.shutdown(socket.SHUT_RDWR)
    elif wrapper.vendor == "mysql":
        with connections[wrapper.alias].cursor() as cursor:
            cursor.execute("KILL %s", [raw.thread_id()])
    else:
        raw.interrupt()
