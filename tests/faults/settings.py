"""Settings of the processes that the fault tests start; TASKHARBOR comes as JSON."""

import json
import os
import signal
import sqlite3
import threading

from taskharbor_django import failpoints
from tests.settings import *  # noqa: F403

TASKHARBOR = json.loads(os.environ.get("TASKHARBOR_SETTINGS", "{}"))

_passed = set()


def _stop():
    """
    Stop this process, the first time that the place is reached.

    By the thread that is there: a signal to the process may be taken by another one, and this one
    would go on for a moment.
    """
    if not _passed:
        _passed.add("stopped")
        _let_writers_finish()
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _let_writers_finish():
    """A process that is stopped with SQLite's write lock stops everybody."""
    database = DATABASES["default"]  # noqa: F405
    if database["ENGINE"] == "django.db.backends.sqlite3":
        connection = sqlite3.connect(database["NAME"], timeout=30, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        connection.close()


failpoints._ACTIONS["stop"] = _stop
