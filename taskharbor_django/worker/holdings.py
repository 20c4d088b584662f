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


class Running:
    """One reservation on its way through this process."""

    __slots__ = (
        "asked",
        "context",
        "deadline",
        "forced",
        "reported",
        "reservation",
        "reserved",
        "settled",
        "started_at",
        "stop",
    )

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.reserved = steady()
        self.context: JobContext | None = None
        self.started_at: datetime | None = None
        self.deadline: float | None = None  # by the steady clock
        self.stop: Any = None  # how the pool that runs it makes it stop
        self.reported: Any = None  # what of it was last written down
        self.settled = False  # its outcome is stored already
        self.asked = ""  # why it should stop, also before it has begun
        self.forced = False

    @property
    def job_id(self) -> UUID:
        return self.reservation.job.id

    @property
    def token(self) -> UUID:
        return self.reservation.lease.token

    def cancel(self, why: str, *, force: bool) -> None:
        """Ask the handler to stop; with force, make it."""
        self.asked = self.asked or why
        self.forced = self.forced or force
        if self.context is not None:
            self.context.cancel(why)
        if self.stop is not None:
            self.stop(why, force)


class Holdings:
    """All reservations that are not settled yet. Every one of them is heartbeated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[UUID, dict[UUID, Running]] = {}
        self._valid_until: dict[UUID, float] = {}
        self._emptied: list[UUID] = []
        self.settling = threading.Lock()  # held from a settle until its jobs are removed here

    def add(self, reservations: Iterable[Reservation], valid_until: float) -> list[Running]:
        """Take charge of what a reserve (or a look after one) brought; known ones are left."""
        added = []
        with self._lock:
            for reservation in reservations:
                jobs = self._leases.setdefault(reservation.lease.token, {})
                if reservation.job.id not in jobs:
                    jobs[reservation.job.id] = Running(reservation)
                    added.append(jobs[reservation.job.id])
                self._valid_until[reservation.lease.token] = valid_until
        return added

    def remove(self, running: Running) -> None:
        self.remove_many([running])

    def remove_many(self, settled: Iterable[Running]) -> None:
        with self._lock:
            for running in settled:
                jobs = self._leases.get(running.token)
                if jobs is not None and jobs.get(running.job_id) is running:
                    del jobs[running.job_id]
                    if not jobs:
                        del self._leases[running.token], self._valid_until[running.token]
                        self._emptied.append(running.token)

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

    def under(self, token: UUID) -> list[Running]:
        with self._lock:
            return list(self._leases.get(token, {}).values())

    def find(self, token: UUID, job_id: UUID) -> Running | None:
        with self._lock:
            return self._leases.get(token, {}).get(job_id)

    def all(self) -> list[Running]:
        with self._lock:
            return [running for jobs in self._leases.values() for running in jobs.values()]

    def renewed(self, tokens: Iterable[UUID], valid_until: float) -> None:
        with self._lock:
            for token in tokens:
                if token in self._valid_until:
                    self._valid_until[token] = valid_until

    def holds(self, token: UUID) -> bool:
        """Whether this process may still believe that the lease is its own."""
        with self._lock:
            return self._valid_until.get(token, 0.0) > steady()

    def overdue(self) -> list[UUID]:
        """Leases whose last accepted renewal was sent too long ago."""
        now = steady()
        with self._lock:
            return [token for token, until in self._valid_until.items() if until <= now]

    def lose(self, token: UUID) -> list[Running]:
        """Give up a lease: its jobs are made to stop, and nothing of them is reported any more."""
        with self._lock:
            jobs = list(self._leases.pop(token, {}).values())
            self._valid_until.pop(token, None)
        for running in jobs:
            running.cancel(LEASE_LOST, force=True)
        return jobs

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._leases.values()))
