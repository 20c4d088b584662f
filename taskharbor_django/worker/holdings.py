"""What this process holds: leases, the jobs under them, and until when to believe in them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from ..clock import steady
from ..context import JobContext
from ..values import Reservation

LEASE_LOST = "its lease is lost"
REVOKED = "it was cancelled by force"
CANCEL = "cancel was asked for"


class Hold:
    """A lease that this process has, and the jobs under it."""

    __slots__ = ("jobs", "token", "valid_until")

    def __init__(self, token: UUID, valid_until: float) -> None:
        self.token = token
        self.valid_until = valid_until  # by the steady clock
        # By the integer of the job's id: a UUID is hashed in Python, 0.12 us each time.
        self.jobs: dict[int, Running] = {}


class Running:
    """One reservation on its way through this process."""

    # Answered for by the class until it is otherwise: to take on a job costs 0.5 us, before 0.7.
    context: JobContext | None = None
    started_at: datetime | None = None
    deadline: float | None = None  # by the steady clock
    error: BaseException | None = None  # what the handler raised
    stop: Any = None  # how the pool that runs it makes it stop
    reported: Any = None  # what of it was last written down
    ended = False  # what became of it is handed in, and a settle will tell whether it counts
    settled = False  # its outcome is stored already
    asked = ""  # why it should stop, also before it has begun
    forced = False
    forced_at: float | None = None  # by the steady clock, the first time
    hold: Hold | None = None  # None when it is not held (any more)

    def __init__(self, reservation: Reservation, reserved: float | None = None) -> None:
        self.reservation = reservation
        self.job_id: UUID = reservation.job.id
        self.token: UUID = reservation.lease.token
        self.reserved = steady() if reserved is None else reserved

    @property
    def held(self) -> bool:
        """Whether its outcome still counts, as far as this process knows."""
        return self.hold is not None

    def is_ours(self, at: float) -> bool:
        """Whether this process may still believe, at that time, that the lease is its own."""
        hold = self.hold
        return hold is not None and hold.valid_until > at

    def cancel(self, why: str, *, force: bool) -> None:
        """Ask the handler to stop; with force, make it."""
        self.asked = self.asked or why
        if force and not self.forced:
            self.forced, self.forced_at = True, steady()
        if self.context is not None:
            self.context.cancel(why)
        if self.stop is not None:
            self.stop(why, force)


class Holdings:
    """All reservations that are not settled yet. Every one of them is heartbeated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[UUID, Hold] = {}
        self._emptied: list[UUID] = []

    def add(self, reservations: Iterable[Reservation], valid_until: float) -> list[Running]:
        """Take charge of what a reserve (or a look after one) brought; known ones are left."""
        added, hold, now = [], None, steady()
        with self._lock:
            for reservation in reservations:
                if hold is None or hold.token is not reservation.lease.token:
                    hold = self._hold(reservation.lease.token, valid_until)
                running = Running(reservation, now)
                if hold.jobs.setdefault(running.job_id.int, running) is running:
                    running.hold = hold
                    added.append(running)
        return added

    def _hold(self, token: UUID, valid_until: float) -> Hold:
        hold = self._leases.get(token)
        if hold is None:
            hold = self._leases[token] = Hold(token, valid_until)
        hold.valid_until = valid_until
        return hold

    def remove(self, running: Running) -> None:
        self.remove_many([running])

    def remove_many(self, settled: Iterable[Running]) -> None:
        with self._lock:
            for running in settled:
                hold, running.hold = running.hold, None
                if hold is not None:
                    del hold.jobs[running.job_id.int]
                    if not hold.jobs:
                        del self._leases[hold.token]
                        self._emptied.append(hold.token)

    def take_emptied(self) -> list[UUID]:
        """Leases that cover nothing any more and whose rows can go; each is told of once."""
        with self._lock:
            emptied, self._emptied = self._emptied, []
        return emptied

    def emptied_still(self, tokens: Iterable[UUID]) -> None:
        """Take back what was told: the rows could not be removed."""
        with self._lock:
            self._emptied += tokens

    def tokens(self) -> list[UUID]:
        with self._lock:
            return list(self._leases)

    def find(self, token: UUID, job_id: UUID) -> Running | None:
        with self._lock:
            hold = self._leases.get(token)
            return None if hold is None else hold.jobs.get(job_id.int)

    def all(self) -> list[Running]:
        with self._lock:
            return [running for hold in self._leases.values() for running in hold.jobs.values()]

    def renewed(self, tokens: Iterable[UUID], valid_until: float) -> None:
        with self._lock:
            for token in tokens:
                if token in self._leases:
                    self._leases[token].valid_until = valid_until

    def overdue(self) -> list[UUID]:
        """Leases whose last accepted renewal was sent too long ago."""
        now = steady()
        with self._lock:
            return [token for token, hold in self._leases.items() if hold.valid_until <= now]

    def all_ended(self, token: UUID) -> bool:
        """Whether nothing runs under this lease, and nothing is about to."""
        with self._lock:
            hold = self._leases.get(token)
            return hold is not None and all(running.ended for running in hold.jobs.values())

    def lose(self, token: UUID) -> list[Running]:
        """Give up a lease: its jobs are made to stop, and nothing of them is reported any more."""
        with self._lock:
            hold = self._leases.pop(token, None)
            jobs = [] if hold is None else list(hold.jobs.values())
            for running in jobs:
                running.hold = None
        for running in jobs:
            running.cancel(LEASE_LOST, force=True)
        return jobs

    def __len__(self) -> int:
        with self._lock:
            return sum(len(hold.jobs) for hold in self._leases.values())
