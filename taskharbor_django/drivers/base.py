"""The contract between the core and what stores its jobs. A driver stores; the core decides."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..exceptions import DriverClosed, InvalidLeaseDuration
from ..lifecycle import OutcomeKind
from ..values import FailureUpdate, JobRecord, Lease, Outcome, Rejection, Reservation


class Driver(abc.ABC):
    """
    Primitive moves over stored jobs.

    `now` is an aware datetime given by the caller and decides everything; precision is the
    microsecond. A lease is expired when `expires_at <= now`, a job due when `run_at <= now`.

    A driver implements the set-based verbs; the single forms here are one-element calls of them.
    Errors change nothing and are looked for in this order: DriverClosed, InvalidLeaseDuration,
    JobNotInflight (JobNotFound), LeaseExpired, LeaseMismatch, JobLocked.
    """

    _closed = False

    # -- set-based, which the worker uses --------------------------------------------------------

    @abc.abstractmethod
    def enqueue_many(self, records: Sequence[JobRecord]) -> list[UUID]:
        """Store all of them or none; for a known idempotency key the existing job's id."""

    @abc.abstractmethod
    def reserve(
        self,
        queue: str,
        *,
        now: datetime,
        lease_for: timedelta,
        limit: int = 1,
        worker: str = "",
        token: UUID | None = None,
        max_lease_losses: int | None = None,
        floor: tuple[int, datetime] | None = None,
    ) -> list[Reservation]:
        """
        Promote what is due, reclaim what expired, then lease up to `limit` jobs in order.

        The jobs without a lost lease share one lease whose token is `token`, made here unless the
        caller made it; every other job has a lease of its own. `floor` leaves out jobs of that
        priority that became available before that time.
        """

    @abc.abstractmethod
    def held(self, token: UUID, *, now: datetime) -> list[Reservation]:
        """All that the reserve call with this token took and that is still held."""

    @abc.abstractmethod
    def expire_leases(self, worker: str, *, now: datetime) -> int:
        """End the leases of a process that was seen to die; return how many."""

    @abc.abstractmethod
    def extend_leases(
        self, tokens: Iterable[UUID], *, now: datetime, lease_for: timedelta
    ) -> dict[UUID, Lease]:
        """Renew what is unexpired and still covers an inflight job; the others are missing."""

    @abc.abstractmethod
    def settle(self, outcomes: Sequence[Outcome], *, now: datetime) -> list[Rejection]:
        """Apply each outcome whose token holds an unexpired lease; report the others."""

    @abc.abstractmethod
    def sweep(self, *, now: datetime, max_lease_losses: int | None = None) -> int:
        """Reclaim inflight jobs whose lease is gone, remove leases without jobs."""

    # -- single forms ----------------------------------------------------------------------------

    def enqueue(self, record: JobRecord) -> UUID:
        return self.enqueue_many([record])[0]

    @abc.abstractmethod
    def extend_lease(
        self, job_id: UUID, token: UUID, *, now: datetime, lease_for: timedelta
    ) -> Lease:
        """Renew the lease of one inflight job; the token stays."""

    def ack(self, job_id: UUID, token: UUID, *, now: datetime, result: bytes | None = None) -> None:
        self._settle_one(OutcomeKind.ACK, job_id, token, now, result=result)

    def retry(self, job_id: UUID, token: UUID, *, now: datetime, update: FailureUpdate) -> None:
        self._settle_one(OutcomeKind.RETRY, job_id, token, now, update=update)

    def fail(
        self,
        job_id: UUID,
        token: UUID,
        *,
        now: datetime,
        reason: str,
        update: FailureUpdate | None = None,
    ) -> None:
        self._settle_one(OutcomeKind.FAIL, job_id, token, now, reason=reason, update=update)

    def release(
        self, job_id: UUID, token: UUID, *, now: datetime, run_at: datetime | None = None
    ) -> None:
        self._settle_one(OutcomeKind.RELEASE, job_id, token, now, run_at=run_at)

    def close(self) -> None:
        """Refuse every later call with DriverClosed."""
        self._closed = True

    # -- for implementations ---------------------------------------------------------------------

    def _settle_one(
        self, kind: OutcomeKind, job_id: UUID, token: UUID, now: datetime, **facts: Any
    ) -> None:
        outcome = Outcome(job_id=job_id, token=token, kind=kind, **facts)
        for rejection in self.settle([outcome], now=now):
            raise rejection.error

    def _check(self, now: datetime | None = None, lease_for: timedelta | None = None) -> None:
        """Refuse what every verb refuses, before it looks at anything stored."""
        if self._closed:
            raise DriverClosed
        if now is not None and now.tzinfo is None:
            raise ValueError(f"now must have a time zone: {now!r}")
        if lease_for is not None and lease_for <= timedelta(0):
            raise InvalidLeaseDuration(f"A lease must last longer than zero, not {lease_for}.")
