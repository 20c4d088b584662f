"""
requeue: dead -> ready | scheduled | blocked, the same job again.

Locks:  the jobs in id order; a dead letter is covered by its job's lock.
Fence:  state is checked again under the lock; what moved meanwhile is left alone and counted.
Repeat: safe; a job that is no longer dead is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ..drivers.ends import Stored
from ..failpoints import reach
from ..lifecycle import TRANSITIONS, DeadReason, JobState, Verb
from ..models import DeadLetter
from ..signals import tell_on_commit
from ..values import as_duration
from .batches import Batch, Left, Moved, counted, in_batches
from .letters import close_letters, erased_among, open_letters
from .notify import notify_on_commit
from .revive import revive
from .selection import Which
from .terms import attempts_of, check_remark, check_terms, lifetime_of

MORE = ("created_at", "expires_at", "max_attempts", "dependencies_left")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wish:
    """How the jobs are to come back."""

    queue: str | None
    run_at: datetime | None
    delay: timedelta | None
    one_more: bool
    by: Any
    note: str


def requeue(
    which: Which,
    *,
    queue: str | None = None,
    run_at: datetime | None = None,
    delay: timedelta | float | None = None,
    one_more: bool = False,
    by: Any = None,
    note: str = "",
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
) -> Moved:
    """
    Let dead jobs run again with fresh attempts, or with `one_more` only once.

    Who died only with a dependency is left: `causes` of the answer names the jobs to requeue.
    """
    wait = None if delay is None else as_duration(delay)
    given: dict[str, Any] = {"run_at": run_at, "delay": wait}
    given |= {} if queue is None else {"queue": queue}
    check_terms(**given)
    check_remark(by, note)
    wish = _Wish(queue=queue, run_at=run_at, delay=wait, one_more=one_more, by=by, note=note)
    verb = partial(_requeue, wish=wish)
    return in_batches(which, verb, using=using, limit=limit, after=after)


def _requeue(batch: Batch, *, wish: _Wish) -> Moved:
    driver = batch.driver
    if wish.queue is not None:
        check_terms(driver.using, queue=wish.queue)
    with driver.transaction():
        found, why = batch.lock(*MORE)
        reach("requeue.locked")
        letters = open_letters(driver, [job for job, _ in found])
        erased = erased_among(batch)
        why |= _left(found, letters, erased)
        revived = [(job, more) for job, more in found if job.id not in why]
        now = driver.now()
        changes = {job.id: _changes(job, more, wish, now) for job, more in revived}
        driver.write(changes)
        close_letters(driver, list(changes), now, by=wish.by, note=wish.note)
        if followed := [job.id for job, _ in revived if job.followed]:
            revive(driver, followed)
        tell_on_commit(
            Verb.REQUEUE,
            driver.using,
            [job for job, _ in revived],
            lambda job: str(changes[job.id]["state"]),
        )
        notify_on_commit({wish.queue or job.queue for job, _ in revived}, driver.using)
    blamed = [letters[job_id] for job_id, reason in why.items() if reason == Left.DEPENDENCY]
    causes = dict.fromkeys(letter.cause_id for letter in blamed if letter.cause_id)
    return Moved(moved=len(revived), left=counted(why), causes=tuple(causes))


def _left(
    found: list[tuple[Stored, dict[str, Any]]],
    letters: dict[UUID, DeadLetter],
    erased: set[UUID],
) -> dict[UUID, Left]:
    why: dict[UUID, Left] = {}
    for job, _ in found:
        if JobState(job.state) not in TRANSITIONS[Verb.REQUEUE]:
            why[job.id] = Left.NOT_DEAD
        elif letters[job.id].reason == DeadReason.DEPENDENCY:
            why[job.id] = Left.DEPENDENCY
        elif job.id in erased:
            why[job.id] = Left.ERASED
    return why


def _changes(job: Stored, more: dict[str, Any], wish: _Wish, now: datetime) -> dict[str, Any]:
    run_at = now + wish.delay if wish.delay is not None else wish.run_at
    starts_at = max(run_at or now, now)
    lifetime = lifetime_of(job.task, more["created_at"], more["expires_at"])
    if more["dependencies_left"]:
        state = JobState.BLOCKED
    else:
        state = JobState.SCHEDULED if starts_at > now else JobState.READY
    return {
        "state": state.value,
        "queue": wish.queue or job.queue,
        "run_at": run_at,
        "available_at": starts_at,
        "expires_at": None if lifetime is None else starts_at + lifetime,
        "attempts": attempts_of(more["max_attempts"]) - 1 if wish.one_more else 0,
        "lease": None,
        "lease_losses": 0,
        "handler_misses": 0,
        "cancel_requested_at": None,
        "started_at": None,
        "finished_at": None,
        "progress": None,
        "progress_message": "",
        "updated_at": now,
    }
