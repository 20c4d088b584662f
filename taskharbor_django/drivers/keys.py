"""
Idempotency keys: one owner per (task, key) until the key expires.

Locks:  the key's row, in (task, key) order, before the job is inserted.
Fence:  the unique constraint decides between racers; an expired key changes hands by an UPDATE
        that looks at the expiry again.
Repeat: safe; the owner of a key finds itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Q

from ..exceptions import DuplicateJob
from ..models import IdempotencyKey
from ..models.expressions import DatabaseNow
from ..values import JobRecord
from .inserts import SERVER_CLOCKS

KEYS_PER_STATEMENT = 500

Key = tuple[str, str]


def key_of(record: JobRecord) -> Key:
    return record.task, record.idempotency_key or ""


def take_keys(records: Iterable[JobRecord], using: str) -> dict[Key, UUID]:
    """Take each record's key for it, or learn whose it is; return the owning job of each."""
    wanted: dict[Key, JobRecord] = {}
    for record in sorted(records, key=key_of):
        wanted.setdefault(key_of(record), record)
    owners: dict[Key, UUID] = {}
    pairs = iter(wanted.items())
    while some := dict(itertools.islice(pairs, KEYS_PER_STATEMENT)):
        owners |= _take(some, using)
    return owners


def _take(wanted: Mapping[Key, JobRecord], using: str) -> dict[Key, UUID]:
    owners: dict[Key, UUID] = {}
    # More than one turn only when a key is pruned, or taken over by another, between two looks.
    while missing := {key: wanted[key] for key in wanted if key not in owners}:
        _insert(missing.values(), using)
        owners |= _look(missing, using)
    return owners


def _look(wanted: Mapping[Key, JobRecord], using: str) -> dict[Key, UUID]:
    owners = {}
    for key, (job_id, expired) in _stored(wanted, using).items():
        record = wanted[key]
        if job_id == record.id or not expired:
            owners[key] = job_id
        elif _take_over(record, using):
            owners[key] = record.id
    return owners


def repeated(records: Iterable[JobRecord], using: str) -> set[UUID]:
    """Which of them are the jobs that their own keys stand for: stored before, the reply lost."""
    wanted = {key_of(record): record for record in records if record.idempotency_key is not None}
    with transaction.atomic(using=using):
        owners = _stored(wanted, using)
    return {
        job_id
        for key, (job_id, expired) in owners.items()
        if job_id == wanted[key].id and not expired
    }


def resolved(records: Sequence[JobRecord], using: str) -> tuple[list[UUID], Sequence[JobRecord]]:
    """Take the keys that are asked for; return the job that each record is, and those to store."""
    keyed = [record for record in records if record.idempotency_key is not None]
    ids = [record.id for record in records]
    # By their numbers: a UUID is hashed and compared in Python.
    if not keyed and len({job_id.int for job_id in ids}) == len(ids):
        return ids, records
    owners = take_keys(keyed, using) if keyed else {}
    ids = [owners.get(key_of(record), record.id) for record in records]
    return ids, _fresh(records, ids)


def _fresh(records: Iterable[JobRecord], ids: Iterable[UUID]) -> list[JobRecord]:
    """Those that stand for themselves, each once: the same id and key again is a repeat."""
    found: dict[UUID, JobRecord] = {}
    for record, job_id in zip(records, ids, strict=True):
        if record.id in found and job_id == record.id:
            if record.idempotency_key is None or key_of(record) != key_of(found[record.id]):
                raise DuplicateJob("Two of these jobs have the same id.")
        elif job_id == record.id:
            found[record.id] = record
    return list(found.values())


def _stored(wanted: Mapping[Key, JobRecord], using: str) -> dict[Key, tuple[UUID, bool]]:
    """The owner of each key, and whether its time is over for the record that wants it."""
    by_task: dict[str, list[str]] = {}
    for task, key in wanted:
        by_task.setdefault(task, []).append(key)
    matching = Q(pk__in=[])
    for task, keys in by_task.items():
        matching |= Q(task=task, key__in=keys)
    rows = IdempotencyKey.objects.using(using).filter(matching)
    if _reads_the_past(connections[using]):
        # The loop of `_take` would never end. Only then: the planner may read, and so lock, keys of
        # others that the INSERT has not locked, and crossing batches deadlock over them.
        rows = rows.select_for_update()
    found = rows.annotate(now=DatabaseNow()).values_list("task", "key", "job", "expires_at", "now")
    return {
        (task, key): (job_id, expires_at <= (wanted[task, key].created_at or now))
        for task, key, job_id, expires_at, now in found
    }


def _reads_the_past(connection: Any) -> bool:
    """Whether a plain look may show what was there at the beginning of the transaction."""
    return bool(connection.vendor == "mysql" and connection.isolation_level != "read committed")


def _now(record: JobRecord) -> Any:
    return record.created_at or DatabaseNow()


def _take_over(record: JobRecord, using: str) -> bool:
    """Make an expired key stand for this job; False when another was faster."""
    expired = IdempotencyKey.objects.using(using).filter(
        task=record.task, key=record.idempotency_key, expires_at__lte=_now(record)
    )
    return bool(
        expired.update(
            job=record.id,
            payload_digest=record.payload_digest,
            expires_at=_now(record) + record.idempotency_ttl,
        )
    )


def _field(name: str) -> Any:
    return IdempotencyKey._meta.get_field(name)


@cache
def _statement(using: str) -> tuple[str, str]:
    """The head and the tail of an INSERT that leaves a known key alone but waits for its owner."""
    quote = connections[using].ops.quote_name
    meta = IdempotencyKey._meta
    names = ("task", "key", "job", "payload_digest", "expires_at")
    task, key, *others = [quote(_field(name).column) for name in names]
    head = f"INSERT INTO {quote(meta.db_table)} ({', '.join([task, key, *others])}) VALUES "  # noqa: S608  names from the model, values as parameters
    # On MariaDB a failed INSERT IGNORE leaves a shared lock, and two waiters then deadlock over
    # the exclusive one; ON DUPLICATE KEY takes the exclusive lock at once.
    if connections[using].vendor == "mysql":
        return head, f" ON DUPLICATE KEY UPDATE {task} = {task}"
    return head, f" ON CONFLICT ({task}, {key}) DO NOTHING"


def _insert(records: Iterable[JobRecord], using: str) -> None:
    connection = connections[using]
    head, tail = _statement(using)
    values, parameters = [], []
    for record in records:
        expiry, expires_at = _expiry(record, connection)
        values.append(f"(%s, %s, %s, %s, {expiry})")
        job_id = _field("job").get_db_prep_save(record.id, connection)
        parameters += [record.task, record.idempotency_key, job_id, record.payload_digest]
        parameters.append(expires_at)
    with connection.cursor() as cursor:
        cursor.execute(head + ", ".join(values) + tail, parameters)


def _expiry(record: JobRecord, connection: Any) -> tuple[str, Any]:
    clock = SERVER_CLOCKS.get(connection.vendor)
    if record.created_at is None and clock is not None:
        return clock.after, clock.span(record.idempotency_ttl)
    expires_at = (record.created_at or datetime.now(UTC)) + record.idempotency_ttl
    return "%s", _field("expires_at").get_db_prep_save(expires_at, connection)
