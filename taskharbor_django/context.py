"""What a running handler is told, and what it may tell the runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from .exceptions import CancelRequested
from .values import Reservation


class Runtime(Protocol):
    """What stands behind a context: the worker, or the parent of an isolated child."""

    def save_checkpoint(self, context: JobContext, value: Any) -> None: ...
    def load_checkpoint(self, data: bytes) -> Any: ...
    def previous_attempt_id(self, context: JobContext) -> int | None: ...
    def progressed(self, context: JobContext) -> None: ...
    def add(self, context: JobContext, part: Any, key: str | None) -> Any: ...


class JobContext:
    """Facts about the run, cancellation, progress and checkpoints; safe to use from any thread."""

    # Answered for by the class until a handler, or whoever stops it, says otherwise.
    progress: tuple[int, str] | None = None
    additions: Sequence[Any] = ()
    """what an atomic task adds to its workflow; written with its ack"""
    _why_cancelled = ""

    def __init__(
        self, reservation: Reservation, runtime: Runtime, deadline: datetime | None = None
    ) -> None:
        self.reservation = reservation
        self.deadline = deadline
        self._runtime = runtime

    # -- who and what ----------------------------------------------------------------------------

    @property
    def job_id(self) -> UUID:
        return self.reservation.job.id

    @property
    def attempt(self) -> int:
        """1 for the first execution."""
        return self.reservation.job.executions

    @property
    def fencing_token(self) -> int:
        """Rises with every reserve: other systems can refuse a smaller one than they have seen."""
        return self.reservation.lease.version

    @property
    def correlation_id(self) -> str:
        """What was given at enqueue, else the job's own id."""
        return self.reservation.job.correlation_id or str(self.job_id)

    @property
    def idempotency_key(self) -> str | None:
        return self.reservation.job.idempotency_key

    @property
    def previous_attempt_id(self) -> int | None:
        return self._runtime.previous_attempt_id(self)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the ids."""
        return logging.LoggerAdapter(logging.getLogger(self.reservation.job.task), self.facts())

    def facts(self) -> dict[str, Any]:
        return {"job_id": str(self.job_id), "correlation_id": self.correlation_id}

    # -- cancellation ----------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """True once somebody asked the job to stop, its time is up, or its lease is lost."""
        return bool(self._why_cancelled)

    @property
    def why_cancelled(self) -> str:
        return self._why_cancelled

    def check_cancelled(self) -> None:
        """Leave the handler if it should stop; a place to call this is each turn of a loop."""
        if self._why_cancelled:
            raise CancelRequested(f"The job should stop: {self._why_cancelled}.")

    def cancel(self, why: str) -> None:
        """For the runtime: ask the handler to stop; the first reason stays."""
        self._why_cancelled = self._why_cancelled or why

    # -- progress and checkpoints ----------------------------------------------------------------

    def set_progress(self, percent: float, message: str = "") -> None:
        """Record how far the job is, 0 to 100; the runtime writes it down about once a second."""
        self.progress = max(0, min(100, int(percent))), str(message)
        self._runtime.progressed(self)

    @property
    def checkpoint(self) -> Any:
        """What an earlier attempt (or this one) saved, None without one."""
        data = self.reservation.job.checkpoint
        return None if data is None else self._runtime.load_checkpoint(data)

    def save_checkpoint(self, value: Any) -> None:
        """Store a value that survives retries; raises when the lease is lost or it cannot."""
        self._runtime.save_checkpoint(self, value)

    # -- the workflow ----------------------------------------------------------------------------

    def add(self, part: Any, *, key: str | None = None) -> Any:
        """
        Put a signature, or a chain, group or chord, into the job's workflow; return its handle.

        Who waits for this job waits for it too. A key makes it the same in every attempt.
        """
        return self._runtime.add(self, part, key)

    async def aadd(self, part: Any, *, key: str | None = None) -> Any:
        return await asyncio.to_thread(self.add, part, key=key)


Carry = Callable[[str, str, UUID], Mapping[str, str] | None]

_carry: Carry | None = None


def carry_through(carry: Carry | None) -> None:
    """Let this say what a new job carries for tracing; it is given task, queue and id."""
    global _carry  # noqa: PLW0603  one for the process
    _carry = carry


def carries() -> bool:
    """Say whether a new job may carry something; if so, each its own."""
    return _carry is not None


def carried(task: str, queue: str, job_id: UUID) -> Mapping[str, str] | None:
    return None if _carry is None else _carry(task, queue, job_id)


current: ContextVar[JobContext | None] = ContextVar("taskharbor_job", default=None)


class JobFilter(logging.Filter):
    """Put `job_id` and `correlation_id` on every record that is logged inside a job."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = current.get()
        facts = context.facts() if context else {"job_id": "", "correlation_id": ""}
        for name, value in facts.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
