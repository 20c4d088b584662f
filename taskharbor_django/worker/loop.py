"""
The loop of a worker: reserve for the slots that are free, hand over, wait for a call, and again.

It runs in the process's main thread and has a connection of its own. What it waits for: a slot that
becomes free, a job that somebody enqueued, the next look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .appetite import Appetite
from .dispatch import Dispatch
from .holdings import Holdings, Running
from .options import WorkerOptions
from .reserving import Reserving
from .scheduler import Scheduler
from .wakeup import Wakeup

WAITED_TOO_LONG = 1.0
SECOND_LOOK = 0.02


class Loop:
    """Turns until `stop`, which may be called from a signal handler."""

    def __init__(
        self,
        options: WorkerOptions,
        appetite: Appetite,
        holdings: Holdings,
        *,
        dispatch: Dispatch,
        reserving: Reserving,
        scheduler: Scheduler,
        wakeup: Wakeup,
        may_reserve: Callable[[], bool],
        release: Callable[[Iterable[Running]], None],
    ) -> None:
        self._options = options
        self._appetite = appetite
        self._holdings = holdings
        self._dispatch = dispatch
        self._reserving = reserving
        self._scheduler = scheduler
        self._wakeup = wakeup
        self._may_reserve = may_reserve
        self._release = release
        self.stopping = False
        self.hungry = False  # it waits for a slot

    def stop(self) -> None:
        self.stopping = True
        self._wakeup.set()

    def slot_freed(self) -> None:
        """Go on, if that is what it waits for; from any thread."""
        if self.hungry and not self._wakeup.is_set:
            self._wakeup.set()

    def run(self) -> None:
        while not self.stopping:
            self._release_late()
            self._scheduler.turn()
            wanted = self._wanted()
            if not wanted:
                # Said before the second look: a slot that frees in between is not missed.
                self.hungry = True
                wanted = self._wanted()
            pause = self._turn(wanted) if wanted else WAITED_TOO_LONG / 2
            if pause:
                self._wait(pause)
            self.hungry = False

    def _release_late(self) -> None:
        """What waited a second for a slot may run sooner elsewhere."""
        if late := self._dispatch.take_back(waited=WAITED_TOO_LONG):
            self._appetite.waited_too_long()
            self._release(late)

    def _wanted(self) -> int:
        if not self._may_reserve():
            return 0
        self._appetite.slots = self._dispatch.slots
        free = self._dispatch.free(sated=self._appetite.sated)
        return self._appetite.wants(free, self._dispatch.waiting)

    def _turn(self, wanted: int) -> float:
        """Reserve once; return how long to wait for a call before the next turn."""
        held_nothing = not self._holdings
        got = self._reserving.reserve(wanted)
        if got is None:
            return self._reserving.pause
        self._appetite.claimed(wanted, got)
        if got:
            return 0.0
        if self._reserving.bounded:
            return self._reserving.bounded_pause
        if self._options.burst:
            # Looked at before the reserve: a job may enqueue others right before its end.
            if held_nothing and not self._reserving.queues.narrowed:
                self.stop()
            self.hungry = True
        return self._reserving.queues.idle_pause(self._options.poll.total_seconds())

    def _wait(self, pause: float) -> None:
        """Wait for a call or a freed slot; after a call, look twice."""
        if self._dispatch.waiting:
            pause = min(pause, WAITED_TOO_LONG / 2)
        pause = self._scheduler.within(pause)
        if self.stopping or not self._wakeup.wait(pause):
            return
        # Without a name it was only a slot that became free.
        if names := self._wakeup.take_names():
            self._reserving.queues.woken(names - {""}, SECOND_LOOK)
