"""
Settle what finished, in batches: as soon as it is free, whatever has gathered; no timer.

No outcome is dropped while its lease is believed in. A database that is away is tried again after
a growing pause; an outcome that meets a lock, or a lease whose renewal is still on its way, goes
into a later batch.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from ..clock import Clock
from ..drivers import DatabaseDriver
from ..exceptions import JobLocked, LeaseExpired
from ..failpoints import reach
from ..operations.settle import settle
from ..values import Outcome, Rejection
from .holdings import Holdings, Running
from .trouble import Trouble, disconnect

logger = logging.getLogger(__name__)

LARGEST_BATCH = 500
LOCKED_PAUSE, EXPIRED_PAUSE = 0.05, 1.0

Finished = tuple[Running, Outcome]
OnSettled = Callable[[Sequence[Finished]], None]
OnSettling = Callable[[Sequence[Running]], None]


class Completer(threading.Thread):
    """The one place where outcomes become durable."""

    def __init__(
        self,
        driver: DatabaseDriver,
        holdings: Holdings,
        clock: Clock,
        on_settled: OnSettled,
        on_settling: OnSettling = lambda _: None,
    ) -> None:
        super().__init__(name="taskharbor-completer", daemon=True)
        self._driver = driver
        self._holdings = holdings
        self._clock = clock
        self._on_settled = on_settled
        self._on_settling = on_settling
        self._finished: deque[Finished] = deque()
        self._again: list[Finished] = []
        self._pause: float | None = None  # how long what is in _again should wait
        self._wake = threading.Event()
        self._empty = threading.Event()
        self._empty.set()
        self._closing = False
        self._trouble = Trouble("settle")

    def put(self, running: Running, outcome: Outcome) -> None:
        self._empty.clear()
        self._finished.append((running, outcome))
        if not self._trouble.lasts and not self._wake.is_set():
            self._wake.set()

    def hurry(self) -> None:
        """Leases were renewed: what looked expired may go through now."""
        self._wake.set()

    def unsettled(self) -> dict[Running, Outcome]:
        """What could not be settled, after `close`."""
        return dict([*self._again, *self._finished])

    def drain(self, timeout: float) -> bool:
        """Wait until everything is settled or lost; False when that takes too long."""
        return self._empty.wait(timeout)

    def close(self) -> None:
        """Stop after what can be settled now."""
        self._closing = True
        self._wake.set()
        self.join()

    def run(self) -> None:
        while not self._closing:
            self._wake.wait(self._pause)
            self._wake.clear()
            self._settle_gathered()
        if self._finished:  # it came between the last look and `close`
            self._settle_gathered()
        disconnect(self._driver.using)

    def _settle_gathered(self) -> None:
        """Try all there is, once; what meets a lock, or no database, is for the next turn."""
        self._pause = None
        gathered, self._again = self._again, []
        while self._finished:
            gathered.append(self._finished.popleft())
        for start in range(0, len(gathered), LARGEST_BATCH):
            end = start + LARGEST_BATCH
            batch = [item for item in gathered[start:end] if self._is_held(*item)]
            if batch and not self._flush(batch):
                self._again += batch + gathered[end:]
                return
        if self._again:
            return
        self._empty.set()
        # An outcome that came between the last look and set() has cleared nothing yet.
        if self._finished:
            self._empty.clear()
            self._wake.set()

    def _is_held(self, running: Running, outcome: Outcome) -> bool:
        if self._holdings.find(running.token, running.job_id) is running:
            return True
        logger.info("job %s: its %s is dropped with its lost lease", running.job_id, outcome.kind)
        return False

    def _flush(self, batch: list[Finished]) -> bool:
        """Settle one batch; False when the database cannot be used."""
        outcomes = [outcome for _, outcome in batch]
        try:
            self._on_settling([running for running, _ in batch])
            with self._holdings.settling:
                reach("completer.settling")
                rejections = settle(self._driver, outcomes, now=self._clock.now())
                reach("completer.settled")
                self._sort_out(batch, rejections)
        except Exception as error:  # noqa: BLE001  no outcome is dropped, whatever it is
            self._pause = self._trouble.began(error)
            disconnect(self._driver.using)
            return False
        self._trouble.ended()
        return True

    def _sort_out(self, batch: list[Finished], rejections: list[Rejection]) -> None:
        refused = {rejection.outcome.job_id: rejection for rejection in rejections}
        settled = []
        for running, outcome in batch:
            rejection = refused.get(outcome.job_id)
            if rejection is None or rejection.repeated:
                settled.append((running, outcome))
            elif isinstance(rejection.error, JobLocked | LeaseExpired):
                self._try_again(running, outcome, rejection)
            else:
                self._give_up(running, rejection)
        self._holdings.remove_many(running for running, _ in settled)
        if settled:
            self._on_settled(settled)

    def _try_again(self, running: Running, outcome: Outcome, rejection: Rejection) -> None:
        """A lock goes away; a lease that looks expired may just have been renewed."""
        self._again.append((running, outcome))
        pause = LOCKED_PAUSE if isinstance(rejection.error, JobLocked) else EXPIRED_PAUSE
        self._pause = min(pause, self._pause or pause)

    def _give_up(self, running: Running, rejection: Rejection) -> None:
        """The job is somebody else's now: what was done here does not count."""
        self._holdings.remove(running)
        logger.warning(
            "job %s: its %s came too late: %s",
            running.job_id,
            rejection.outcome.kind,
            rejection.error,
            extra={"job_id": str(running.job_id), "outcome": str(rejection.outcome.kind)},
        )
