"""
Where handlers run. A pool takes reservations into one line and works through it.

Threads draw from the line themselves: handing each job to a chosen thread costs more than running a
short one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from uuid import UUID

from django.db import connections as django_connections

from ..clock import Clock, steady
from ..context import JobContext, Runtime, current
from ..exceptions import CancelRequested, JobTimeout
from ..lifecycle import FailureCategory, OutcomeKind
from ..operations import decide
from ..tasks import registry
from ..values import Outcome
from . import connections, executor
from .atomic import run_atomic
from .executor import Prepared
from .holdings import Running
from .interrupts import Interrupted, Interruptible

logger = logging.getLogger(__name__)

TIME_IS_UP = "its time is up"
SHUTDOWN = "the worker is shutting down"
DOUBT_AFTER = 1.0  # seconds that a thread had nothing to do

OnFinished = Callable[[Running, Outcome], None]
Isolated = Callable[[Running, Prepared], Outcome | None]
Holds = Callable[[UUID], bool]


class ThreadPool:
    """Sync handlers; an isolated one occupies a thread too, which looks after its child."""

    def __init__(
        self,
        size: int,
        *,
        runtime: Runtime,
        clock: Clock,
        on_finished: OnFinished,
        holds: Holds,
        isolated: Isolated,
        using: str,
        isolate_all: bool = False,
    ) -> None:
        self.size = size
        self._runtime = runtime
        self._clock = clock
        self._on_finished = on_finished
        self._holds = holds
        self._isolated = isolated
        self._isolate_all = isolate_all
        self._using = using
        self._line: deque[Running] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._closing = False
        self.busy: dict[int, Running] = {}
        self.left_behind: set[int] = set()
        self._threads: list[threading.Thread] = []
        self.opened = connections.Opened()

    # -- from the loop ---------------------------------------------------------------------------

    def start(self) -> None:
        self.opened.watch()
        for number in range(self.size):
            thread = threading.Thread(target=self._work, name=f"taskharbor-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def put(self, reserved: Iterable[Running]) -> None:
        with self._changed:
            self._line.extend(reserved)
            self._changed.notify(len(self._line))

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def free(self) -> int:
        """Threads that have nothing to do and nothing waiting for them."""
        return self.size - len(self.busy) - len(self._line) - len(self.left_behind)

    @property
    def at_rest(self) -> bool:
        """No thread runs a job or is about to."""
        return self._idle + len(self.left_behind) >= self.size

    def oldest_wait(self) -> float:
        try:
            return steady() - self._line[0].reserved
        except IndexError:
            return 0.0

    def take_back(self) -> list[Running]:
        """Take out of the line everything that has not started."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:  # one by one: threads draw from it meanwhile
                taken.append(self._line.popleft())
        return taken

    def close(self, timeout: float) -> bool:
        """Let idle threads end; False when some are still at work after the timeout."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = steady() + timeout
        for thread in self._threads:
            if thread.ident not in self.left_behind:
                thread.join(max(0.0, until - steady()))
        self.opened.unwatch()
        return not any(thread.is_alive() for thread in self._threads)

    def timed_out(self, running: Running, text: str = "") -> Outcome:
        """The outcome of a job whose thread was left behind."""
        job = running.reservation.job
        return decide.outcome_of(
            JobTimeout(text),
            running.reservation,
            registry.get(job.task),
            now=self._clock.now(),
            started_at=running.started_at,
        )

    def leave_behind(self, thread: int) -> bool:
        """Give up a thread that will not stop, with its slot and connections; False if it did."""
        if self.busy.pop(thread, None) is None:
            return False
        self.left_behind.add(thread)
        self.opened.cut(thread)
        return True

    # -- in the threads --------------------------------------------------------------------------

    def _work(self) -> None:
        me = threading.get_ident()
        self.opened.expect(me)
        while (running := self._draw(me)) is not None:
            outcome = self._run_safely(running)
            if self.busy.pop(me, None) is None:
                return  # left behind: the outcome was decided without it
            if outcome is not None:
                self._on_finished(running, outcome)
        self._end(me)

    def _draw(self, me: int) -> Running | None:
        while True:
            try:
                running = self._line.popleft()
            except IndexError:
                idle_since = steady()
                if not self._wait():
                    return None
                if steady() - idle_since >= DOUBT_AFTER:
                    with contextlib.suppress(Exception):  # a broken one may fail to close, too
                        connections.doubt(self.opened.by(me))
                continue
            self.busy[me] = running
            return running

    def _wait(self) -> bool:
        with self._changed:
            if not self._line and not self._closing:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return bool(self._line) or not self._closing

    def _end(self, me: int) -> None:
        self.opened.forget(me)
        django_connections.close_all()

    def _run_safely(self, running: Running) -> Outcome | None:
        try:
            return self._run(running)
        except BaseException as error:  # noqa: BLE001  it must not cost the thread
            return fault(error, running, self._clock.now())

    def _run(self, running: Running) -> Outcome | None:
        reservation = running.reservation
        if (ended := ended_before(running, self._holds)) is not None:
            return ended
        prepared = executor.prepare(reservation, self._clock.now())
        if isinstance(prepared, Outcome):
            return prepared
        begin(running, prepared, self._runtime)
        # A job that lost a lease may have killed its process: it runs where that hurts nobody else.
        quarantined = reservation.job.lease_losses > 0
        if quarantined or prepared.task.isolation == "process" or self._isolate_all:
            return self._isolated(running, prepared)
        return run_here(running, prepared, using=self._using, clock=self._clock, clean=self._clean)

    def _clean(self) -> None:
        connections.clean(self.opened.by(threading.get_ident()))


def run_here(
    running: Running,
    prepared: Prepared,
    *,
    using: str,
    clock: Clock,
    clean: Callable[[], None] = connections.clean,
    stretch: Interruptible | None = None,
) -> Outcome:
    """Run a sync handler in this thread, which is clean; `running.stop` interrupts it."""
    stretch = stretch or Interruptible()
    running.stop = lambda _why, force: stretch.interrupt() if force else None
    token = current.set(running.context)
    reservation, error = running.reservation, None
    try:
        try:
            stretch.enter()
            if running.forced:  # before there was a stretch to interrupt
                raise Interrupted
            if prepared.task.atomic:
                return run_atomic(using, running, prepared, clock, stretch)
            value = executor.call(prepared, running.context)
        finally:
            stretch.leave()
    except BaseException as raised:  # noqa: BLE001  SystemExit too is the job's, not ours
        stretch.leave()
        error = raised
    finally:
        current.reset(token)
    if stretch.was_interrupted or isinstance(error, Interrupted):
        django_connections.close_all()  # it may have been raised in the midst of a query
    # Now, not when the next job comes: an open transaction holds locks while the thread idles.
    _clean_up(clean)
    now = clock.now()
    if error is not None:
        return end_of(error, running, prepared, now)
    return executor.finished(prepared, reservation, value, now)


def _clean_up(clean: Callable[[], None]) -> None:
    """What the handler left of its connections must not change what it has achieved."""
    try:
        clean()
    except Exception:
        logger.exception("the connections of a job could not be cleaned; they are closed")
        with contextlib.suppress(Exception):
            django_connections.close_all()


def begin(running: Running, prepared: Prepared, runtime: Runtime) -> None:
    """Note the start, and until when it may take."""
    deadline = prepared.deadline(running.reservation)
    running.context = JobContext(running.reservation, runtime, deadline)
    running.started_at = prepared.started_at
    if running.asked:  # meanwhile
        running.context.cancel(running.asked)
    if running.reservation.job.timeout is not None:
        running.deadline = steady() + running.reservation.job.timeout.total_seconds()


def ended_before(running: Running, holds: Holds) -> Outcome | None:
    """What becomes of a job that should not begin any more; None when it should."""
    if running.forced or not holds(running.token):
        return not_ours(running)
    return decide.outcome(OutcomeKind.CANCEL, running.reservation) if running.asked else None


def not_ours(running: Running) -> Outcome:
    """
    What becomes of a job whose lease ran out before it began, as in a process that was stopped.

    Given back and not dropped: if a renewal was on its way, nobody else would ever run it.
    """
    return decide.outcome(OutcomeKind.RELEASE, running.reservation)


def fault(error: BaseException, running: Running, now: datetime) -> Outcome:
    """What a fault around the handler means: the runtime's own, or a backoff's or a codec's."""
    logger.error("job %s: the worker itself failed", running.job_id, exc_info=error)
    return decide.outcome_of(
        error,
        running.reservation,
        None,
        now=now,
        started_at=running.started_at,
        category=FailureCategory.SYSTEM,
    )


def end_of(error: BaseException, running: Running, prepared: Prepared, now: datetime) -> Outcome:
    """What an exception means, given why the runtime may have raised it itself."""
    why = running.context.why_cancelled if running.context else ""
    if why == SHUTDOWN:
        started_at = prepared.started_at
        return decide.outcome(OutcomeKind.RELEASE, running.reservation, started_at=started_at)
    if why and isinstance(error, Interrupted | CancelRequested | CancelledError):
        error = JobTimeout() if why == TIME_IS_UP else CancelRequested(why)
    return executor.failed(prepared, running.reservation, error, now)
