"""Settings of the processes that the fault tests start; TASKHARBOR comes as JSON."""

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from django.db import transaction

from taskharbor_django import failpoints
from tests.settings import *  # noqa: F403

TASKHARBOR = json.loads(os.environ.get("TASKHARBOR_SETTINGS", "{}"))

_passed = set()


class Gate:
    """
    Who is in a transaction, by thread; closed to others while one stops the process.

    A heartbeat that is stopped with its lease's row locked would keep that lease from everybody,
    and the test would wait for a take-over that cannot come.
    """

    def __init__(self):
        self._changed = threading.Condition()
        self._inside = Counter()
        self._closed_by = None

    def enter(self):
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._inside[me] or self._closed_by in {None, me})
            self._inside[me] += 1

    def leave(self):
        with self._changed:
            self._inside[threading.get_ident()] -= 1
            self._changed.notify_all()

    def stop(self):
        """Stop this process, by the thread that is here: another one could go on for a moment."""
        me = threading.get_ident()
        with self._changed:
            self._closed_by = me
            self._changed.wait_for(
                lambda: not any(depth for who, depth in self._inside.items() if who != me), 10
            )
        _let_writers_finish()
        signal.pthread_kill(me, signal.SIGSTOP)
        with self._changed:
            self._closed_by = None
            self._changed.notify_all()


gate = Gate()


def _watch_transactions():
    enter, leave = transaction.Atomic.__enter__, transaction.Atomic.__exit__

    def watched_enter(self):
        gate.enter()
        try:
            return enter(self)
        except BaseException:
            gate.leave()
            raise

    def watched_leave(self, *facts):
        try:
            return leave(self, *facts)
        finally:
            gate.leave()

    transaction.Atomic.__enter__, transaction.Atomic.__exit__ = watched_enter, watched_leave


def _stop():
    """Stop this process, the first time that the place is reached."""
    if not _passed:
        _passed.add("stopped")
        gate.stop()


def _let_writers_finish():
    """A process that is stopped with SQLite's write lock stops everybody."""
    database = DATABASES["default"]  # noqa: F405
    if database["ENGINE"] == "django.db.backends.sqlite3":
        connection = sqlite3.connect(database["NAME"], timeout=30, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        connection.close()


if "=stop" in os.environ.get("TASKHARBOR_FAILPOINTS", ""):
    _watch_transactions()
failpoints._ACTIONS["stop"] = _stop


def _wait_at(door):
    """Let a child of a worker knock, and wait until somebody opens."""
    knock = door.with_suffix(".knocking")
    knock.write_text(str(os.getpid()))
    knock.rename(door.with_suffix(".knocked"))
    while not door.exists():
        time.sleep(0.01)


if "TASKHARBOR_DOOR" in os.environ and "taskharbor_django.worker.child" in sys.orig_argv:
    _wait_at(Path(os.environ["TASKHARBOR_DOOR"]))
