"""Django's connections around jobs: clean at the start, and cut off when a thread will not stop."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterable
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created


def clean(opened: Iterable[Any] | None = None) -> None:
    """
    Leave nothing of one job to the next: no open transaction, no dead or outdated connection.

    Looks only at connections that this thread has; a task that uses none costs none.
    """
    for connection in _all() if opened is None else opened:
        if not _undo(connection) and connection.connection is not None:
            connection.close_if_unusable_or_obsolete()
            connection.health_check_enabled = connection.settings_dict["CONN_HEALTH_CHECKS"]
        connection.queries_log.clear()


def undo() -> None:
    """
    End transactions that were left open, and close what an error may have broken.

    Others may be in the midst of using the rest, which is not closed for its age here.
    """
    for connection in _all():
        if (
            not _undo(connection)
            and connection.connection is not None
            and connection.errors_occurred
        ):
            connection.close_if_unusable_or_obsolete()


def _undo(connection: Any) -> bool:
    if connection.connection is None and not connection.in_atomic_block:
        return False  # to ask for its autocommit would open it
    if not connection.in_atomic_block and connection.get_autocommit():
        return False
    # In this order: inside a transaction close() would keep what it has closed.
    connection.in_atomic_block = False
    connection.close()
    return True


def doubt(opened: Iterable[Any] | None = None) -> None:
    """
    Let the next query on each of these first ask whether the server is still there.

    It may have gone while the thread had nothing to do. Django asks once, before the first query.
    """
    for connection in _all() if opened is None else opened:
        pool = getattr(connection, "pool", None)
        if pool is not None:
            pool.check()
        if connection.connection is not None:
            connection.close_if_unusable_or_obsolete()
            connection.health_check_enabled = True


def _all() -> Iterable[Any]:
    return connections.all(initialized_only=True)


class Opened:
    """Which thread opened which connections: to clean them, and to cut those of a lost thread."""

    def __init__(self) -> None:
        self._by_thread: dict[int, list[Any]] = {}

    def watch(self) -> None:
        connection_created.connect(self._note, dispatch_uid=f"taskharbor-{id(self)}", weak=False)

    def unwatch(self) -> None:
        connection_created.disconnect(dispatch_uid=f"taskharbor-{id(self)}")

    def expect(self, thread: int) -> None:
        """Note from now on what this thread opens; threads that handlers start are their own."""
        self._by_thread[thread] = []

    def _note(self, connection: Any, **_: Any) -> None:
        mine = self._by_thread.get(threading.get_ident())
        if mine is not None and connection not in mine:
            mine.append(connection)

    def by(self, thread: int) -> list[Any]:
        return self._by_thread.get(thread, [])

    def cut(self, thread: int) -> None:
        """Cut the thread's sessions: what it still does is not stored, and its locks go."""
        for connection in self._by_thread.pop(thread, []):
            with contextlib.suppress(Exception):  # closed already, or a driver without a socket
                _cut(connection)

    def shut(self, thread: int) -> None:
        """Shut the sockets under a thread that waits for them; it may go on with new ones."""
        for connection in list(self.by(thread)):
            with contextlib.suppress(Exception):  # closed just now, or a driver without a socket
                shut_socket(connection)

    def forget(self, thread: int) -> None:
        self._by_thread.pop(thread, None)


def shut_socket(wrapper: Any) -> None:
    """End a connection from another thread: closing it could free memory that its own uses."""
    with socket.socket(fileno=os.dup(wrapper.connection.fileno())) as channel:
        channel.shutdown(socket.SHUT_RDWR)


def _cut(wrapper: Any) -> None:
    raw = wrapper.connection
    if wrapper.vendor == "postgresql":
        shut_socket(wrapper)
    elif wrapper.vendor == "mysql":
        # By a thread of its own: it may be the server that does not answer.
        told = wrapper.alias, raw.thread_id()
        threading.Thread(target=_kill_session, args=told, daemon=True).start()
        shut_socket(wrapper)
    else:
        raw.interrupt()


def _kill_session(using: str, session: int) -> None:
    """End the session at the server, which else goes on until its statement is done."""
    with contextlib.suppress(Exception), connections[using].cursor() as cursor:
        cursor.execute("KILL %s", [session])
    connections[using].close()
