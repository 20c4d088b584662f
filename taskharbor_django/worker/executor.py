"""
From a reservation to an outcome. Running a task writes nothing; an atomic one settles itself.

A run is `prepare`, the handler's own code, and `finished` or `failed`; the pools differ only in how
they call the handler.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..conf import get_settings
from ..context import JobContext
from ..exceptions import InvalidPayload, PayloadCorrupt, ResultNotStored, UnknownTask
from ..failpoints import reach
from ..lifecycle import FailureCategory, Input, OutcomeKind
from ..operations import decide
from ..operations.inputs import FAILURE, MISSING
from ..payload import decode_call, decode_value, encode_value
from ..task_options import Default
from ..tasks import Task, registry
from ..values import Failure, JobRecord, Outcome, Reservation

logger = logging.getLogger(__name__)

NOTHING = timedelta(0)
NOT_STORED = b""  # stands for a result that could not be stored


# Not frozen, as other values are: one is made for each job, and never leaves the run.
@dataclass(slots=True)
class Prepared:
    """A call that is ready to be made."""

    task: Task[Any, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    started_at: datetime

    def deadline(self, reservation: Reservation) -> datetime | None:
        timeout = reservation.job.timeout
        return None if timeout is None else self.started_at + timeout


def prepare(reservation: Reservation, now: datetime) -> Prepared | Outcome:
    """Find the task and decode its arguments, or say what becomes of a job that cannot run."""
    job = reservation.job
    if job.expires_at is not None and job.expires_at <= now:
        return decide.lifetime_over(reservation, now)
    try:
        task = registry.get(job.task)
    except UnknownTask:
        return decide.handler_missing(reservation, now)
    try:
        args, kwargs = decode_call(job.payload, codec=get_settings().payload_codec)
        if job.input:
            args = (_taken(job), *args)
        task.check_arguments(args, kwargs)
    except (PayloadCorrupt, ResultNotStored, TypeError) as error:
        return decide.outcome_of(
            error,
            reservation,
            task,
            now=now,
            started_at=now,
            category=FailureCategory.PERMANENT,
            code="result" if isinstance(error, ResultNotStored) else "payload",
        )
    return Prepared(task, args, kwargs, now)


def _taken(job: JobRecord) -> Any:
    """What the job takes of those it waited for: one result, or a list of them."""
    values = [_input(kind, data) for kind, data in job.inputs]
    if job.input == Input.LIST:
        return values
    if not values:
        raise ResultNotStored("The job whose result this one takes is gone.")
    return values[0]


def _input(kind: str, data: Any) -> Any:
    if kind == MISSING:
        raise ResultNotStored(f"The result of job {data}, which this one takes, is not stored.")
    if kind == FAILURE:
        return Failure(**data | {"job_id": UUID(data["job_id"])})
    return None if data is None else decode_value(data, codec=get_settings().payload_codec)


def call(prepared: Prepared, context: JobContext | None) -> Any:
    """Call the handler; it takes the context first if it wants it."""
    if prepared.task.takes_context:
        return prepared.task.function(context, *prepared.args, **prepared.kwargs)
    return prepared.task.function(*prepared.args, **prepared.kwargs)


def finished(prepared: Prepared, reservation: Reservation, value: Any, now: datetime) -> Outcome:
    """The ack of a handler that returned."""
    reach("executor.returned")
    settings, task = get_settings(), prepared.task
    # What is as the class has it anyway is left out: most jobs return nothing and are kept.
    facts: dict[str, Any] = {"started_at": prepared.started_at, "finished_at": now}
    if not task.keep or settings.retention["done"] == NOTHING:
        facts["keep"] = False
    if (task.record_attempts or settings.record_attempts) == "all":
        facts["record"] = True
    if value is not None:
        try:
            result = encode_value(
                value, max_bytes=settings.result_max_bytes, codec=settings.payload_codec
            )
        except InvalidPayload as problem:
            logger.warning(
                "job %s: %s returned what cannot be stored: %s",
                reservation.job.id,
                task.name,
                problem,
                extra={"job_id": str(reservation.job.id), "task": task.name},
            )
            result = NOT_STORED
        ttl = settings.result_ttl if isinstance(task.result_ttl, Default) else task.result_ttl
        facts["result"] = result
        facts["result_expires_at"] = None if ttl is None else now + ttl
    return decide.outcome(OutcomeKind.ACK, reservation, **facts)


def failed(
    prepared: Prepared, reservation: Reservation, error: BaseException, now: datetime
) -> Outcome:
    """What an exception of the handler makes of the run."""
    return decide.outcome_of(
        error, reservation, prepared.task, now=now, started_at=prepared.started_at
    )
