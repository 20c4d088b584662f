"""
What jobs must become, in plain Python: the prediction that drivers and operations are held to.

Every change of a state goes through `Job.move`, which refuses what `lifecycle.TRANSITIONS` does not
allow; a database that agrees with the model has made legal moves only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from taskharbor_django.exceptions import JobNotFound, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor_django.lifecycle import ENDED, TRANSITIONS, WAITING, JobState, Verb

LEASE = timedelta(seconds=10)
RETENTION = LIFETIME = timedelta(days=7)
MAX_ATTEMPTS = MAX_LOSSES = 3
# What a dead letter of each reason says about the failure.
CATEGORIES = {"exhausted": "temporary", "manual": "cancelled"}
CATEGORIES |= dict.fromkeys(["lease_lost", "lifetime"], "system")


@dataclass
class Job:
    id: UUID
    queue: str
    created_at: datetime
    seq: int
    state: JobState = JobState.READY
    run_at: datetime | None = None
    available_at: datetime | None = None
    expires_at: datetime | None = None
    attempts: int = 0
    executions: int = 0
    losses: int = 0
    version: int = 0
    token: UUID | None = None
    cancel_asked: bool = False
    finished_at: datetime | None = None
    letter: str = ""  # the reason of the open dead letter
    erased: bool = False
    attempts_recorded: dict[int, str] = field(default_factory=dict)

    def move(self, verb: Verb, after: JobState) -> None:
        assert after in TRANSITIONS[verb][self.state], f"{verb}: {self.state} -> {after}"
        self.state = after

    def end(self, verb: Verb, after: JobState, now: datetime, *, reason: str = "") -> None:
        self.move(verb, after)
        self.finished_at = now
        self.letter = reason

    @property
    def place(self) -> tuple[datetime, int]:
        return self.available_at, self.seq

    @property
    def facts(self) -> dict:
        """What is compared with the row."""
        return {
            "state": self.state.value,
            "queue": self.queue,
            "run_at": self.run_at,
            "available_at": self.available_at,
            "expires_at": self.expires_at,
            "attempts": self.attempts,
            "executions": self.executions,
            "lease_losses": self.losses,
            "lease_version": self.version,
            "lease": self.token,
            "cancel_asked": self.cancel_asked,
            "finished_at": self.finished_at,
        }


@dataclass
class Model:
    """All jobs and leases, and the verbs that change them."""

    now: datetime
    orphans_at_once: bool = False  # whether a reserve takes jobs back whose lease row is gone
    jobs: dict[UUID, Job] = field(default_factory=dict)
    leases: dict[UUID, datetime] = field(default_factory=dict)
    workers: dict[UUID, str] = field(default_factory=dict)
    paused: dict[str, datetime | None] = field(default_factory=dict)
    count: int = 0

    # -- workers ---------------------------------------------------------------------------------

    def enqueue(self, job_id, queue, *, delay=None, lifetime=None):
        run_at = None if delay is None else self.now + delay
        job = Job(id=job_id, queue=queue, created_at=self.now, seq=self.count, run_at=run_at)
        self.count += 1
        job.available_at = max(run_at or self.now, self.now)
        job.state = JobState.SCHEDULED if job.available_at > self.now else JobState.READY
        job.expires_at = None if lifetime is None else job.available_at + lifetime
        self.jobs[job_id] = job

    def holds(self, job):
        """Whether the job's lease stands."""
        return self.leases.get(job.token, self.now) > self.now

    def inflight(self, token=None):
        jobs = [job for job in self.jobs.values() if job.state == JobState.INFLIGHT]
        return [job for job in jobs if token in (None, job.token)]

    def alive(self):
        """How many jobs may still run: those that are open, and the dead ones."""
        over = (JobState.DONE, JobState.CANCELLED)
        return sum(job.state not in over for job in self.jobs.values())

    def buried(self):
        return [job for job in self.jobs.values() if job.letter]

    def before_claim(self):
        for job in self.jobs.values():
            if job.state == JobState.SCHEDULED and job.run_at <= self.now:
                job.move(Verb.PROMOTE, JobState.READY)
        self.take_back(gone=self.orphans_at_once)
        for token in [token for token, until in self.leases.items() if until <= self.now]:
            del self.leases[token]

    def take_back(self, *, gone, expired=True):
        for job in self.inflight():
            known = job.token in self.leases
            if (known and expired and not self.holds(job)) or (gone and not known):
                self._reclaim(job)

    def _reclaim(self, job):
        job.attempts_recorded[job.version] = "lost"
        job.token = None
        if job.cancel_asked:
            job.end(Verb.RECLAIM, JobState.CANCELLED, self.now)
            return
        job.losses += 1
        if job.losses >= MAX_LOSSES:
            job.end(Verb.RECLAIM, JobState.DEAD, self.now, reason="lease_lost")
        else:
            job.move(Verb.RECLAIM, JobState.READY)
            job.run_at = None

    def next_in_line(self, queue, limit):
        """Whom a claim must take, in this order."""
        until = self.paused.get(queue, self.now)
        if until is None or until > self.now:
            return []
        ready = [job for job in self.jobs.values() if (job.state, job.queue) == ("ready", queue)]
        return sorted(ready, key=lambda job: job.place)[:limit]

    def claim(self, job, token, worker):
        job.move(Verb.RESERVE, JobState.INFLIGHT)
        job.token = token
        job.version += 1
        job.executions += 1
        self.leases[token] = self.now + LEASE
        self.workers[token] = worker

    def renew(self, token):
        """The new expiry; None when the token is lost."""
        jobs = self.inflight(token)
        if not jobs:
            self.leases.pop(token, None)
        if not jobs or not self.holds(jobs[0]):
            return None
        until = self.now + LEASE
        self.leases[token] = until if len(jobs) == 1 else max(until, self.leases[token])
        return self.leases[token]

    def end_leases(self, worker):
        for token, until in self.leases.items():
            if self.workers[token] == worker and until > self.now:
                self.leases[token] = self.now

    # -- settle ----------------------------------------------------------------------------------

    def refusal(self, job_id, token, version):
        job = self.jobs.get(job_id)
        if job is None:
            return JobNotFound
        if job.state != JobState.INFLIGHT:
            return JobNotInflight
        if not self.holds(job):
            return LeaseExpired
        return None if (job.token, job.version) == (token, version) else LeaseMismatch

    def settle(self, job, kind, *, run_at=None, started=True):
        getattr(self, f"_{kind}")(job, run_at, started)

    def _ack(self, job, *_):
        job.end(Verb.ACK, JobState.DONE, self.now)

    def _fail(self, job, *_):
        job.attempts += 1
        job.attempts_recorded[job.version] = "failed"
        job.end(Verb.FAIL, JobState.DEAD, self.now, reason="exhausted")

    def _cancel(self, job, *_):
        job.end(Verb.CANCEL, JobState.CANCELLED, self.now)
        job.token = None

    def _retry(self, job, run_at, _):
        job.attempts += 1
        job.attempts_recorded[job.version] = "failed"
        if self._given_back(job, Verb.RETRY, run_at):
            job.run_at, job.available_at = run_at, max(run_at or self.now, self.now)

    def _release(self, job, run_at, started):
        job.executions -= not started
        if self._given_back(job, Verb.RELEASE, run_at) and run_at and run_at > self.now:
            job.run_at = job.available_at = run_at

    def _given_back(self, job, verb, run_at):
        job.token = None
        if job.cancel_asked:
            job.end(verb, JobState.CANCELLED, self.now)
            return False
        later = run_at is not None and run_at > self.now
        job.move(verb, JobState.SCHEDULED if later else JobState.READY)
        return True

    # -- operators and chores --------------------------------------------------------------------

    def cancel(self, job, *, force):
        if job.state == JobState.INFLIGHT and not force:
            job.cancel_asked = True
        elif job.state not in ENDED:
            if job.state == JobState.INFLIGHT:
                job.attempts_recorded[job.version] = "lost"
            job.end(Verb.CANCEL, JobState.CANCELLED, self.now)
            job.token = None

    def lifetime(self, job):
        return min(job.expires_at - job.created_at, LIFETIME) if job.expires_at else None

    def requeue(self, job, *, delay, one_more):
        """Whether it lives again."""
        if job.state != JobState.DEAD or job.erased:
            return False
        lifetime = self.lifetime(job)
        job.run_at = None if delay is None else self.now + delay
        job.available_at = starts_at = max(job.run_at or self.now, self.now)
        later = starts_at > self.now
        job.move(Verb.REQUEUE, JobState.SCHEDULED if later else JobState.READY)
        job.expires_at = lifetime and starts_at + lifetime
        job.attempts = MAX_ATTEMPTS - 1 if one_more else 0
        job.losses, job.token, job.cancel_asked, job.finished_at = 0, None, False, None
        job.letter = ""
        return True

    def discard(self, job):
        if job.state != JobState.DEAD:
            return False
        job.move(Verb.DISCARD, JobState.CANCELLED)
        job.token, job.letter = None, ""
        return True

    def run_now(self, job):
        if job.state == JobState.SCHEDULED:
            job.move(Verb.RESCHEDULE, JobState.READY)
            job.run_at = job.available_at = self.now

    def update(self, job, **terms):
        if job.state not in WAITING:
            return
        job.queue = terms.get("queue", job.queue)
        if "run_at" in terms:
            lifetime = self.lifetime(job)
            job.run_at = terms["run_at"]
            job.available_at = starts_at = max(job.run_at or self.now, self.now)
            later = starts_at > self.now
            job.move(Verb.RESCHEDULE, JobState.SCHEDULED if later else JobState.READY)
            job.expires_at = lifetime and max(job.created_at, starts_at) + lifetime

    def expire(self):
        for job in self.jobs.values():
            if job.state not in ENDED and job.expires_at and job.expires_at <= self.now:
                self._bury(job, Verb.EXPIRE, "lifetime")

    def bury(self, job):
        if job.state in ENDED:
            return False
        self._bury(job, Verb.BURY, "manual")
        return True

    def _bury(self, job, verb, reason):
        if job.state == JobState.INFLIGHT:
            job.attempts_recorded[job.version] = "lost"
        job.token = None
        job.end(verb, JobState.DEAD, self.now, reason=reason)

    def prune(self):
        for job in list(self.jobs.values()):
            over = job.state in (JobState.DONE, JobState.CANCELLED)
            if over and job.finished_at < self.now - RETENTION:
                del self.jobs[job.id]

    def remove_empty_leases(self):
        used = {job.token for job in self.inflight()}
        self.leases = {token: until for token, until in self.leases.items() if token in used}
