"""
Several worker processes from one command: start, watch, restart, stop, and never leave one behind.

Each child is the same command line in a process of its own, with a new worker id at every start. It
inherits the reading end of a pipe that nobody writes to: when the supervisor is gone, in whatever
way, the child reads the end of it and shuts down by itself. Over a second one it says goodbye
(farewell.py); a child that ends without has died, whatever its exit code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from ..clock import steady
from .farewell import FINISHED, MAKES_WAY, Farewell
from .lease_ender import LAST_WORDS, LeaseEnder
from .stop_signals import MARGIN, STUCK
from .trouble import FIRST_PAUSE, LONGEST_PAUSE, Pause

logger = logging.getLogger(__name__)

ENVIRONMENT = "TASKHARBOR_SUPERVISED"

LOOK_EACH = 0.2
GOOD_LIFE = 60.0


@dataclass(frozen=True, slots=True)
class Supervised:
    """What a child is told by its supervisor."""

    pipe: int
    farewell: int
    number: int
    worker: str

    @classmethod
    def take(cls) -> Self | None:
        """Read it, once: what this process starts itself is not supervised."""
        told = os.environ.pop(ENVIRONMENT, "")
        if not told:
            return None
        pipe, farewell, number, worker = told.split(":")
        for end in (pipe, farewell):
            os.set_inheritable(int(end), False)
        return cls(int(pipe), int(farewell), int(number), worker)

    def __str__(self) -> str:
        return f"{self.pipe}:{self.farewell}:{self.number}:{self.worker}"


class Child:
    """A place for one process: which is in it, and from when on the next may be."""

    def __init__(self, number: int, longest_pause: float) -> None:
        self.number = number
        self.worker = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.farewell: Farewell
        self.finished = False
        self.due = 0.0
        self._pause = Pause(longest_pause, jitter=0.0)  # the log says exactly when
        self._started = 0.0

    def start(self, command: Sequence[str], pipe: int) -> None:
        self.worker = uuid4().hex
        self._started = steady()
        reading, farewell = os.pipe()
        try:
            self.process = self._run(command, pipe, farewell)
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(farewell)
        self.farewell = Farewell(reading)

    def _run(self, command: Sequence[str], pipe: int, farewell: int) -> subprocess.Popen[bytes]:
        told = Supervised(pipe, farewell, self.number, self.worker)
        return subprocess.Popen(  # noqa: S603  this process's own command line
            command,
            stdin=subprocess.DEVNULL,
            env=os.environ | {ENVIRONMENT: str(told)},
            pass_fds=[pipe, farewell],
            # Ctrl-C in a terminal goes to the supervisor alone, which passes it on once.
            process_group=0,
        )

    def replaced(self) -> None:
        # Never in a hot loop, also when it wanted to be replaced as soon as it was there.
        self.due = self._started + FIRST_PAUSE
        self._pause.forget()

    def died(self) -> float:
        """Let the next wait, longer each time, unless this one had lived well; return how long."""
        if steady() - self._started >= GOOD_LIFE:
            self._pause.forget()
        self.due = steady() + self._pause.grow()
        return self._pause.seconds

    def kill(self) -> None:
        """Kill it with all that it started and that stayed in its group."""
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def __str__(self) -> str:
        pid = self.process.pid if self.process else 0
        return f"process {self.number} (pid {pid}, worker {self.worker[:8]})"


class Supervisor:
    """Keeps a number of children alive until told to stop; `stop` and `kill` from any thread."""

    def __init__(
        self,
        processes: int,
        *,
        using: str,
        grace: float,
        burst: bool = False,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        self.ready = False
        self._command = [sys.executable, *sys.orig_argv[1:], "--skip-checks", "--processes", "1"]
        self._children = [Child(number, longest_pause) for number in range(1, processes + 1)]
        self._patience = grace + MARGIN + LAST_WORDS
        self._burst = burst
        self._lease_ender = LeaseEnder(using)
        self._dead: dict[str, Farewell] = {}  # whose leases are not to end yet
        self._wake = threading.Event()
        self._why = ""
        self._kill_at: float | None = None
        self._killed = False
        self._held_end: int | None = None

    def stop(self, why: str) -> None:
        self._why = self._why or why
        self._wake.set()

    def kill(self) -> None:
        for child in self._children:
            child.kill()

    def run(self) -> int:
        """Work until told to stop, or until no child has anything to do; return an exit code."""
        self.ready = True
        logger.info("supervisor started: pid %d, processes: %d", os.getpid(), len(self._children))
        self._pipe, self._held_end = os.pipe()
        self._lease_ender.start()
        try:
            while not self._is_over():
                self._turn()
                self._wake.wait(LOOK_EACH)
                self._wake.clear()
        finally:
            self.kill()
            self._lease_ender.close()
            self._let_go()
            os.close(self._pipe)
        logger.info("supervisor stopped")
        return STUCK if self._killed else 0

    def _let_go(self) -> None:
        """Close the end of the pipe by which children know that their supervisor lives."""
        if self._held_end is not None:
            os.close(self._held_end)
            self._held_end = None

    def _is_over(self) -> bool:
        if self._dead or any(child.process for child in self._children):
            return False
        return bool(self._why) or all(child.finished for child in self._children)

    def _turn(self) -> None:
        self._lease_ender.lines.cut_silent()
        for child in self._children:
            if child.process is None:
                self._start_if_due(child)
            elif (code := child.process.poll()) is not None:
                self._ended(child, code)
        self._end_leases()
        if self._why:
            self._press()

    def _start_if_due(self, child: Child) -> None:
        if self._why or child.finished or steady() < child.due:
            return
        if self._burst and (self._dead or self._lease_ender.busy):
            return  # it would find nothing to do, and finish, while jobs are still the dead one's
        try:
            child.start(self._command, self._pipe)
        except OSError as error:
            pause = child.died()
            logger.error("%s cannot start, trying again in %g s: %s", child, pause, error)  # noqa: TRY400  a line, not a traceback
        else:
            logger.info("%s started", child, extra={"worker": child.worker})

    def _ended(self, child: Child, code: int) -> None:
        facts = {"worker": child.worker, "exit_code": code}
        goodbye = child.farewell.goodbye()
        if goodbye:
            child.farewell.close()
        if goodbye == FINISHED:
            child.finished = True
            logger.info("%s has finished", child, extra=facts)
        elif goodbye == MAKES_WAY:
            child.replaced()
            logger.info("%s makes way for a new one", child, extra=facts)
        else:
            self._dead[child.worker] = child.farewell
            pause = child.died()
            then = "" if self._why else f"; the next starts in {pause:g} s"
            logger.warning("%s died: %s%s", child, describe(code), then, extra=facts)
        child.process = None

    def _end_leases(self) -> None:
        """Of the dead: at once, or when the children that they had isolated have given back."""
        for worker, farewell in list(self._dead.items()):
            if farewell.is_over():
                farewell.close()
                del self._dead[worker]
                self._lease_ender.end(worker)

    def _press(self) -> None:
        """Tell the children once, and kill what is left when their time is over."""
        running = [child for child in self._children if child.process]
        if self._kill_at is None:
            self._kill_at = steady() + self._patience
            text = "supervisor stops: %s; processes told: %d"
            logger.info(text, self._why, len(running), extra={"why": self._why})
            # Not by a signal: who stops everything at once, as systemd may, has sent them one, and
            # a second would end them at once.
            self._let_go()
        elif running and steady() >= self._kill_at and not self._killed:
            self._killed = True
            logger.error("supervisor kills processes that did not stop: %d", len(running))
            self.kill()


def describe(code: int) -> str:
    """An exit code as `subprocess` gives it, in words."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
