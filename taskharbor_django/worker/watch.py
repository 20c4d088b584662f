"""
Look after the clock of running jobs: stop what is over its time, leave behind what will not stop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..clock import steady
from .holdings import Holdings, Running
from .pools import TIME_IS_UP, ThreadPool

logger = logging.getLogger(__name__)

LOOK_EACH = 0.25


class Watch(threading.Thread):
    def __init__(
        self,
        holdings: Holdings,
        threads: ThreadPool,
        on_stubborn: Callable[[Running], None],
        *,
        stubborn_after: float,
    ) -> None:
        super().__init__(name="taskharbor-watch", daemon=True)
        self._holdings = holdings
        self._threads = threads
        self._on_stubborn = on_stubborn
        self._stubborn_after = stubborn_after
        self._stopping = threading.Event()

    def close(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_EACH):
            self.look()

    def look(self) -> None:
        now = steady()
        for running in {*self._holdings.all(), *self._threads.busy.values()}:
            if running.deadline is not None and now >= running.deadline:
                # Again each time: a handler may swallow what it does not know.
                running.cancel(TIME_IS_UP, force=True)
        for thread, running in list(self._threads.busy.items()):
            deadline = running.deadline
            if deadline is not None and now >= deadline + self._stubborn_after:
                self._leave_behind(thread, running)

    def _leave_behind(self, thread: int, running: Running) -> None:
        logger.error(
            "job %s does not stop %.0f s after its timeout: its thread is left behind",
            running.job_id,
            self._stubborn_after,
            extra={"job_id": str(running.job_id)},
        )
        self._threads.leave_behind(thread)
        self._on_stubborn(running)
