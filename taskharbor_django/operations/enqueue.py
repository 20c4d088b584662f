"""
enqueue: nothing -> ready | scheduled.

Locks:  none; with an idempotency key, the key's row.
Fence:  the primary key; the unique key.
Repeat: with an idempotency key, safe; without one, each call is a job.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID, uuid4

from django.db import connections, transaction

from .. import payload
from ..conf import Settings, get_settings
from ..context import current
from ..drivers.transient import repeat
from ..exceptions import IdempotencyConflict, InvalidJob, InvalidPayload
from ..models import IdempotencyKey
from ..task_options import Default, Limit
from ..tasks import Call, Submission, Task
from ..values import JobRecord, shown
from .handle import JobHandle
from .notify import notify_on_commit
from .storage import alias_of, driver_for

BATCH_BYTES = 4 * 2**20

OnBatch = Callable[[list[UUID]], Any]


def enqueue(call: Call) -> JobHandle:
    """Store one job in the caller's transaction: one INSERT, unless there is a key."""
    return _store(record_of(call))


def enqueue_on_commit(call: Call) -> None:
    """Store one job once the caller's transaction has committed; refuse it, if need be, now."""
    record = record_of(call)
    record.validate()
    transaction.on_commit(lambda: _store(record))


def _store(record: JobRecord) -> JobHandle:
    using = alias_of(record.queue)
    bound_waiting(using)
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
    batches = _batches((record_of(call) for call in calls), batch_size)
    first, second = next(batches, None), next(batches, None)
    if first is None:
        return 0
    using = alias_of(first[0].queue)
    bound_waiting(using)
    if second is None:
        # After a deadlock a single batch can be stored again; several are not kept for that.
        return repeat(using, lambda: _enqueue_batches([first], using, on_batch))
    return _enqueue_batches(itertools.chain([first, second], batches), using, on_batch)


def _batches(records: Iterable[JobRecord], size: int) -> Iterator[list[JobRecord]]:
    """Cut into batches, smaller ones of large jobs: MariaDB takes 16 MiB in a statement."""
    batch: list[JobRecord] = []
    weight = 0
    for record in records:
        batch.append(record)
        weight += len(record.payload)
        if len(batch) == size or weight >= BATCH_BYTES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _enqueue_batches(
    batches: Iterable[list[JobRecord]], using: str, on_batch: OnBatch | None
) -> int:
    with transaction.atomic(using=using):
        return sum(_enqueue_batch(batch, using, on_batch) for batch in batches)


def _enqueue_batch(batch: list[JobRecord], using: str, on_batch: OnBatch | None) -> int:
    elsewhere = next((r.queue for r in batch if alias_of(r.queue) != using), None)
    if elsewhere is not None:
        raise InvalidJob(f"queue: {elsewhere} is kept in another database", field="queue")
    ids = driver_for(using).enqueue_many(batch)
    _refuse_conflicts(batch, ids, using)
    notify_on_commit({record.queue for record in batch}, using)
    if on_batch is not None:
        on_batch(ids)
    return sum(record.id == job_id for record, job_id in zip(batch, ids, strict=True))


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


def record_of(call: Call) -> JobRecord:
    """Make the record of a call, or raise what is wrong with it."""
    task, asked, settings = call.task, call.task.submission, get_settings()
    _bind(task, call)
    data = payload.encode_call(
        call.args,
        call.kwargs,
        max_bytes=settings.payload_max_bytes,
        codec=settings.payload_codec,
    )
    optional = _key(asked, data, settings) if asked.idempotency_key is not None else {}
    inherited, context = None, current.get()
    if context is not None:
        inherited, optional["parent"] = context.correlation_id, context.job_id
    return JobRecord(
        id=uuid4(),
        task=task.name,
        payload=data,
        queue=(task.queue or settings.queue) if asked.queue is None else asked.queue,
        priority=task.priority if asked.priority is None else asked.priority,
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


def _bind(task: Task[Any, Any], call: Call) -> None:
    try:
        task.check_arguments(call.args, call.kwargs)
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
