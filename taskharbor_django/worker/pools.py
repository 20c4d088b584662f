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
from collections.abc import Callable, Iterable
from datetime import datetime

from django.db import connections as django_connections

from .. import signals
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
from .inputs import Inputs, take
from .interrupts import Interrupted, Interruptible
from .trouble import tell_fault
from .waiting import WaitingLine

logger = logging.getLogger(__name__)

TIME_IS_UP = "its time is up"
SHUTDOWN = "the worker is shutting down"
DOUBT_AFTER = 1.0  # seconds that a thread had nothing to do

OnFinished = Callable[[Running, Outcome], None]
Isolated = Callable[[Running, Prepared], Outcome | None]


class ThreadPool:
    """Sync handlers; an isolated one occupies a thread too, which looks after its child."""

    def __init__(
        self,
        size: int,
        *,
        runtime: Runtime,
        clock: Clock,
        on_finished: OnFinished,
        isolated: Isolated,
        inputs: Inputs,
        using: str,
        isolate_all: bool = False,
    ) -> None:
        self.size = size
        self._runtime = runtime
        self._clock = clock
        self._on_finished = on_finished
        self._isolated = isolated
        self._inputs = inputs
        self._isolate_all = isolate_all
        self._using = using
        self.line = WaitingLine()
        self._changed = threading.Condition()
        self._idle = 0
        self._closing = False
        # By the job and not by the thread, which may have drawn another one meanwhile.
        self.busy: dict[Running, int] = {}
        self._parting = threading.Lock()
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
            self.line.extend(reserved)
            self._changed.notify(len(self.line))

    @property
    def free(self) -> int:
        """Threads that have nothing to do and nothing waiting for them."""
        return self.size - len(self.busy) - len(self.line) - len(self.left_behind)

    @property
    def at_rest(self) -> bool:
        """No thread runs a job or is about to."""
        return self._idle + len(self.left_behind) >= self.size

    def take_back(self) -> list[Running]:
        """Take out of the line everything that has not started."""
        return self.line.take_back()

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

    def leave_behind(self, running: Running) -> bool:
        """Give up a thread that will not stop, with its slot and connections; False if it did."""
        thread = self._part_from(running)
        if thread is None:
            return False
        self.left_behind.add(thread)
        self.opened.cut(thread)
        return True

    def shut(self, running: Running) -> None:
        """Shut the connections under a job that does not hear; not those of the next one."""
        with self._parting:
            if (thread := self.busy.get(running)) is not None:
                self.opened.shut(thread)

    def _part_from(self, running: Running) -> int | None:
        """Take the job from its thread; None when the other side, watch or thread, was first."""
        with self._parting:
            return self.busy.pop(running, None)

    # -- in the threads --------------------------------------------------------------------------

    def _work(self) -> None:
        me = threading.get_ident()
        self.opened.expect(me)
        while (running := self._draw(me)) is not None:
            outcome = self._run_safely(running)
            if self._part_from(running) is None:
                return  # left behind: the outcome was decided without it
            if outcome is not None:
                hand_over(self._on_finished, running, outcome)
            if running.forced:  # its connections may just have been shut
                self._doubt(me)
        self._end(me)

    def _draw(self, me: int) -> Running | None:
        while True:
            try:
                running = self.line.popleft()
            except IndexError:
                idle_since = steady()
                if not self._wait():
                    return None
                if steady() - idle_since >= DOUBT_AFTER:
                    self._doubt(me)
                continue
            self.busy[running] = me
            return running

    def _doubt(self, me: int) -> None:
        with contextlib.suppress(Exception):  # a broken one may fail to close, too
            connections.doubt(self.opened.by(me))

    def _wait(self) -> bool:
        with self._changed:
            if not self.line and not self._closing:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return bool(self.line) or not self._closing

    def _end(self, me: int) -> None:
        self.opened.forget(me)
        django_connections.close_all()

    def _run_safely(self, running: Running) -> Outcome | None:
        try:
            return self._run(running)
        except BaseException as error:  # noqa: BLE001  it must not cost the thread
            return fault(error, running, self._clock.now())

    def _run(self, running: Running) -> Outcome | None:
        if running.reservation.job.input:
            reading = self._inputs.read(running.reservation)
            if (unread := take(running, reading, self._clock)) is not None:
                return unread
        reservation, at = running.reservation, steady()
        if (ended := ended_before(running, at)) is not None:
            return ended
        prepared = executor.prepare(reservation, self._clock.now())
        if isinstance(prepared, Outcome):
            return prepared
        begin(running, prepared, self._runtime, at)
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
    if signals.started.wanted:
        signals.tell_started(prepared.task, running.context)
    running.stop = lambda _why, force: stretch.interrupt() if force else None
    token = current.set(running.context)
    outcome: Outcome | None = None
    value, error = None, None
    try:
        try:
            stretch.enter()
            if running.forced:  # before there was a stretch to interrupt
                raise Interrupted
            if prepared.task.atomic:
                outcome = run_atomic(using, running, prepared, clock, stretch)
            else:
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
    if outcome is None:
        # Now, not when the next job comes: an open transaction holds locks while the thread idles.
        _clean_up(clean)
        now = clock.now()
        if error is None:
            outcome = executor.finished(prepared, running.reservation, value, now)
        else:
            outcome = end_of(error, running, prepared, now)
    return told(outcome, running, prepared)


def hand_over(on_finished: OnFinished, running: Running, outcome: Outcome) -> None:
    """Say what became of a job; whatever raises then must not cost the thread."""
    try:
        on_finished(running, outcome)
    except Exception as error:  # noqa: BLE001  a filter of the project's logging, for one
        tell_fault(logger, error, "job %s: what has to follow its end failed", running.job_id)


def told(outcome: Outcome, running: Running, prepared: Prepared) -> Outcome:
    """The outcome, after those who listen have heard that the run is over."""
    if signals.stopped.wanted:
        signals.tell_stopped(prepared.task, running.context, outcome, running.error)
    return outcome


def _clean_up(clean: Callable[[], None]) -> None:
    """What the handler left of its connections must not change what it has achieved."""
    try:
        clean()
    except Exception as error:  # noqa: BLE001  whatever it is, the handler is done
        tell_fault(logger, error, "the connections of a job could not be cleaned; they are closed")
        with contextlib.suppress(Exception):
            django_connections.close_all()


def begin(running: Running, prepared: Prepared, runtime: Runtime, at: float | None = None) -> None:
    """Note the start, and until when it may take; `at` is now, for who has asked already."""
    deadline = prepared.deadline(running.reservation)
    running.context = JobContext(running.reservation, runtime, deadline)
    running.started_at = prepared.started_at
    if running.asked:  # meanwhile
        running.context.cancel(running.asked)
    timeout = running.reservation.job.timeout
    if timeout is not None:
        running.deadline = (steady() if at is None else at) + timeout.total_seconds()


def ended_before(running: Running, at: float) -> Outcome | None:
    """What becomes of a job that should not begin any more; None when it should."""
    if running.forced or not running.is_ours(at):
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
    tell_fault(logger, error, "job %s: the worker itself failed", running.job_id)
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
    running.error = error
    why = running.context.why_cancelled if running.context else ""
    if why == SHUTDOWN:
        started_at = prepared.started_at
        return decide.outcome(OutcomeKind.RELEASE, running.reservation, started_at=started_at)
    if why and isinstance(error, Interrupted | CancelRequested | CancelledError):
        error = JobTimeout() if why == TIME_IS_UP else CancelRequested(why)
    return executor.failed(prepared, running.reservation, error, now)
