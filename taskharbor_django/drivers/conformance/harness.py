"""What a driver under test must supply, and short forms for the tests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID, uuid4

from ...lifecycle import OutcomeKind
from ...values import JobRecord, Reservation
from .terms import LEASE, T0, Stored, changed, outcome, same

# Long enough for the slowest database, short enough that a deadlock fails the test.
PATIENCE = 60

T = TypeVar("T")


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
        """Cancel an inflight job by force: it gives up its token, and its attempt is `lost`."""
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
