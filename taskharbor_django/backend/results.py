"""Jobs as Django's task results, and the signals that go with them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import connections

from .. import signals
from ..conf import get_settings
from ..context import JobContext
from ..exceptions import PayloadCorrupt, ResultNotStored
from ..lifecycle import ENDED, TRANSITIONS, AttemptEnd, JobState, Verb
from ..payload import decode_call
from ..tasks import registry
from .api import (
    AnyContext,
    AnyResult,
    AnyTask,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from .arguments import plain_value
from .declared import declared, declared_as

if TYPE_CHECKING:
    from ..models import Attempt, Job

STATUSES = {
    JobState.BLOCKED: TaskResultStatus.READY,
    JobState.SCHEDULED: TaskResultStatus.READY,
    JobState.READY: TaskResultStatus.READY,
    JobState.INFLIGHT: TaskResultStatus.RUNNING,
    JobState.DONE: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
# What stands for an end that no exception of the handler has brought about.
_LOST = "taskharbor_django.exceptions.LeaseExpired"
_DEAD = "taskharbor_django.exceptions.JobFailed"
_CANCELLED = "taskharbor_django.exceptions.JobCancelled"
# Verbs that end what was open; a dead job that is discarded had finished before.
_ENDINGS = [
    verb
    for verb, moves in TRANSITIONS.items()
    if verb != Verb.ENQUEUE
    and any(before not in ENDED and after & ENDED for before, after in moves.items())
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTaskContext(AnyContext):  # type: ignore[misc]  # the stubs forgot `frozen`
    """Django's context; `job` is ours, with progress, checkpoints and cancellation."""

    job: JobContext


# -- from rows ---------------------------------------------------------------------------------


def read(using: str, job_id: UUID, alias: str) -> AnyResult | None:
    """The result of a job of one of our tasks of Django's kind; None when there is none."""
    from ..models import Job

    job = Job.objects.using(using).filter(pk=job_id).first()
    if job is None or (task := declared_as(job.task)) is None:
        return None
    return _of_row(job, task, using, alias)


def _of_row(job: Job, task: AnyTask, using: str, alias: str) -> AnyResult:
    from ..models import Attempt

    attempts = Attempt.objects.using(using).filter(job=job.pk).order_by("lease_version")
    ran = list(attempts) if job.executions else []
    worker, since = _held(job, using)
    starts = [it.started_at for it in ran if it.started_at] + ([since] if since else [])
    args, kwargs = _arguments(bytes(job.payload))
    result: AnyResult = TaskResult(
        task=stored(task, job.priority, job.queue, job.run_at, alias),
        id=str(job.pk),
        status=STATUSES[JobState(job.state)],
        enqueued_at=job.created_at,
        started_at=starts[0] if starts else job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=starts[-1] if starts else job.started_at,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=_errors(job, ran),
        worker_ids=[it.worker for it in ran] + ([worker] if since else []),
    )
    if job.state == JobState.DONE:
        object.__setattr__(result, "_return_value", _value(job, using))
    return result


def _held(job: Job, using: str) -> tuple[str, datetime | None]:
    """Who runs it, and since when; nobody unless it is inflight."""
    from ..models import Lease

    if job.state != JobState.INFLIGHT or job.lease is None:
        return "", None
    leases = Lease.objects.using(using).filter(token=job.lease)
    worker, acquired_at = leases.values_list("worker", "acquired_at").first() or ("", None)
    return worker, job.started_at or acquired_at or job.updated_at


def stored(task: AnyTask, rank: int, queue: str, run_at: datetime | None, alias: str) -> AnyTask:
    """
    The declared task with what one job has of its own.

    Not validated: an operator may have moved the job to a queue that the backend does not offer.
    """
    own = {"priority": -rank, "queue_name": queue, "run_after": run_at, "backend": alias}
    copy = object.__new__(type(task))
    for each in dataclasses.fields(task):
        object.__setattr__(copy, each.name, own.get(each.name, getattr(task, each.name)))
    for name, value in own.items():
        object.__setattr__(copy, name, value)
    return copy


def _arguments(payload: bytes) -> tuple[list[Any], dict[str, Any]]:
    try:
        args, kwargs = decode_call(payload, codec=get_settings().payload_codec)
    except PayloadCorrupt:  # erased, or of a codec whose key is gone
        return [], {}
    return list(args), kwargs


def _value(job: Job, using: str) -> Any:
    """What the handler returned; None once that is gone."""
    from ..operations.handle import result_of
    from ..operations.storage import driver_for

    with contextlib.suppress(ResultNotStored, PayloadCorrupt):
        return plain_value(result_of(job, driver_for(using).now))
    return None


def _errors(job: Job, ran: Sequence[Attempt]) -> list[TaskError]:
    errors = [_error(it) for it in ran if it.end != AttemptEnd.DONE]
    if job.state == JobState.CANCELLED:
        errors.append(TaskError(exception_class_path=_CANCELLED, traceback=job.last_error))
    # The attempt that makes a job dead ends with it; by hand, or by its lifetime, it dies later.
    if job.state == JobState.DEAD and not (ran and ran[-1].finished_at == job.finished_at):
        errors.append(TaskError(exception_class_path=_DEAD, traceback=job.last_error))
    return errors


def _error(attempt: Attempt) -> TaskError:
    if attempt.end == AttemptEnd.LOST:
        return TaskError(exception_class_path=_LOST, traceback=attempt.error)
    kind = attempt.error_class or _DEAD
    path = kind if "." in kind else f"builtins.{kind}"
    return TaskError(exception_class_path=path, traceback=attempt.traceback or attempt.error)


# -- of a run ----------------------------------------------------------------------------------


def context_of(context: JobContext) -> HarborTaskContext:
    """Django's context for a run."""
    return HarborTaskContext(task_result=_running(context), job=context)


def _running(context: JobContext) -> AnyResult:
    from ..operations.storage import alias_of

    job = context.reservation.job
    task = declared[registry.get(job.task).name]
    read_here = _read_here(alias_of(job.queue), job.id, _alias_for(task, job.queue))
    return read_here or brief(job.id, task, job.queue, TaskResultStatus.RUNNING)


def _read_here(using: str, job_id: UUID, alias: str) -> AnyResult | None:
    """Read it where Django allows that: beside an event loop, in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return read(using, job_id, alias)
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(_read_and_close, using, job_id, alias).result()


def _read_and_close(using: str, job_id: UUID, alias: str) -> AnyResult | None:
    try:
        return read(using, job_id, alias)
    finally:
        connections.close_all()


def brief(job_id: UUID, task: AnyTask, queue: str, status: TaskResultStatus) -> AnyResult:
    """As much as is known without the row: enough for a line of a log."""
    alias = _alias_for(task, queue)
    return TaskResult(
        task=stored(task, -int(task.priority), queue, None, alias),
        id=str(job_id),
        status=status,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=[],
        kwargs={},
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def _alias_for(task: AnyTask, queue: str) -> str:
    """The backend that a job belongs to: its task's, if that one offers the queue."""
    from .backend import TaskHarborBackend

    for alias in sorted(task_backends.settings, key=lambda name: name != task.backend):
        backend = task_backends[alias]
        offers = not backend.queues or queue in backend.queues
        if isinstance(backend, TaskHarborBackend) and offers:
            return alias
    return task.backend


# -- signals -----------------------------------------------------------------------------------


def connect() -> None:
    """Let Django's signals follow ours."""
    signals.started.connect(_started, dispatch_uid="taskharbor.backend")
    for verb in _ENDINGS:
        signals.SIGNALS[verb].connect(_moved, dispatch_uid="taskharbor.backend")


def _started(*, context: JobContext, **_: Any) -> None:
    from ..operations.storage import alias_of

    job = context.reservation.job
    task = declared_as(job.task)
    if task is not None:
        _send(
            task_started,
            brief(job.id, task, job.queue, TaskResultStatus.RUNNING),
            alias_of(job.queue),
        )


def _moved(*, move: signals.Move, **_: Any) -> None:
    task = declared_as(move.task) if move.state in ENDED else None
    if task is not None:
        status = STATUSES[JobState(move.state)]
        _send(task_finished, brief(move.job_id, task, move.queue, status), move.using)


def _send(signal: Any, known: AnyResult, using: str) -> None:
    """Send what is known without the row, or, to who listens beside Django, all of it."""
    result = None
    # One receiver is Django's own: it logs a line, for which nothing has to be read.
    if len(signal.receivers) > 1:
        result = _read_here(using, UUID(known.id), known.backend)
    signal.send_robust(sender=type(task_backends[known.backend]), task_result=result or known)
