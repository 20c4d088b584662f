"""
Look after the clock: stop jobs that are over their time, leave behind what will not stop, cut
connections on which nothing comes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..clock import steady
from .async_pool import AsyncPool
from .holdings import Holdings, Running
from .pools import TIME_IS_UP, ThreadPool
from .trouble import tell_fault

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
        on_look: Callable[[], None],
        *,
        stubborn_after: float,
    ) -> None:
        super().__init__(name="taskharbor-watch", daemon=True)
        self._holdings = holdings
        self._threads = threads
        self._coroutines = coroutines
        self._on_stubborn = on_stubborn
        self._on_look = on_look
        self._stubborn_after = stubborn_after
        self._stopping = threading.Event()

    def close(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_EACH):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  others have to be stopped in time
                text = "a look after the clock of running jobs failed; the next comes"
                tell_fault(logger, error, text)

    def look(self) -> None:
        self._on_look()
        now = steady()
        in_threads = list(self._threads.busy)
        running = {*self._holdings.all(), *in_threads, *list(self._coroutines.busy)}
        for each in running:
            if each.deadline is not None and now >= each.deadline:
                # Again each time: a handler may swallow what it does not know.
                each.cancel(TIME_IS_UP, force=True)
        for each in in_threads:
            if self._is_stubborn(each, now):
                self._leave_behind(each)
            elif self._is_deaf(each, now):
                # It may wait for a database that is gone without a word; and what it would still
                # write there is not wanted any more.
                each.forced_at = None
                self._threads.shut(each)
        if self._coroutines.busy:
            self._look_at_coroutines(now)

    def _is_stubborn(self, running: Running, now: float) -> bool:
        deadline = running.deadline
        return deadline is not None and now >= deadline + self._stubborn_after

    def _is_deaf(self, running: Running, now: float) -> bool:
        """It was made to stop, for its lease is lost, say, and does not."""
        return running.forced_at is not None and now >= running.forced_at + self._stubborn_after

    def _leave_behind(self, running: Running) -> None:
        if self._threads.leave_behind(running):
            # Before the log, which may raise: nobody else has an outcome of it any more.
            self._on_stubborn(running, "")
            self._tell(running, "its thread is left behind")

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
            self._on_stubborn(running, text)
            self._tell(running, "its event loop is left behind" if text else "it is left behind")

    def _tell(self, running: Running, what: str) -> None:
        logger.error(
            "job %s does not stop %.0f s after its timeout: %s",
            running.job_id,
            self._stubborn_after,
            what,
            extra={"job_id": str(running.job_id)},
        )
