"""
replay: a new job from a dead one, which is then given up: dead -> cancelled, unless it is kept.

Locks:  the dead jobs in id order; a dead letter is covered by its job's lock. The new ones are
        inserted in the same transaction.
Fence:  state is checked again under the lock; what moved meanwhile is left alone and counted.
Repeat: safe, unless the dead job is kept: then each replay makes another one.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from ..conf import get_settings
from ..drivers.ends import Stored
from ..exceptions import InvalidJob
from ..failpoints import reach
from ..payload import ERASED, digest
from ..values import JobRecord, new_id
from .batches import Batch, Left, Moved, counted, in_batches
from .discard import discard_locked, is_dead
from .notify import notify_on_commit
from .selection import Selection, Which, several
from .terms import attempts_of, check_remark, check_terms, lifetime_of

COPIED = ("payload", "priority", "timeout", "tags", "correlation_id", "callback_url", "parent")
MORE = (*COPIED, "input", "created_at", "expires_at", "max_attempts")


def replay(
    which: Which,
    *,
    idempotency_key: str | None = None,
    queue: str | None = None,
    run_at: datetime | None = None,
    keep: bool = False,
    by: Any = None,
    note: str = "",
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
) -> Moved:
    """
    Make a new job with the payload of each dead one, linked to it by `replay_of`.

    The dead one leaves the dead letters, unless `keep`. `{id}` in the key stands for its id, which
    a key for several jobs must have.
    """
    which = which if isinstance(which, Selection) else several(which)
    if idempotency_key is not None and "{id}" not in idempotency_key and not _is_one(which):
        raise InvalidJob(
            "idempotency_key: one key cannot stand for several jobs; put {id} into it",
            field="idempotency_key",
        )
    given: dict[str, Any] = {"run_at": run_at, "idempotency_key": idempotency_key}
    check_remark(by, note)
    check_terms(**given, **({} if queue is None else {"queue": queue}))
    verb = partial(_replay, given=given, queue=queue, keep=keep, by=by, note=note)
    return in_batches(which, verb, using=using, limit=limit, after=after)


def _is_one(which: Which) -> bool:
    return isinstance(which, list) and len(which) == 1


def _replay(
    batch: Batch, *, given: dict[str, Any], queue: str | None, keep: bool, by: Any, note: str
) -> Moved:
    driver = batch.driver
    if queue is not None:
        check_terms(driver.using, queue=queue)
    with driver.transaction():
        found, why = batch.lock(*MORE)
        reach("replay.locked")
        why |= {job.id: reason for job, more in found if (reason := _refusal(job, more))}
        records = {
            job.id: _record(job, more, queue, given) for job, more in found if job.id not in why
        }
        ids = driver.enqueue_many(list(records.values()))
        made = [new for new, record in zip(ids, records.values(), strict=True) if new == record.id]
        why |= {old: Left.KEY_USED for old, record in records.items() if record.id not in made}
        replayed = [job for job, _ in found if job.id not in why]
        if not keep:
            discard_locked(driver, replayed, driver.now(), by=by, note=note)
        notify_on_commit({queue or job.queue for job in replayed}, driver.using)
    return Moved(moved=len(replayed), left=counted(why), made=tuple(made))


def _refusal(job: Stored, more: dict[str, Any]) -> Left | None:
    if not is_dead(job):
        return Left.NOT_DEAD
    if more["input"]:
        return Left.TAKES_RESULTS
    return Left.ERASED if bytes(more["payload"]) == ERASED else None


def _record(
    job: Stored, more: dict[str, Any], queue: str | None, given: dict[str, Any]
) -> JobRecord:
    copied = {name: more[name] for name in COPIED}
    copied["payload"] = payload = bytes(more["payload"])
    settings, key = get_settings(), given["idempotency_key"]
    if key is not None:
        copied["idempotency_key"] = key.replace("{id}", str(job.id))
        copied["idempotency_ttl"] = settings.idempotency_ttl
        copied["payload_digest"] = digest(payload, codec=settings.payload_codec)
    return JobRecord(
        id=new_id(),
        task=job.task,
        queue=queue or job.queue,
        run_at=given["run_at"],
        max_attempts=attempts_of(more["max_attempts"]),
        lifetime=lifetime_of(job.task, more["created_at"], more["expires_at"]),
        replay_of=job.id,
        **copied,
    )
