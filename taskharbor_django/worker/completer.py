"""
Settle what finished, in batches: as soon as it is free, whatever has gathered; no timer.

No outcome is dropped while its lease is believed in. A database that is away is tried again after
a growing pause, once each time; an outcome that meets a lock, or a lease whose renewal is still on
its way, goes into a later batch, ever later while the lock is held. A batch that failed comes again
behind all others, and in halves if it fails again, unless the server itself says that it can do
nothing; an outcome that makes every settle fail waits alone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from time import monotonic

from django.dispatch import Signal

from .. import signals
from ..clock import Clock
from ..drivers import DatabaseDriver
from ..drivers.transient import is_of_server
from ..exceptions import JobLocked, LeaseExpired, NotSettled
from ..failpoints import reach
from ..operations.settle import settle
from ..values import Outcome, Rejection
from .announcer import Announcer
from .holdings import Holdings, Running
from .lines import Lines
from .trouble import Trouble, disconnect, tell_fault

logger = logging.getLogger(__name__)

LARGEST_BATCH = 500
LOCKED_PAUSE, EXPIRED_PAUSE, FAILED_PAUSE = 0.05, 1.0, 10.0
LONGEST_LOCKED_PAUSE = 2.0  # who forgets to commit holds a row for hours

# Sent with `running` and `outcome` for each outcome that came when its lease was lost; the sender
# is the holdings. The thread that settles calls the receivers: they count, and do nothing else.
too_late = Signal()

Finished = tuple[Running, Outcome]
Later = tuple[float, Finished]  # from when on to try it again, by the monotonic clock
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
        *,
        announcer: Announcer | None = None,
        lines: Lines | None = None,
    ) -> None:
        super().__init__(name="taskharbor-completer", daemon=True)
        self._driver = driver
        self._holdings = holdings
        self._clock = clock
        self._on_settled = on_settled
        self._on_settling = on_settling
        self._announcer = announcer
        self._lines = lines or Lines(driver.using)
        self._finished: deque[Finished] = deque()
        self._gathered: list[Finished] = []  # what this turn is to settle
        self._failed: deque[list[Finished]] = deque()  # batches that were not, each by itself
        self._new_failed = 0  # of these, how many since one of them was tried again
        self._again: list[Later] = []  # what met a lock, or a lease that looked expired
        self._locked_pause, self._met_lock = LOCKED_PAUSE, False
        self._pause: float | None = None  # how long what is left should wait
        self._wake = threading.Event()
        self._aside: list[Later] = []  # what alone makes a settle fail
        self._hurried = False
        self._empty = threading.Event()
        self._empty.set()
        self._closing = False
        self.trouble = Trouble("settle")
        self._server_failed = False  # the last time, and not for what was to be settled
        self.connected = threading.Event()

    @property
    def refusals(self) -> int:
        """How often the server has said that it can settle nothing, whatever the outcomes."""
        return self.trouble.pause.failures if self._server_failed else 0

    def put(self, running: Running, outcome: Outcome) -> None:
        running.ended = True
        # In this order: between the two the completer may have found nothing and said so.
        self._finished.append((running, outcome))
        alone = self._empty.is_set()  # what failed was lost with its lease: nothing pauses for it
        if alone:
            self._empty.clear()
        if not self._wake.is_set() and (alone or not self.trouble.lasts):
            self._wake.set()

    def hurry(self) -> None:
        """Leases were renewed: what looked expired may go through now."""
        self._hurried = True
        self._wake.set()

    def unsettled(self) -> dict[Running, Outcome]:
        """What could not be settled, after `close`."""
        failed = itertools.chain.from_iterable(self._failed)
        later = (finished for _, finished in [*self._again, *self._aside])
        return dict([*self._gathered, *failed, *later, *self._finished])

    def drain(self, timeout: float) -> bool:
        """Wait until everything is settled or lost; False when that takes too long."""
        return self._empty.wait(timeout)

    def close(self) -> None:
        """Stop after what can be settled now."""
        self._closing = True
        self._wake.set()
        self.join()

    def run(self) -> None:
        if self._announcer is not None:
            signals.deliver_through(self._announcer.put)
        self._lines.connect(self.trouble, wait=self._wait, over=lambda: self._closing)
        self.connected.set()
        while not self._closing:
            self._wait(self._pause)
            self._turn()
        if self._finished:  # it came between the last look and `close`
            self._turn()
        disconnect(self._driver.using)

    def _wait(self, pause: float | None) -> None:
        self._wake.wait(pause)
        self._wake.clear()

    def _turn(self) -> None:
        try:
            self._settle_gathered()
        except Exception as error:  # noqa: BLE001  the outcomes are still here, and others come
            self._pause = EXPIRED_PAUSE
            tell_fault(logger, error, "a turn to settle outcomes failed; the next comes")

    def _settle_gathered(self) -> None:
        """Try all there is, once; what meets a lock, or no database, is for the next turn."""
        self._pause, self._met_lock = None, False
        self._gather()
        lines = [self._settle_new, self._settle_failed]
        if self._new_failed > 1:  # without end, perhaps, and those before would never come again
            lines.reverse()
        if not all(settle_line() for settle_line in lines):
            return  # the database may be away: one failure in each turn is enough
        self._lengthen_pause()
        if later := [due for due, _ in [*self._again, *self._aside]]:
            self._pause = max(0.0, min(later) - monotonic())
            return
        self._empty.set()
        # An outcome that came between the last look and set() has cleared nothing yet.
        if self._finished:
            self._empty.clear()
            self._wake.set()

    def _lengthen_pause(self) -> None:
        """Let what is locked still, or again, wait twice as long; start anew when nothing is."""
        if self._met_lock:
            self._locked_pause = min(2 * self._locked_pause, LONGEST_LOCKED_PAUSE)
        elif not self._again:
            self._locked_pause = LOCKED_PAUSE

    def _gather(self) -> None:
        hurried, self._hurried = self._hurried, False
        now = monotonic()
        due, self._again = _due(self._again, math.inf if hurried else now)
        self._gathered += due
        while self._finished:
            self._gathered.append(self._finished.popleft())
        due, self._aside = _due(self._aside, now)
        self._failed.extend([each] for each in due)

    def _settle_new(self) -> bool:
        """Settle what has gathered; False when a batch failed, which comes again behind all."""
        while self._gathered:
            batch = self._gathered[:LARGEST_BATCH]
            settled = self._flush(batch)
            del self._gathered[:LARGEST_BATCH]
            if not settled:
                self._failed.append(batch)
                self._new_failed += 1
                return False
        return True

    def _settle_failed(self) -> bool:
        """Settle what has failed before; False when a batch did again."""
        self._new_failed = 0
        while self._failed:
            others_went = not self.trouble.lasts
            settled = self._flush(self._failed[0])
            batch = self._failed.popleft()
            if not settled:
                self._divide(batch, others_went=others_went)
                return False
        return True

    def _divide(self, batch: list[Finished], *, others_went: bool) -> None:
        """Find out by and by whether it is the database that fails, or one outcome, or too many."""
        if self._server_failed:
            self._failed.append(batch)
        elif len(batch) > 1:
            middle = len(batch) // 2
            self._failed.extend([batch[:middle], batch[middle:]])
        elif others_went:
            self._set_aside(*batch[0])
            self.trouble.pause.forget()  # nobody else has to wait for it
        else:
            self._failed.append(batch)

    def _flush(self, finished: list[Finished]) -> bool:
        """Settle one batch; False when the database cannot be used, or not for this."""
        batch = [item for item in finished if self._is_held(*item)]
        finished[:] = batch  # what is lost is told of once, however often the rest comes again
        if not batch:
            return True
        outcomes = [outcome for _, outcome in batch]
        try:
            self._on_settling([running for running, _ in batch])
            with self._lines.waiting():
                reach("completer.settling")
                now = self._clock.now()
                rejections = settle(self._driver, outcomes, now=now)
                reach("completer.settled")
                settled = self._sort_out(batch, rejections)
        except Exception as error:  # noqa: BLE001  no outcome is dropped, whatever it is
            self._failed_by(error)
            return False
        self.trouble.ended()
        self._tell(settled, now)
        return True

    def _failed_by(self, error: Exception) -> None:
        self._server_failed = is_of_server(error)
        if not (self._server_failed or self.trouble.lasts):
            self.trouble.pause.forget()  # others went: it is for this batch, not for the database
        self._pause = self.trouble.began(error)
        disconnect(self._driver.using)

    def _tell(self, settled: list[Finished], now: datetime) -> None:
        """Tell of what is durable; from here on nothing that is raised may bring it back."""
        if not settled:
            return
        try:
            self._on_settled(settled)
            if self._announcer is not None:
                self._announcer.settled(settled, now=now)
        except Exception as error:  # noqa: BLE001  whatever a listener does
            tell_fault(logger, error, "settled outcomes could not be told of")

    def _sort_out(self, batch: list[Finished], rejections: list[Rejection]) -> list[Finished]:
        """Keep what must come again; return what is settled. It must not raise in the middle."""
        if not rejections:
            return self._end(batch)
        # By token: after a lost reply a batch may have two runs of a job, each with its own fate.
        refused = {(it.outcome.token, it.outcome.job_id): it for it in rejections}
        settled: list[Finished] = []
        for running, outcome in batch:
            rejection = refused.get((outcome.token, outcome.job_id))
            if rejection is None or rejection.repeated:
                settled.append((running, outcome))
            elif isinstance(rejection.error, JobLocked | LeaseExpired):
                self._try_again(running, outcome, rejection)
            elif isinstance(rejection.error, NotSettled):
                self._set_aside(running, outcome)
            else:
                self._give_up(running, rejection)
        return self._end(settled)

    def _end(self, settled: list[Finished]) -> list[Finished]:
        """These are held no more."""
        self._holdings.remove_many(running for running, _ in settled)
        return settled

    def _try_again(self, running: Running, outcome: Outcome, rejection: Rejection) -> None:
        """A lock goes away; a lease that looks expired may just have been renewed."""
        pause = EXPIRED_PAUSE
        if isinstance(rejection.error, JobLocked):
            self._met_lock, pause = True, self._locked_pause
        self._again.append((monotonic() + pause, (running, outcome)))

    def _set_aside(self, running: Running, outcome: Outcome) -> None:
        """Each try with others costs those several turns: it has to wait longer."""
        self._aside.append((monotonic() + FAILED_PAUSE, (running, outcome)))

    def _give_up(self, running: Running, rejection: Rejection) -> None:
        """The job is somebody else's now: what was done here does not count."""
        self._holdings.remove(running)
        with contextlib.suppress(Exception):  # the rest of the batch is not done with yet
            self._count_too_late(running, rejection.outcome)
            logger.warning(
                "job %s: its %s came too late: %s",
                running.job_id,
                rejection.outcome.kind,
                rejection.error,
                extra={"job_id": str(running.job_id), "outcome": str(rejection.outcome.kind)},
            )

    def _is_held(self, running: Running, outcome: Outcome) -> bool:
        """Say whether it is worth a try; what is not, for its lease is lost, ends here."""
        if running.held:
            return True
        with contextlib.suppress(Exception):  # a filter that raises must not stop the others
            self._count_too_late(running, outcome)
            logger.info(
                "job %s: its %s is dropped with its lost lease",
                running.job_id,
                outcome.kind,
                extra={"job_id": str(running.job_id), "outcome": str(outcome.kind)},
            )
        return False

    def _count_too_late(self, running: Running, outcome: Outcome) -> None:
        too_late.send_robust(sender=self._holdings, running=running, outcome=outcome)


def _due(later: list[Later], now: float) -> tuple[list[Finished], list[Later]]:
    """What is to be tried again by now, and the rest."""
    if not later:
        return [], later
    return [it for due, it in later if due <= now], [each for each in later if each[0] > now]
