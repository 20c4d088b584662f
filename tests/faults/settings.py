"""Settings of the processes that the fault tests start; TASKHARBOR comes as JSON."""

import json
import os
import signal
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
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


failpoints._ACTIONS["stop"] = _stop
