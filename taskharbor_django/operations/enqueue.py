"""
enqueue: nothing -> ready | scheduled; with jobs to wait for see edges.py.

Locks:  none; with an idempotency key, the key's row.
Fence:  the primary key; the unique key.
Repeat: with an idempotency key, safe; without one, each call is a job.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast
from uuid import UUID, uuid4

from django.db import connections, transaction

from .. import payload
from ..callbacks import destination
from ..clock import pretended
from ..conf import Settings, get_settings
from ..context import carried, carries, current
from ..drivers.transient import repeat
from ..exceptions import (
    IdempotencyConflict,
    InvalidJob,
    InvalidPayload,
    InvalidWorkflow,
    TooManyDependencies,
)
from ..lifecycle import DependencyKind
from ..models import IdempotencyKey
from ..task_options import Default, Limit
from ..tasks import Call, Submission, Task
from ..values import URL_MAX_CHARS, JobRecord, shown
from .edges import store
from .handle import JobHandle
from .notify import notify_on_commit
from .plans import Edge, Plan, batches
from .selection import as_id, home_of
from .storage import alias_of, driver_for
from .terms import refuse_queue
from .transactions import after_commit, refuse_elsewhere

OnBatch = Callable[[list[UUID]], Any]


def enqueue(call: Call) -> JobHandle:
    """Store one job in the caller's transaction: one INSERT, unless there is a key."""
    record = record_of(call)
    refuse_elsewhere(alias_of(record.queue), record.queue)
    return _store(record, edges_of(call, record))


def enqueue_on_commit(call: Call) -> None:
    """Store one job once the caller's transactions have committed; refuse it, if need be, now."""
    record = record_of(call)
    record.validate()
    edges = edges_of(call, record)
    after_commit(lambda: _store(record, edges))


def _store(record: JobRecord, edges: list[Edge]) -> JobHandle:
    using = alias_of(record.queue)
    bound_waiting(using)
    if edges:
        (job_id,) = store(driver_for(using), Plan(records=[record], edges=edges))
    else:
        job_id = driver_for(using).enqueue(record)
    if job_id != record.id:
        _refuse_conflicts([record], [job_id], using)
    else:
        notify_on_commit([record.queue], using)
    return JobHandle(id=job_id, using=using, created=job_id == record.id)


def enqueue_many(calls: Iterable[Call], batch_size: int, on_batch: OnBatch | None) -> int:
    """Store all or none, in batches of one INSERT each; return how many are new."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number from 1, not {shown(batch_size)}")
    plans = _plans(calls, batch_size)
    first, second = next(plans, None), next(plans, None)
    if first is None:
        return 0
    queue = first.records[0].queue
    using = alias_of(queue)
    refuse_elsewhere(using, queue)
    bound_waiting(using)
    if second is None:
        # After a deadlock a single batch can be stored again; several are not kept for that.
        return repeat(using, lambda: _enqueue_batches([first], using, on_batch))
    return _enqueue_batches(itertools.chain([first, second], plans), using, on_batch)


def _plans(calls: Iterable[Call], size: int) -> Iterator[Plan]:
    """Cut into batches, each with the edges of its jobs."""
    waiting: dict[UUID, list[Edge]] = {}

    def records() -> Iterator[JobRecord]:
        model: tuple[Any, JobRecord | None] = None, None
        for call in calls:
            if model[1] is not None and model[0] is call.task:
                yield model[1].alike(_payload(call))  # a third of what a record anew takes
                continue
            record = record_of(call)
            if edges := edges_of(call, record):
                waiting[record.id] = edges
            elif record.idempotency_key is None:
                record.validate()
                model = call.task, record
            yield record

    for batch in batches(records(), size):
        edges = [waiting.pop(it.id) for it in batch if it.id in waiting] if waiting else []
        yield Plan(records=batch, edges=list(itertools.chain(*edges)))


def _enqueue_batches(plans: Iterable[Plan], using: str, on_batch: OnBatch | None) -> int:
    with transaction.atomic(using=using):
        return sum(_enqueue_batch(plan, using, on_batch) for plan in plans)


def _enqueue_batch(plan: Plan, using: str, on_batch: OnBatch | None) -> int:
    batch, driver = plan.records, driver_for(using)
    in_one_database(batch, using)
    ids = store(driver, plan) if plan.edges else driver.enqueue_many(batch)
    _refuse_conflicts(batch, ids, using)
    notify_on_commit({record.queue for record in batch}, using)
    if on_batch is not None:
        on_batch(ids)
    return sum(record.id == job_id for record, job_id in zip(batch, ids, strict=True))


def in_one_database(records: Iterable[JobRecord], using: str) -> None:
    for queue in sorted({it.queue for it in records}):
        refuse_queue(queue, using)


def _refuse_conflicts(records: list[JobRecord], ids: list[UUID], using: str) -> None:
    """In strict mode, refuse a known key that came with another payload."""
    if not get_settings().idempotency_strict:
        return
    for record, job_id in zip(records, ids, strict=True):
        if record.id == job_id:
            continue
        known = IdempotencyKey.objects.using(using).filter(
            task=record.task, key=record.idempotency_key, job=job_id
        )
        # No row: pruned or taken over since, so there is nothing left to conflict with.
        digests = known.values_list("payload_digest", flat=True)
        if any(digest != record.payload_digest for digest in digests):
            raise IdempotencyConflict(
                f"The key {record.idempotency_key!r} of {record.task} was used with other"
                f" arguments, for job {job_id}.",
                job_id=job_id,
            )


# -- from a call to a record -------------------------------------------------------------------


def record_of(call: Call, takes: str = "") -> JobRecord:
    """Make the record of a call, or raise what is wrong with it; `takes` says which results."""
    data, task = _payload(call, takes), call.task
    if takes or not _is_plain(task.submission):
        return _record(call, data, takes)
    settings, model = task.memory.get("plain", (None, None))
    if settings is not get_settings():
        model = _record(call, b"")  # it stays: no caller's data in it
        model.validate()
        task.memory["plain"] = get_settings(), model
    return cast(JobRecord, model.alike(data))  # a sixth of what a record anew takes


def _is_plain(asked: Submission) -> bool:
    """Say whether what the task, its copy and the settings say is all there is to a record."""
    return (
        asked.idempotency_key is None
        and asked.tags is None
        and not asked.callback_url
        and not (asked.after or asked.after_any)
        and current.get() is None
        and pretended() is None
        and not carries()
    )


def _record(call: Call, data: bytes, takes: str = "") -> JobRecord:
    task, asked, settings = call.task, call.task.submission, get_settings()
    optional = _key(asked, data, settings) if asked.idempotency_key is not None else {}
    if takes:
        optional["input"] = takes
    inherited, context = None, current.get()
    if context is not None:
        inherited, optional["parent"] = context.correlation_id, context.job_id
    if isinstance(asked.callback_url, str) and 0 < len(asked.callback_url) <= URL_MAX_CHARS:
        destination(asked.callback_url, settings.callback_hosts)
    job_id, queue = uuid4(), (task.queue or settings.queue) if asked.queue is None else asked.queue
    if (trace := carried(task.name, queue, job_id)) is not None:
        optional["trace"] = trace
    return JobRecord(
        id=job_id,
        task=task.name,
        payload=data,
        queue=queue,
        priority=task.priority if asked.priority is None else asked.priority,
        created_at=pretended(),
        run_at=asked.run_at,
        delay=asked.delay,
        timeout=_timeout(task, asked, settings),
        max_attempts=asked.max_attempts or task.max_attempts or settings.max_attempts,
        lifetime=_limit(asked.lifetime, task.lifetime, settings.lifetime),
        # A copy: the caller may change its own before the job is stored, on commit.
        tags=dict(asked.tags) if isinstance(asked.tags, Mapping) else asked.tags,
        correlation_id=inherited if asked.correlation_id in (None, "") else asked.correlation_id,
        callback_url="" if asked.callback_url is None else asked.callback_url,
        **optional,
    )


def _payload(call: Call, takes: str = "") -> bytes:
    """The arguments of a call, encoded, or what is wrong with them raised."""
    settings = get_settings()
    _bind(call.task, (None, *call.args) if takes else call.args, call.kwargs)
    return payload.encode_call(
        call.args,
        call.kwargs,
        max_bytes=settings.payload_max_bytes,
        codec=settings.payload_codec,
    )


def edges_of(call: Call, record: JobRecord) -> list[Edge]:
    """The edges that a call asks for by `after` and `after_any`."""
    asked, edges = call.task.submission, []
    for kind in (DependencyKind.AFTER, DependencyKind.AFTER_ANY):
        jobs = getattr(asked, kind.value)
        if not jobs:
            continue
        named = dict.fromkeys(map(as_id, jobs))
        refuse_too_many(kind.value, len(named))
        using = alias_of(record.queue)
        if any((home_of(job) or using) != using for job in jobs):
            raise InvalidWorkflow(f"{kind.value}: a job of another database cannot be waited for")
        edges += [Edge(record.id, job_id, kind) for job_id in named]
    return edges


def refuse_too_many(who: str, count: int) -> None:
    most = get_settings().max_dependencies
    if count > most:
        raise TooManyDependencies(
            f"{who} names {count:,} jobs to wait for; MAX_DEPENDENCIES allows {most:,}."
        )


def _bind(task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        task.check_arguments(args, kwargs)
    except TypeError as problem:
        raise InvalidPayload(f"{task.name}: {problem}", argument="") from None


def _key(asked: Submission, data: bytes, settings: Settings) -> dict[str, Any]:
    return {
        "idempotency_key": asked.idempotency_key,
        "idempotency_ttl": settings.idempotency_ttl
        if asked.idempotency_ttl is None
        else asked.idempotency_ttl,
        "payload_digest": payload.digest(data, codec=settings.payload_codec),
    }


def _limit(asked: Limit, of_task: Limit, of_settings: Any) -> Any:
    for limit in (asked, of_task):
        if not isinstance(limit, Default):
            return limit
    return of_settings


def _timeout(task: Task[Any, Any], asked: Submission, settings: Settings) -> Any:
    timeout, ceiling = _limit(asked.timeout, task.timeout, settings.timeout), settings.max_timeout
    if ceiling is not None and (timeout is None or timeout > ceiling):
        shown = "no limit" if timeout is None else timeout
        raise InvalidJob(
            f"timeout: {shown} is over {ceiling}, which TASKHARBOR['MAX_TIMEOUT'] allows",
            field="timeout",
        )
    return timeout


# -- how long to wait for a database -----------------------------------------------------------

# option -> how it counts seconds; both are libpq's, the first is mysqlclient's too
_WAITING = {
    "postgresql": {"connect_timeout": 1, "tcp_user_timeout": 1000},
    "mysql": {"connect_timeout": 1},
}


def bound_waiting(using: str) -> None:
    """Tell a connection that is not open yet to give up after SUBMISSION_TIMEOUT."""
    connection = connections[using]
    if connection.connection is not None or connection.vendor not in _WAITING:
        return
    seconds = get_settings().submission_timeout.total_seconds()
    limits = {
        # libpq counts whole seconds, and takes 1 as 2
        name: max(2, int(seconds)) * scale
        for name, scale in _WAITING[connection.vendor].items()
    }
    asked = connection.settings_dict
    # A dict of this thread's own: the one in settings is shared with all the others.
    connection.settings_dict = {**asked, "OPTIONS": {**limits, **asked["OPTIONS"]}}
