"""
drain: run what may run, in this thread and on its connection, until nothing is left.

The same code as in a worker decides about outcomes and stores them. Different from one: timeouts
are not enforced, `isolation="process"` is not obeyed, and a handler whose own query failed inside
the test's transaction has lost what it wrote before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections
from django.db.models import Min, Q

from ..clock import pretended
from ..conf import get_settings
from ..context import JobContext
from ..drivers import DatabaseDriver
from ..lifecycle import JobState, OutcomeKind
from ..models import Job
from ..operations import JobHandle, additions, report
from ..operations.inputs import attach
from ..operations.settle import settle
from ..operations.storage import alias_of, driver_for
from ..operations.telling import Settled, tell_settled
from ..payload import sanitise_text
from ..tasks import Task
from ..values import Outcome, Reservation
from ..worker import executor, reports
from ..worker.executor import Prepared
from ..worker.holdings import Running
from ..worker.pools import begin, run_here
from .allowed import allowed_aliases

LEASE = timedelta(hours=1)
WORKER = "drain"
LIMIT = 1_000
IN_ERROR = 3  # of libpq
FAILURES = (OutcomeKind.RETRY, OutcomeKind.FAIL)


@dataclass(kw_only=True, slots=True)
class Drained:
    """What was run, in its order."""

    jobs: list[JobHandle] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    """what handlers raised, also those that will be tried again"""
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> int:
        return self.ends[OutcomeKind.ACK]

    @property
    def retried(self) -> int:
        return self.ends[OutcomeKind.RETRY]

    @property
    def dead(self) -> int:
        return self.ends[OutcomeKind.FAIL]

    @property
    def released(self) -> int:
        return self.ends[OutcomeKind.RELEASE]

    @property
    def cancelled(self) -> int:
        return self.ends[OutcomeKind.CANCEL]

    def __len__(self) -> int:
        return len(self.jobs)


def drain(
    *queues: str,
    until: datetime | timedelta | None = None,
    raises: bool = False,
    limit: int = LIMIT,
    using: str | None = None,
) -> Drained:
    """
    Run all jobs that may run now, and what they enqueue; return what became of them.

    `until` goes on with those that are due by then, retries too, as if that time had come.
    `raises` raises what a handler raises. More than `limit` jobs are taken for an endless loop.
    Every database that keeps queues is looked into, or the one that `using` names.
    """
    journey, drained = _Journey(), Drained()
    clocks = [_Clock(driver_for(alias), journey) for alias in _homes(queues, using)]
    last = clocks[0].now() + until if isinstance(until, timedelta) else until
    while (found := _next(clocks, queues, last)) is not None:
        if len(drained) == limit:
            raise AssertionError(f"{limit:,} jobs have run and more are waiting: is there no end?")
        clock, reservation = found
        ran = _run(clock.driver, reservation, clock)
        drained.jobs.append(JobHandle.of(reservation.job.id, using=clock.driver.using))
        drained.ends[ran.outcome.kind] += 1
        if ran.exception is not None and ran.outcome.kind in FAILURES:
            drained.errors.append(ran.exception)
            if raises or isinstance(ran.exception, KeyboardInterrupt):
                raise ran.exception
    return drained


async def adrain(*queues: str, **options: Any) -> Drained:
    """The same in an async test."""
    return await sync_to_async(drain)(*queues, **options)


@dataclass(slots=True)
class _Journey:
    """How far `until` has come, for all databases."""

    moved_to: datetime | None = None


class _Clock:
    """The time of a database or of the test, and beyond it as far as `until` asks for."""

    def __init__(self, driver: DatabaseDriver, journey: _Journey) -> None:
        self.driver = driver
        self.journey = journey

    def now(self) -> datetime:
        now, moved_to = pretended() or self.driver.now(), self.journey.moved_to
        return now if moved_to is None else max(now, moved_to)


# -- which -------------------------------------------------------------------------------------


def _homes(queues: tuple[str, ...], using: str | None) -> list[str]:
    if using is not None:
        return [using]
    return list(dict.fromkeys(map(alias_of, queues))) or allowed_aliases()


def _next(
    clocks: list[_Clock], queues: tuple[str, ...], last: datetime | None
) -> tuple[_Clock, Reservation] | None:
    while True:
        earliest = min(clock.now() for clock in clocks)
        for clock in clocks:
            now = clock.now()
            for queue in _due_queues(clock.driver, queues, now):
                if taken := _reserve(clock.driver, queue, now):
                    return clock, taken
        moments = (_next_time(clock.driver, queues) for clock in clocks)
        moment = min((it for it in moments if it is not None), default=None)
        if last is None or moment is None or not earliest < moment <= last:
            return None
        clocks[0].journey.moved_to = moment


def _waiting(driver: DatabaseDriver, queues: tuple[str, ...]) -> Any:
    jobs = Job.objects.using(driver.using)
    return jobs.filter(queue__in=queues) if queues else jobs.all()


def _due_queues(driver: DatabaseDriver, queues: tuple[str, ...], now: datetime) -> list[str]:
    due = Q(state=JobState.SCHEDULED.value, available_at__lte=now)
    jobs = _waiting(driver, queues).filter(due | Q(state=JobState.READY.value))
    return list(jobs.order_by("queue").values_list("queue", flat=True).distinct())


def _next_time(driver: DatabaseDriver, queues: tuple[str, ...]) -> datetime | None:
    jobs = _waiting(driver, queues).filter(state=JobState.SCHEDULED.value)
    moment: datetime | None = jobs.aggregate(first=Min("available_at"))["first"]
    return moment


def _reserve(driver: DatabaseDriver, queue: str, now: datetime) -> Reservation | None:
    most = get_settings().max_lease_losses
    reserved = driver.reserve(queue, now=now, lease_for=LEASE, worker=WORKER, max_lease_losses=most)
    return attach(driver, reserved)[0] if reserved else None


# -- running -----------------------------------------------------------------------------------


def _run(driver: DatabaseDriver, reservation: Reservation, clock: _Clock) -> Settled:
    running = Running(reservation)
    prepared = executor.prepare(reservation, clock.now())
    if isinstance(prepared, Outcome):
        outcome = prepared
    else:
        begin(running, prepared, _Here(driver, clock))
        outcome = _call(driver, running, _awaited(prepared), clock)
    now = clock.now()
    if not running.settled:
        _write_progress(driver, running)
        for rejection in settle(driver, [outcome], now=now):
            raise rejection.error
    driver.extend_leases([running.token], now=clock.now(), lease_for=LEASE)  # removes an empty one
    settled = Settled(reservation, outcome, running.error)
    tell_settled(driver, [settled], now=now)
    return settled


def _call(driver: DatabaseDriver, running: Running, prepared: Prepared, clock: _Clock) -> Outcome:
    """Run the handler; each of the test's transactions must be able to go on after it."""
    inside = [it for it in connections.all() if it.in_atomic_block]
    marks: list[tuple[Any, Any]] = [(it, it.savepoint()) for it in inside]

    def mend() -> None:
        for connection, mark in marks:
            if _is_broken(connection):
                connection.needs_rollback = False
                connection.savepoint_rollback(mark)

    return run_here(running, prepared, using=driver.using, clock=clock, clean=mend)


def _is_broken(connection: Any) -> bool:
    """A query failed inside the transaction, which takes no other one now."""
    if connection.needs_rollback or connection.vendor != "postgresql":
        return bool(connection.needs_rollback)
    return int(connection.connection.info.transaction_status) == IN_ERROR


def _awaited(prepared: Prepared) -> Prepared:
    """The call with a coroutine function made one that waits for its end."""
    task: Task[Any, Any] = prepared.task
    if not task.is_async:
        return prepared
    return replace(prepared, task=replace(task, function=async_to_sync(task.function)))


class _Here:
    """What stands behind the context: the test's own connection."""

    def __init__(self, driver: DatabaseDriver, clock: _Clock) -> None:
        self._driver = driver
        self._clock = clock

    def progressed(self, context: JobContext) -> None:
        """Nothing yet: it is written before the outcome."""

    def load_checkpoint(self, data: bytes) -> Any:
        return reports.decode_checkpoint(data)

    def save_checkpoint(self, context: JobContext, value: Any) -> None:
        data, lease = reports.encode_checkpoint(value), context.reservation.lease
        report.save_checkpoint(
            self._driver, context.job_id, lease.token, data, now=self._clock.now()
        )
        reports.keep_checkpoint(context, data)

    def previous_attempt_id(self, context: JobContext) -> int | None:
        return report.previous_attempt_id(self._driver, context.job_id)

    def add(self, context: JobContext, part: Any, key: str | None) -> Any:
        asked = reports.addition_of(context, part, key)
        if not reports.kept_for_the_ack(context, asked):
            additions.add(self._driver, context.reservation, asked)
        return additions.handles(asked, self._driver.using)


def _write_progress(driver: DatabaseDriver, running: Running) -> None:
    if running.context is None or running.context.progress is None:
        return
    percent, message = running.context.progress
    text = sanitise_text(message, reports.MESSAGE_MAX_CHARS)
    facts = {"progress": percent, "progress_message": text}
    report.report(driver, {running.job_id: (running.token, facts)})
