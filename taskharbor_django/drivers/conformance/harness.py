"""What a driver under test must supply, and the words in which the rules are written."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID, uuid4

from ...exceptions import JobLocked
from ...lifecycle import FailureCategory, OutcomeKind
from ...values import FailureUpdate, JobRecord, Outcome, Rejection, Reservation

T0 = datetime(2031, 5, 17, 9, 30, 0, 123_457, tzinfo=UTC)
TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)

FAILURE = FailureUpdate(
    attempts=2,
    last_error="no route to host",
    failed_at=T0 + 5 * SECOND + TICK,
    category=FailureCategory.TIMEOUT,
    code="E42",
)

# The worker's times of a run, apart from the time at which its outcome is settled.
STARTED, FINISHED, NOW = T0 + SECOND + TICK, T0 + 2 * SECOND + TICK, T0 + 3 * SECOND

# What is stored of FAILURE, and of a lease that is given up.
FAILED: dict[str, Any] = {
    "attempts": 2,
    "last_error": "no route to host",
    "failed_at": T0 + 5 * SECOND + TICK,
    "failure_category": "timeout",
    "failure_code": "E42",
    "attempt_ends": ((1, "failed"),),
}
NO_LEASE: dict[str, Any] = {"lease": None, "lease_expires_at": None}

# Long enough for the slowest database, short enough that a deadlock fails the test.
PATIENCE = 60

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a driver has stored about one job, read back past the driver's verbs."""

    state: str
    queue: str
    priority: int
    payload: bytes
    created_at: datetime
    available_at: datetime
    run_at: datetime | None
    expires_at: datetime | None
    """end of the job's lifetime"""
    attempts: int
    max_attempts: int
    executions: int
    handler_misses: int
    lease: UUID | None
    """the token on the job, whether or not that lease is still stored"""
    lease_expires_at: datetime | None
    """of the lease with that token; None when no such lease is stored (any more)"""
    lease_version: int
    lease_losses: int
    last_error: str
    failed_at: datetime | None
    failure_category: str
    failure_code: str
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    result: bytes | None
    result_expires_at: datetime | None
    reason: str
    """of the open dead letter, else empty"""
    dead_letters: int
    """how many are open"""
    attempt_ends: tuple[tuple[int, str], ...]
    """(lease version, done | failed | lost) of each recorded attempt, by version"""


def require(fact: bool, about: object) -> None:  # noqa: FBT001
    """Assert, also where Python leaves `assert` out."""
    if not fact:
        raise AssertionError(about)


def same(found: object, expected: object, about: object = "") -> None:
    require(found == expected, f"{about}: expected {expected!r}, found {found!r}")


def different(found: object, *others: object) -> None:
    require(found not in others, f"{found!r} was there before")


def changed(before: Stored, after: Stored) -> dict[str, Any]:
    """Name the fields that differ, with their new values."""
    names = (field.name for field in fields(Stored))
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    return {name: new for name, (old, new) in pairs.items() if old != new}


def refused(
    error: type[Exception], call: Callable[..., object], *args: Any, about: object = "", **more: Any
) -> Exception:
    """Demand that the call raises exactly this error: a child of it is another answer."""
    try:
        answer = call(*args, **more)
    except error as exception:
        require(type(exception) is error, f"{about}: {exception!r}, not {error.__name__}")
        return exception
    raise AssertionError(f"{about}: returned {answer!r}, did not raise {error.__name__}")


def outcome(kind: OutcomeKind, held: Reservation, **facts: Any) -> Outcome:
    """Report about a reservation what its worker would."""
    if kind == OutcomeKind.RETRY:
        facts.setdefault("update", FAILURE)
    if kind == OutcomeKind.FAIL:
        facts.setdefault("reason", "exhausted")
    facts = {"token": held.lease.token, "version": held.lease.version, **facts}
    return Outcome(job_id=held.job.id, kind=kind, **facts)


def persist(driver: Any, outcomes: Sequence[Outcome], now: datetime) -> list[Rejection]:
    """Settle, and settle again what met a lock, as a worker does."""
    final: list[Rejection] = []
    for _ in range(100_000):
        rejected = driver.settle(outcomes, now=now)
        final += [each for each in rejected if not isinstance(each.error, JobLocked)]
        outcomes = [each.outcome for each in rejected if isinstance(each.error, JobLocked)]
        if not outcomes:
            return final
    raise AssertionError("the job stayed locked")


class Harness:
    """The hooks that a driver's own test class fills in, and short forms for the tests."""

    racers = 32
    """threads that start together in the tests of races"""
    rounds = 10
    """how often a race of two is run"""

    # -- hooks -----------------------------------------------------------------------------------

    def make_driver(self) -> Any:
        """Return an open driver over an empty store."""
        raise NotImplementedError

    def stored(self, driver: Any, job_id: UUID) -> Stored | None:
        """Read back what is stored about a job; None when there is no such job."""
        raise NotImplementedError

    def request_cancel(self, driver: Any, job_id: UUID, now: datetime) -> None:
        """Note on an inflight job that somebody asked to cancel it."""
        raise NotImplementedError

    def take_token(self, driver: Any, job_id: UUID, now: datetime) -> None:
        """Cancel an inflight job by force: it ends `cancelled`, without a token."""
        raise NotImplementedError

    def pause_queue(self, driver: Any, queue: str) -> None:
        """Pause a queue for good."""
        raise NotImplementedError

    def drop_lease(self, driver: Any, token: UUID) -> None:
        """Lose a stored lease while the jobs that carry its token stay."""
        raise NotImplementedError

    def connect(self, driver: Any) -> Any:
        """Return a driver over the same store for use in another thread."""
        return driver

    def cleanup_thread(self) -> None:
        """Give back what `connect` or the calls after it opened in this thread."""

    # -- short forms -----------------------------------------------------------------------------

    @cached_property
    def driver(self) -> Any:
        return self.make_driver()

    @cached_property
    def _numbers(self) -> itertools.count[int]:
        return itertools.count(1)

    def new_queue(self) -> str:
        return f"queue-{next(self._numbers)}"

    def record(self, **fields: Any) -> JobRecord:
        return JobRecord(**{"task": "conformance.task", "created_at": T0, **fields})

    def put(self, **fields: Any) -> UUID:
        job_id: UUID = self.driver.enqueue(self.record(**fields))
        return job_id

    def put_many(self, count: int, **fields: Any) -> list[UUID]:
        records = [self.record(**fields) for _ in range(count)]
        ids: list[UUID] = self.driver.enqueue_many(records)
        return ids

    def take(
        self, queue: str = "default", *, now: datetime = T0, limit: int = 1, **options: Any
    ) -> list[Reservation]:
        options.setdefault("lease_for", LEASE)
        taken: list[Reservation] = self.driver.reserve(queue, now=now, limit=limit, **options)
        return taken

    def take_ids(self, queue: str = "default", **options: Any) -> list[UUID]:
        return [held.job.id for held in self.take(queue, **options)]

    def take_one(self, queue: str = "default", **options: Any) -> Reservation:
        taken = self.take(queue, **options)
        same(len(taken), 1, "jobs reserved")
        return taken[0]

    def hold(self, *, take: dict[str, Any] | None = None, **fields: Any) -> Reservation:
        """Put one job into a queue of its own and reserve it."""
        fields.setdefault("queue", self.new_queue())
        self.put(**fields)
        return self.take_one(fields["queue"], **(take or {}))

    def hold_many(self, count: int, **options: Any) -> list[Reservation]:
        """Put jobs into a queue of their own and reserve them in one call."""
        queue = self.new_queue()
        self.put_many(count, queue=queue)
        held = self.take(queue, limit=count, **options)
        same(len(held), count, "jobs reserved")
        return held

    def turn(self, now: datetime, **options: Any) -> None:
        """Let a worker of some other, empty queue come by."""
        same(self.take(self.new_queue(), now=now, **options), [], "an empty queue")

    def look(self, job_id: UUID) -> Stored:
        found = self.stored(self.driver, job_id)
        if found is None:
            raise AssertionError(f"the job {job_id} is not stored")
        return found

    def settle(
        self, kind: OutcomeKind, held: Reservation, now: datetime = T0, **facts: Any
    ) -> None:
        """Settle one outcome and demand that it is applied."""
        rejected = self.driver.settle([outcome(kind, held, **facts)], now=now)
        same(rejected, [], f"{kind} of a held job")

    def effect(
        self, kind: OutcomeKind, held: Reservation, now: datetime = T0, **facts: Any
    ) -> dict[str, Any]:
        """Settle one outcome and name the fields that it changed."""
        before = self.look(held.job.id)
        self.settle(kind, held, now, **facts)
        return changed(before, self.look(held.job.id))

    def lose(self, held: Reservation, **options: Any) -> None:
        """Let the lease run out and be reclaimed."""
        self.turn(held.lease.expires_at, **options)

    def crowd(self, work: Callable[[Any, int], T], count: int | None = None) -> list[T]:
        """Run the work in many threads that start together; hand back what each returned."""
        count = count or self.racers
        gate = threading.Barrier(count)
        shared = self.driver

        def run(number: int) -> T:
            try:
                driver = self.connect(shared)
                # Opens the thread's connection, so that the race is about the work alone.
                driver.held(uuid4(), now=T0)
                gate.wait(PATIENCE)
                return work(driver, number)
            except BaseException:
                gate.abort()
                raise
            finally:
                self.cleanup_thread()

        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(run, number) for number in range(count)]
        return _results(futures)


def _results(futures: Sequence[Any]) -> list[Any]:
    """Collect what the threads returned; of several errors show the one that came first."""
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
