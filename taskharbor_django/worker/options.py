"""How one worker process is to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

ALL_QUEUES = "*"
DEFAULT_THREADS = 8
ASYNC_SLOTS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    queues: Sequence[str] = (ALL_QUEUES,)
    using: str = "default"
    threads: int = DEFAULT_THREADS
    async_slots: int = ASYNC_SLOTS
    lease: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=10)
    poll: timedelta = timedelta(seconds=1)
    grace: timedelta = timedelta(seconds=30)
    listen: bool = True
    prefetch: int | None = None
    """most jobs reserved beyond the free slots; None: as the length of runs suggests"""
    max_lease_losses: int | None = 3
    isolate_all: bool = False
    burst: bool = False
    scheduler: bool = True
    """whether this process takes part in schedules"""
    max_jobs: int | None = None
    max_memory: int | None = None
    name: str = "worker"
    id: str = field(default_factory=lambda: uuid4().hex)
    health_file: str | None = None
    farewell: int | None = None
    """the pipe to a supervisor, over which a guard says that isolated children are gone"""
    stubborn_after: float = 5.0
    """seconds past its timeout after which a thread is left behind"""

    def __str__(self) -> str:
        """As log lines call it: names are not unique, ids are."""
        return f"{self.name} {self.id[:8]}"
