"""What MemoryDriver keeps: jobs with the moves they can make, leases, and where to find them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from ..lifecycle import AttemptEnd, DeadReason, FailureCategory, JobState
from ..values import JobRecord, Lease, Outcome, Reservation
from . import moves


@dataclass(slots=True)
class MemoryLease:
    """One lease; `call` is the token of the reserve call that made it."""

    token: UUID
    call: UUID
    worker: str
    acquired_at: datetime
    expires_at: datetime


@dataclass(slots=True)
class MemoryJob:
    """One job; `record` is what was enqueued, the other fields are what became of it."""

    record: JobRecord
    seq: int
    state: JobState
    created_at: datetime
    updated_at: datetime
    available_at: datetime
    run_at: datetime | None = None
    expires_at: datetime | None = None
    attempts: int = 0
    executions: int = 0
    lease: UUID | None = None
    lease_version: int = 0
    lease_losses: int = 0
    handler_misses: int = 0
    last_error: str = ""
    failed_at: datetime | None = None
    failure_category: str = ""
    failure_code: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    result: bytes | None = None
    result_expires_at: datetime | None = None
    reason: str = ""
    attempt_ends: dict[int, AttemptEnd] = field(default_factory=dict)

    @property
    def place(self) -> tuple[int, datetime, int]:
        """Where it stands in line: lower is reserved sooner."""
        return self.record.priority, self.available_at, self.seq

    def is_due(self, now: datetime) -> bool:
        return self.run_at is None or self.run_at <= now

    def is_needed(self) -> bool:
        """Say whether something else still points at this job after its end."""
        record = self.record
        return bool(
            record.idempotency_key is not None
            or record.workflow is not None
            or record.has_dependents
            or record.callback_url
            or record.schedule is not None
        )

    def reservation(self, lease: MemoryLease) -> Reservation:
        job = replace(
            self.record,
            created_at=self.created_at,
            run_at=self.run_at,
            delay=None,
            attempts=self.attempts,
            expires_at=self.expires_at,
            executions=self.executions,
            lease_losses=self.lease_losses,
            handler_misses=self.handler_misses,
            available_at=self.available_at,
        )
        shown = Lease(lease.token, lease.expires_at, self.lease_version, lease.worker)
        return Reservation(job, shown)

    def held(self) -> moves.Held:
        return moves.Held(
            id=self.record.id,
            state=self.state,
            lease=self.lease,
            lease_version=self.lease_version,
            cancel_requested=self.cancel_requested_at is not None,
            executions=self.executions,
            handler_misses=self.handler_misses,
        )

    # -- moves -----------------------------------------------------------------------------------

    def claim(self, token: UUID) -> None:
        self.state = JobState.INFLIGHT
        self.lease = token
        self.lease_version += 1
        self.executions += 1
        self.started_at = None

    def reclaim(self, now: datetime, max_lease_losses: int | None) -> None:
        self.attempt_ends[self.lease_version] = AttemptEnd.LOST
        if self.cancel_requested_at is not None:
            self.cancel(now)
            return
        self.lease = None
        self.lease_losses += 1
        if max_lease_losses is not None and self.lease_losses >= max_lease_losses:
            self.state = JobState.DEAD
            self.reason = DeadReason.LEASE_LOST
            self.last_error, self.failure_category = moves.LOST, FailureCategory.SYSTEM.value
            self.finished_at = self.failed_at = now
        else:
            # It has waited its turn before: runnable at once, at the place it had.
            self.state = JobState.READY
            self.run_at = self.started_at = None

    def cancel(self, now: datetime) -> None:
        self.state = JobState.CANCELLED
        self.lease = None
        self.finished_at = now

    def settle(self, outcome: Outcome, now: datetime) -> None:
        """Make the move of an outcome whose token was found to hold."""
        for name, value in moves.changes(self.held(), outcome, now).items():
            setattr(self, name, JobState(value) if name == "state" else value)
        if self.state == JobState.DEAD:
            self.reason = outcome.reason
        end = moves.attempt_end(outcome)
        if end is not None:
            self.attempt_ends[self.lease_version] = end


def new_job(record: JobRecord, seq: int, now: datetime) -> MemoryJob:
    run_at = record.run_at if record.delay is None else now + record.delay
    available_at = now if run_at is None else max(run_at, now)
    expires_at = record.expires_at
    if record.lifetime is not None:
        expires_at = available_at + record.lifetime
    state = JobState.SCHEDULED if available_at > now else JobState.READY
    return MemoryJob(
        record=record,
        seq=seq,
        state=JobState.BLOCKED if record.dependencies_left else state,
        created_at=now,
        updated_at=now,
        run_at=run_at,
        available_at=available_at,
        expires_at=expires_at,
        attempts=record.attempts,
        executions=record.executions,
        lease_losses=record.lease_losses,
        handler_misses=record.handler_misses,
    )


class MemoryStore:
    """All jobs by id and by state, so that a verb walks only over those it can move; all leases."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, MemoryJob] = {}
        # None is never a key; it is what a job without a lease is looked up by.
        self.leases: dict[UUID | None, MemoryLease] = {}
        self._shelves: dict[JobState, dict[UUID, MemoryJob]] = {state: {} for state in JobState}

    def add(self, job: MemoryJob) -> None:
        self.jobs[job.record.id] = self._shelves[job.state][job.record.id] = job

    def remove(self, job: MemoryJob) -> None:
        del self.jobs[job.record.id], self._shelves[job.state][job.record.id]

    @contextlib.contextmanager
    def moving(self, job: MemoryJob, now: datetime) -> Iterator[None]:
        """Put the job on the shelf of the state that the block moves it to."""
        del self._shelves[job.state][job.record.id]
        try:
            yield
            job.updated_at = now
        finally:
            self._shelves[job.state][job.record.id] = job

    def in_state(self, state: JobState) -> list[MemoryJob]:
        return list(self._shelves[state].values())

    def covered(self, token: UUID) -> list[MemoryJob]:
        """List the inflight jobs of one lease."""
        return [job for job in self.in_state(JobState.INFLIGHT) if job.lease == token]

    def lease_of(self, job: MemoryJob) -> MemoryLease | None:
        return self.leases.get(job.lease)

    def is_held(self, job: MemoryJob, now: datetime) -> bool:
        """Say whether an inflight job's lease stands; a missing one counts as expired."""
        lease = self.lease_of(job)
        return lease is not None and lease.expires_at > now
