"""
enqueue: nothing -> ready | scheduled; with jobs to wait for see edges.py.

Locks:  none; with an idempotency key, the key's row.
Fence:  the primary key; the unique key.
Repeat: with an idempotency key, safe; without one, each call is a job.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

from django.db import connections, transaction

from ..conf import get_settings
from ..drivers.ground import bound_connecting
from ..drivers.transient import repeat
from ..exceptions import IdempotencyConflict, InvalidWorkflow, TooManyDependencies
from ..lifecycle import DependencyKind
from ..models import IdempotencyKey
from ..tasks import Call
from ..values import JobRecord, shown
from .edges import store
from .handle import JobHandle
from .notify import notify_on_commit
from .plans import Edge, Plan, batches
from .records import payload_of, record_of
from .selection import as_id, home_of
from .storage import alias_of, driver_for
from .terms import refuse_queue
from .transactions import after_commit, refuse_elsewhere

OnBatch = Callable[[list[UUID]], Any]


def enqueue(call: Call) -> JobHandle:
    """Store one job in the caller's transaction: one INSERT, unless there is a key."""
    record = record_of(call)
    using = alias_of(record.queue)
    refuse_elsewhere(using, record.queue)
    return _store(record, edges_of(call, record), using)


def enqueue_on_commit(call: Call) -> None:
    """Store one job once the caller's transactions have committed; refuse it, if need be, now."""
    record = record_of(call)
    record.validate()
    edges = edges_of(call, record)
    after_commit(lambda: _store(record, edges, alias_of(record.queue)))


def _store(record: JobRecord, edges: list[Edge], using: str) -> JobHandle:
    bound_waiting(using)
    if edges:
        (job_id,) = store(driver_for(using), Plan(records=[record], edges=edges))
    else:
        job_id = driver_for(using).enqueue(record)
    created = job_id == record.id
    if created:
        notify_on_commit([record.queue], using)
    else:
        _refuse_conflicts([record], [job_id], using)
    return JobHandle(id=job_id, using=using, created=created)


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
                yield model[1].alike(payload_of(call))  # a third of what a record anew takes
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


# -- what a call waits for ---------------------------------------------------------------------


def edges_of(call: Call, record: JobRecord) -> list[Edge]:
    """The edges that a call asks for by `after` and `after_any`."""
    asked, edges = call.task.submission, list[Edge]()
    if not (asked.after or asked.after_any):
        return edges
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
    # libpq counts whole seconds, and takes 1 as 2
    seconds = max(2, int(get_settings().submission_timeout.total_seconds()))
    scales = _WAITING[connection.vendor]
    bound_connecting(connection, {name: seconds * scale for name, scale in scales.items()})
