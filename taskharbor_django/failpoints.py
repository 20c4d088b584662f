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
    outer = _armed.get(name)
    _armed[name] = action
    try:
        yield
    finally:
        del _armed[name]
        if outer is not None:
            _armed[name] = outer


def arm_from_environment(value: str | None = None) -> None:
    """Arm what TASKHARBOR_FAILPOINTS names; called once when the app is ready."""
    value = os.environ.get("TASKHARBOR_FAILPOINTS", "") if value is None else value
    for item in filter(None, map(str.strip, value.split(","))):
        name, _, action = (part.strip() for part in item.partition("="))
        if action not in _ACTIONS:
            known = ", ".join(sorted(_ACTIONS))
            raise ValueError(f"TASKHARBOR_FAILPOINTS: {item} names none of {known}")
        _armed[name] = _ACTIONS[action]


def _raise() -> None:
    raise FailpointReached


_ACTIONS: dict[str, Action] = {
    "exit": lambda: os._exit(70),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise,
}
