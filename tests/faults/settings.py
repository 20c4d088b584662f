"""Settings of the processes that the fault tests start; TASKHARBOR comes as JSON."""

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from django.db import transaction
from django.db.backends.signals import connection_created

from taskharbor_django import failpoints
from tests.faults import stale
from tests.settings import *  # noqa: F403

TASKHARBOR = json.loads(os.environ.get("TASKHARBOR_SETTINGS", "{}"))
if "FAR_DATABASE_URL" in os.environ:
    DATABASES["far"] = database(env.db_url("FAR_DATABASE_URL"))  # noqa: F405

if "FAKETIME" in os.environ:
    # With the steady clock left alone, this one call would be refused (EINVAL).
    time.sleep = lambda seconds: threading.Event().wait(seconds) and None

_passed, _prepared = set(), set()


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
    if not _passed and _is_begun():
        _passed.add("stopped")
        stale.owe()
        gate.stop()


def _is_begun():
    """A beat may come between a reserve and the first line of the job: that is not the one."""
    if stale.place() != "heartbeat.renewing":
        return True
    trail = Path(os.environ["TASKHARBOR_TRAIL"])
    return trail.exists() and f'"pid": {os.getpid()},' in trail.read_text("ascii")


def _let_writers_finish():
    """A process that is stopped with SQLite's write lock stops everybody."""
    database = DATABASES["default"]  # noqa: F405
    if database["ENGINE"] == "django.db.backends.sqlite3":
        connection = sqlite3.connect(database["NAME"], timeout=30, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        connection.close()


def _hold_others_back(**_facts):
    """With the first connection: settings are read before the worker's parts can be imported."""
    if "held back" not in _prepared:
        _prepared.add("held back")
        stale.hold_others_back()
        _watch_reserving()


def _watch_reserving():
    """
    Let no worker reserve any more that was stopped right before it wrote.

    It would take back whatever has expired, and other stopped workers would no longer meet the
    database as they left it.
    """
    reserving = import_module("taskharbor_django.worker.reserving").Reserving
    usual = reserving.reserve

    def reserve(self, wanted):
        gate.enter()
        try:
            return 0 if _passed and stale.writes_next() else usual(self, wanted)
        finally:
            gate.leave()

    reserving.reserve = reserve


if stale.place():
    _watch_transactions()
    connection_created.connect(_hold_others_back)
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
