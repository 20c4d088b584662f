"""
The child processes of one worker: at most as many as its pool has threads.

A child that is idle is kept for the next job, and ended when none comes for a while. Starts that
fail make the next one wait, so that a project that cannot be loaded is not loaded in a hot loop.
"""

from __future__ import annotations

import threading

from ..clock import steady
from .holdings import Running
from .processes import LOOK_EACH, Child, Guard
from .trouble import Pause

IDLE_FOR = 60.0
GOODBYE = 2.0


class Nursery:
    """Which children there are, and which job each of them has."""

    def __init__(self, idle_for: float, farewell: int | None) -> None:
        self._idle_for = idle_for
        self._lock = threading.Lock()
        self._living: dict[Child, Running | None] = {}
        self._idle: list[Child] = []  # the one used last comes last
        self._guard = Guard(farewell)
        self._pause = Pause()
        self._closing = threading.Event()
        self._housekeeper: threading.Thread | None = None

    # -- for one job -----------------------------------------------------------------------------

    def take(self, running: Running) -> Child | None:
        """Give the job to an idle child or to a new one; None when it is not wanted any more."""
        child = self._take_idle(running)
        if child is None and self._may_start(running):
            child = self._start(running)
        return child

    def _take_idle(self, running: Running) -> Child | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                child = self._idle.pop()
                if not child.has_exited():
                    self._give(child, running)
                    return child
            self.bury(child)

    def _may_start(self, running: Running) -> bool:
        """Pause after starts that failed, longer each time; False when the job is to stop."""
        until = steady() + self._pause.seconds
        while not self._closing.is_set() and not (running.context and running.context.cancelled):
            if steady() >= until:
                return True
            self._closing.wait(LOOK_EACH)
        return False

    def _start(self, running: Running) -> Child | None:
        try:
            child = Child()
        except OSError:
            self._pause.grow()
            raise
        with self._lock:
            self._give(child, running)
            self._guard.hold(living.pid for living in self._living)
            closing = self._closing.is_set()
        if not closing:
            return child
        self.bury(child)
        return None

    def _give(self, child: Child, running: Running) -> None:
        self._living[child] = running
        running.stop = lambda _why, force: self._kill(child, running) if force else None

    def _kill(self, child: Child, running: Running) -> None:
        """Kill it if it still has this job: no other may suffer for one that is over."""
        with self._lock:
            if self._living.get(child) is running:
                child.kill()

    def put_back(self, child: Child) -> None:
        """Keep it for the next job, unless it was killed just when this one was done."""
        with self._lock:
            self._living[child] = None
            self._pause.end()
            usable = not child.killed and not self._closing.is_set()
            if usable:
                child.idle_since = steady()
                self._idle.append(child)
                self._need_housekeeper()
        if not usable:
            self.bury(child)

    def bury(self, child: Child) -> int:
        """End what is left of it; return how it ended."""
        status = child.reap()
        with self._lock:
            if child.ready:
                self._pause.end()
            elif not child.killed:
                self._pause.grow()
            self._living.pop(child, None)
            self._guard.hold(living.pid for living in self._living)
            self._dismiss_guard()
        return status

    # -- the end of the idle, and of all ---------------------------------------------------------

    def close(self) -> list[Running]:
        """Start no child any more; return the jobs that some still have."""
        with self._lock:
            self._closing.set()
            return [running for running in self._living.values() if running is not None]

    def wait(self) -> None:
        """After `close`: end all that have no job; the others end in the threads that use them."""
        with self._lock:
            idle, self._idle = self._idle, []
        self._end(idle)
        if self._housekeeper is not None:
            self._housekeeper.join(GOODBYE)
        with self._lock:
            self._dismiss_guard()

    def _end(self, children: list[Child]) -> None:
        for child in children:
            child.say_goodbye()
        until = steady() + GOODBYE
        for child in children:
            child.wait(until)
            self.bury(child)

    def _dismiss_guard(self) -> None:
        if self._closing.is_set() and not self._living:
            self._guard.close()

    def _need_housekeeper(self) -> None:
        if self._housekeeper is None:
            self._housekeeper = threading.Thread(
                target=self._keep_house, name="taskharbor-children", daemon=True
            )
            self._housekeeper.start()

    def _keep_house(self) -> None:
        """End what has been idle for long, and reap what died in its sleep."""
        while not self._closing.wait(min(5.0, self._idle_for / 4)):
            with self._lock:
                since = steady() - self._idle_for
                old = [it for it in self._idle if it.idle_since <= since or it.has_exited()]
                self._idle = [child for child in self._idle if child not in old]
            self._end(old)
