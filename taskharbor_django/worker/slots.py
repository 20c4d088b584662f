"""Where handlers run: threads, coroutines and child processes, and who looks after them."""

from __future__ import annotations

from collections.abc import Callable

from ..clock import DatabaseClock, steady
from ..drivers import DatabaseDriver
from ..values import Outcome
from .async_pool import AsyncPool
from .dispatch import Dispatch
from .holdings import Holdings, Running
from .inputs import Inputs
from .isolation import Children
from .lines import Lines
from .options import WorkerOptions
from .pools import ThreadPool
from .reports import Reports
from .watch import Watch


class Slots:
    """The pools of one process, as one."""

    def __init__(
        self,
        options: WorkerOptions,
        driver: DatabaseDriver,
        holdings: Holdings,
        clock: DatabaseClock,
        *,
        lines: Lines,
        reports: Reports,
        on_finished: Callable[[Running, Outcome], None],
        on_stubborn: Callable[[Running, str], None],
        on_look: Callable[[], None],
    ) -> None:
        self._children = Children(reports, clock, options)
        inputs = Inputs(driver, lines, reports.submit)
        self.threads = ThreadPool(
            options.threads,
            runtime=reports,
            clock=clock,
            on_finished=on_finished,
            isolated=self._children.run,
            inputs=inputs,
            isolate_all=options.isolate_all,
            using=options.using,
        )
        self.coroutines = AsyncPool(
            options.async_slots,
            runtime=reports,
            clock=clock,
            on_finished=on_finished,
            inputs=inputs,
        )
        pools = self.threads, self.coroutines
        self.dispatch = Dispatch(*pools, isolate_all=options.isolate_all)
        self.watch = Watch(
            holdings, *pools, on_stubborn, on_look, stubborn_after=options.stubborn_after
        )

        self._rests_since: float | None = None

    def start(self) -> None:
        self.threads.start()
        self.coroutines.start()

    @property
    def busy(self) -> int:
        """How many handlers run just now."""
        return len(self.threads.busy) + len(self.coroutines.busy)

    @property
    def at_rest(self) -> bool:
        """Whether no handler runs, but for those that are left behind."""
        return self.threads.at_rest and not self.coroutines.busy - self.coroutines.stuck

    def rested(self) -> float:
        """For how long nothing has run or waited, since this was first asked."""
        if self.dispatch.waiting or not self.at_rest:
            self._rests_since = None
            return 0.0
        self._rests_since = self._rests_since or steady()
        return steady() - self._rests_since

    def close_children(self) -> None:
        self._children.close()

    def close(self, patience: float) -> bool:
        """End the pools; False when something in them does not."""
        return all([pool.close(patience) for pool in (self.threads, self.coroutines)])  # noqa: C419  close both
