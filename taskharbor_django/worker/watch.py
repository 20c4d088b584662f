"""
Look after the clock of running jobs: stop what is over its time, leave behind what will not stop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..clock import steady
from .async_pool import AsyncPool
from .holdings import Holdings, Running
from .pools import TIME_IS_UP, ThreadPool

logger = logging.getLogger(__name__)

LOOK_EACH = 0.25
BLOCKING = "The job let no other coroutine run, and the time of one was up."


class Watch(threading.Thread):
    def __init__(
        self,
        holdings: Holdings,
        threads: ThreadPool,
        coroutines: AsyncPool,
        on_stubborn: Callable[[Running, str], None],
        *,
        stubborn_after: float,
    ) -> None:
        super().__init__(name="taskharbor-watch", daemon=True)
        self._holdings = holdings
        self._threads = threads
        self._coroutines = coroutines
        self._on_stubborn = on_stubborn
        self._stubborn_after = stubborn_after
        self._stopping = threading.Event()

    def close(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_EACH):
            try:
                self.look()
            except Exception:
                logger.exception("a look after the clock of running jobs failed; the next comes")

    def look(self) -> None:
        now = steady()
        running = {*self._holdings.all(), *self._threads.busy.values(), *self._coroutines.busy}
        for each in running:
            if each.deadline is not None and now >= each.deadline:
                # Again each time: a handler may swallow what it does not know.
                each.cancel(TIME_IS_UP, force=True)
        for thread, each in list(self._threads.busy.items()):
            if self._is_stubborn(each, now):
                self._leave_behind(thread, each)
        if self._coroutines.busy:
            self._look_at_coroutines(now)

    def _is_stubborn(self, running: Running, now: float) -> bool:
        deadline = running.deadline
        return deadline is not None and now >= deadline + self._stubborn_after

    def _leave_behind(self, thread: int, running: Running) -> None:
        if self._threads.leave_behind(thread):
            self._tell(running, "its thread is left behind")
            self._on_stubborn(running, "")

    def _look_at_coroutines(self, now: float) -> None:
        silent = self._coroutines.silence() >= self._stubborn_after
        # A copy: the loop's own thread takes out what ends.
        stubborn = [each for each in list(self._coroutines.busy) if self._is_stubborn(each, now)]
        if stubborn and silent and not self._coroutines.blocked:
            # Whoever holds the loop is to blame, and not those who wait for it.
            self._coroutines.blocked = True
            self._give_up(self._coroutines.blocker() or stubborn[0], BLOCKING)
        elif not silent:
            for each in stubborn:
                self._give_up(each, "")

    def _give_up(self, running: Running, text: str) -> None:
        if self._coroutines.leave_behind(running):
            self._tell(running, "its event loop is left behind" if text else "it is left behind")
            self._on_stubborn(running, text)

    def _tell(self, running: Running, what: str) -> None:
        logger.error(
            "job %s does not stop %.0f s after its timeout: %s",
            running.job_id,
            self._stubborn_after,
            what,
            extra={"job_id": str(running.job_id)},
        )
