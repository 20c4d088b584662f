"""
A small process beside a worker that has isolated children: it ends those that outlive the worker.

Runs as a program of its own, with the standard library alone. Its standard input is a pipe from
the worker, which writes on each line the process groups of all its children. The pipe ends when the
worker does, in whatever way. The children then have a few seconds to give back what they hold; a
child that is stopped, or whose handler never lets another thread of it run, cannot even do that.
A supervisor of the worker is told when all are gone (farewell.py).
"""

import contextlib
import os
import signal
import sys
import time

PATIENCE = 5.0
LOOK_EACH = 0.05
CHILDREN_GONE = b"c"


def main(farewell: int | None = None) -> None:
    # Whoever stops everything at once, as systemd does, must not stop this first.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    held: list[int] = []
    for line in sys.stdin:
        held = [int(group) for group in line.split()]
    until = time.monotonic() + PATIENCE
    while held and time.monotonic() < until:
        held = [group for group in held if _leader_lives(group)]
        time.sleep(LOOK_EACH)
    for group in held:
        _kill(group)
    if farewell is not None:
        with contextlib.suppress(OSError):  # the supervisor is gone as well
            os.write(farewell, CHILDREN_GONE)


def _leader_lives(group: int) -> bool:
    """Look whether the child is still there; if not, end what it started and left behind."""
    with contextlib.suppress(OSError):
        os.kill(group, 0)
        return True
    _kill(group)
    return False


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
