"""
MemoryDriver: the contract in one process, for tests. Ephemeral; no workflows.

Locks:  one lock around every verb, so each is a single step for all threads.
Fence:  the state of the job, then expiry, token and version of its lease.
Repeat: safe; an outcome that was applied before is rejected as repeated.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from uuid import UUID, uuid4

from ..exceptions import DuplicateJob, JobNotFound, TaskHarborError
from ..lifecycle import WAITING, AttemptEnd, JobState, OutcomeKind
from ..values import JobRecord, Lease, Outcome, Rejection, Reservation
from . import moves
from .base import Driver
from .memory_store import MemoryJob, MemoryLease, MemoryStore, new_job

Keys = dict[tuple[str, str | None], tuple[UUID, datetime]]

_place = attrgetter("place")


def _utcnow() -> datetime:
    return datetime.now(UTC)


class MemoryDriver(Driver):
    """Jobs in dictionaries; `clock` is asked for the time of an enqueue that brings none."""

    def __init__(self, clock: Callable[[], datetime] = _utcnow) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._store = MemoryStore()
        self._keys: Keys = {}
        self._spent_calls: set[UUID] = set()
        self._paused: dict[str, datetime | None] = {}
        self._seq = itertools.count(1)

    # -- enqueue ---------------------------------------------------------------------------------

    def enqueue_many(self, records: Sequence[JobRecord]) -> list[UUID]:
        self._check()
        records = list(records)
        for record in records:
            record.validate()
        with self._lock:
            ids, jobs, keys = self._plan(records)
            for job in jobs.values():
                self._store.add(job)
            self._keys.update(keys)
        return ids

    def _plan(self, records: list[JobRecord]) -> tuple[list[UUID], dict[UUID, MemoryJob], Keys]:
        """Work out ids, jobs and keys without storing any, so that an error stores nothing."""
        ids: list[UUID] = []
        jobs: dict[UUID, MemoryJob] = {}
        keys: Keys = {}
        for record in records:
            now = record.created_at or self._clock()
            key = record.task, record.idempotency_key
            known, until = keys.get(key) or self._keys.get(key) or (None, now)
            if known is not None and until > now:
                ids.append(known)
                continue
            if record.id in self._store.jobs or record.id in jobs:
                raise DuplicateJob(f"A job with the id {record.id} exists already.")
            if record.idempotency_key is not None:
                keys[key] = record.id, now + record.idempotency_ttl
            jobs[record.id] = new_job(record, next(self._seq), now)
            ids.append(record.id)
        return ids, jobs, keys

    # -- reserve ---------------------------------------------------------------------------------

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
        self._check(now, lease_for)
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        with self._lock:
            call = token or uuid4()
            if call in self._spent_calls:
                raise ValueError(f"the token {call} has named a reserve call before")
            self._promote(now)
            self._reclaim(now, max_lease_losses)
            if self._is_paused(queue, now):
                return []
            jobs = heapq.nsmallest(limit, self._runnable(queue, now, floor), key=_place)
            return [self._claim(job, call, worker, now, now + lease_for) for job in jobs]

    def _promote(self, now: datetime) -> None:
        for job in self._store.in_state(JobState.SCHEDULED):
            if job.is_due(now):
                with self._store.moving(job, now):
                    job.state = JobState.READY

    def _reclaim(self, now: datetime, max_lease_losses: int | None) -> int:
        inflight = self._store.in_state(JobState.INFLIGHT)
        lost = [job for job in inflight if not self._store.is_held(job, now)]
        for job in lost:
            self._store.leases.pop(job.lease, None)
            with self._store.moving(job, now):
                job.reclaim(now, max_lease_losses)
        return len(lost)

    def _is_paused(self, queue: str, now: datetime) -> bool:
        if queue not in self._paused:
            return False
        until = self._paused[queue]
        return until is None or until > now

    def _runnable(
        self, queue: str, now: datetime, floor: tuple[int, datetime] | None
    ) -> Iterator[MemoryJob]:
        for job in self._store.in_state(JobState.READY):
            if job.record.queue != queue or not job.is_due(now):
                continue
            if floor and job.record.priority == floor[0] and job.available_at < floor[1]:
                continue
            yield job

    def _claim(
        self, job: MemoryJob, call: UUID, worker: str, now: datetime, expires_at: datetime
    ) -> Reservation:
        # A job that lost a lease before is alone in its next one: if it kills its process again,
        # nobody else is charged with it.
        token = uuid4() if job.lease_losses else call
        lease = self._store.leases.setdefault(
            token, MemoryLease(token, call, worker, now, expires_at)
        )
        self._spent_calls.add(call)
        with self._store.moving(job, now):
            job.claim(token)
        return job.reservation(lease)

    # -- leases ----------------------------------------------------------------------------------

    def held(self, token: UUID, *, now: datetime) -> list[Reservation]:
        self._check(now)
        with self._lock:
            found = []
            for job in sorted(self._store.in_state(JobState.INFLIGHT), key=_place):
                lease = self._store.lease_of(job)
                if lease is not None and lease.call == token and lease.expires_at > now:
                    found.append(job.reservation(lease))
            return found

    def expire_leases(self, worker: str, *, now: datetime) -> int:
        self._check(now)
        with self._lock:
            leases = [lease for lease in self._store.leases.values() if lease.worker == worker]
            standing = [lease for lease in leases if lease.expires_at > now]
            for lease in standing:
                lease.expires_at = now
            return len(standing)

    def extend_leases(
        self, tokens: Iterable[UUID], *, now: datetime, lease_for: timedelta
    ) -> dict[UUID, Lease]:
        self._check(now, lease_for)
        with self._lock:
            renewed = {}
            for token in dict.fromkeys(tokens):
                covered = self._store.covered(token)
                if not covered:
                    self._store.leases.pop(token, None)
                elif self._store.is_held(covered[0], now):
                    renewed[token] = self._renew(token, len(covered), now + lease_for)
            return renewed

    def extend_lease(
        self, job_id: UUID, token: UUID, *, now: datetime, lease_for: timedelta
    ) -> Lease:
        self._check(now, lease_for)
        with self._lock:
            asked = Outcome(job_id=job_id, token=token, kind=OutcomeKind.RELEASE)
            error = self._refusal(asked, now)
            if error is not None:
                raise error
            lease = self._renew(token, len(self._store.covered(token)), now + lease_for)
            return replace(lease, version=self._store.jobs[job_id].lease_version)

    def _renew(self, token: UUID, jobs: int, expires_at: datetime) -> Lease:
        lease = self._store.leases[token]
        # Neighbours were promised the time that stands; only a lone job's lease can be shortened.
        lease.expires_at = expires_at if jobs == 1 else max(expires_at, lease.expires_at)
        return Lease(token, lease.expires_at, worker=lease.worker)

    # -- settle ----------------------------------------------------------------------------------

    def settle(self, outcomes: Sequence[Outcome], *, now: datetime) -> list[Rejection]:
        self._check(now)
        outcomes = list(outcomes)
        for outcome in outcomes:
            moves.check_outcome(outcome)
        with self._lock:
            answers = [self._settle_job(outcome, now) for outcome in outcomes]
        return [rejection for rejection in answers if rejection is not None]

    def _settle_job(self, outcome: Outcome, now: datetime) -> Rejection | None:
        error = self._refusal(outcome, now)
        if error is not None:
            return Rejection(outcome, error, self._was_applied(outcome))
        job = self._store.jobs[outcome.job_id]
        with self._store.moving(job, now):
            job.settle(outcome, now)
        if outcome.kind == OutcomeKind.ACK and not outcome.keep and not job.is_needed():
            self._store.remove(job)
        return None

    def _refusal(self, outcome: Outcome, now: datetime) -> TaskHarborError | None:
        job = self._store.jobs.get(outcome.job_id)
        if job is None:
            return JobNotFound()
        lease = self._store.lease_of(job)
        return moves.refusal(job.held(), lease.expires_at if lease else None, outcome, now)

    def _was_applied(self, outcome: Outcome) -> bool:
        job = self._store.jobs.get(outcome.job_id)
        if job is None:
            return moves.was_applied(None, None, outcome)
        return moves.was_applied(job.held(), job.attempt_ends.get(outcome.version or 0), outcome)

    def sweep(self, *, now: datetime, max_lease_losses: int | None = None) -> int:
        self._check(now)
        with self._lock:
            reclaimed = self._reclaim(now, max_lease_losses)
            used = {job.lease for job in self._store.in_state(JobState.INFLIGHT)}
            idle = [token for token in self._store.leases if token not in used]
            for token in idle:
                del self._store.leases[token]
            return reclaimed + len(idle)

    # -- beyond the contract: what a test wants to see and do ------------------------------------

    def read(self, job_id: UUID) -> MemoryJob | None:
        """Return a copy of what is stored of one job."""
        with self._lock:
            return copy.deepcopy(self._store.jobs.get(job_id))

    def read_lease(self, token: UUID | None) -> MemoryLease | None:
        """Return a copy of one lease."""
        with self._lock:
            return copy.copy(self._store.leases.get(token))

    def drop_lease(self, token: UUID) -> None:
        """Lose a lease, as a restored backup or a careless hand would."""
        with self._lock:
            self._store.leases.pop(token, None)

    def cancel(self, job_id: UUID, *, now: datetime, force: bool = False) -> None:
        """Cancel a waiting job; ask a running one to stop or, by force, take its token away."""
        self._check(now)
        with self._lock:
            job = self._store.jobs[job_id]
            if job.state in WAITING or (force and job.state == JobState.INFLIGHT):
                with self._store.moving(job, now):
                    if job.state == JobState.INFLIGHT:
                        job.attempt_ends[job.lease_version] = AttemptEnd.LOST
                    job.cancel(now)
            elif job.state == JobState.INFLIGHT:
                job.cancel_requested_at = now

    def pause(self, queue: str, until: datetime | None = None) -> None:
        """Give out no job of this queue, for good or until a time."""
        self._check()
        with self._lock:
            self._paused[queue] = until

    def resume(self, queue: str) -> None:
        self._check()
        with self._lock:
            self._paused.pop(queue, None)
