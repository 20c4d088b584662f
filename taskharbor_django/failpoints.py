"""
Named places where a test can stop, delay or kill the process that reaches them.

A verb calls `reach("settle.moved")` between two steps that a crash could split. With nothing armed
that is one truth test of an empty dict. Tests arm a callable; a child process is armed through the
environment: TASKHARBOR_FAILPOINTS="settle.moved=exit,claim.done=raise".
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

Action = Callable[[], None]

_armed: dict[str, Action] = {}


class FailpointReached(Exception):
    """Raised by the failpoint action `raise`."""


def reach(name: str) -> None:
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


@contextlib.contextmanager
def armed(name: str, action: Action) -> Iterator[None]:
    """Run `action` each time the named place is reached inside the block."""
    _armed[name] = action
    try:
        yield
    finally:
        del _armed[name]


def arm_from_environment(value: str | None = None) -> None:
    """Arm what TASKHARBOR_FAILPOINTS names; called once when the app is ready."""
    value = os.environ.get("TASKHARBOR_FAILPOINTS", "") if value is None else value
    for item in filter(None, value.split(",")):
        name, _, action = item.partition("=")
        _armed[name.strip()] = _ACTIONS[action.strip()]


def _raise() -> None:
    raise FailpointReached


_ACTIONS: dict[str, Action] = {
    "exit": lambda: os._exit(70),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise,
}
