"""
update: other terms for a job that has not started; reschedule moves it between scheduled and ready.

Locks:  the jobs in id order.
Fence:  state is checked again under the lock; what has started is left alone and counted.
Repeat: safe.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from ..drivers.ends import Stored
from ..exceptions import InvalidJob
from ..failpoints import reach
from ..lifecycle import TRANSITIONS, JobState, Verb
from ..signals import tell_on_commit
from .batches import Batch, Left, Moved, counted, in_batches
from .notify import notify_on_commit
from .selection import Which
from .terms import check_terms, lifetime_of

COLUMNS = ("priority", "tags", "callback_url", "run_at", "queue")
MORE = ("created_at", "expires_at")


def update(
    which: Which,
    *,
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
    **columns: Any,
) -> Moved:
    """Change priority, tags, callback_url, run_at or queue of jobs that have not started."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        wrong = f"{unknown[0]} cannot be changed" if unknown else "nothing to change"
        raise InvalidJob(f"{wrong}; there are {', '.join(COLUMNS)}", field="".join(unknown[:1]))
    check_terms(**columns)
    verb = partial(_update, columns=columns)
    return in_batches(which, verb, using=using, limit=limit, after=after)


def run_now(
    which: Which,
    *,
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
) -> Moved:
    """Let scheduled jobs, retries among them, run at once."""
    return in_batches(which, _run_now, using=using, limit=limit, after=after)


def _update(batch: Batch, *, columns: dict[str, Any]) -> Moved:
    driver = batch.driver
    if "queue" in columns:
        check_terms(driver.using, queue=columns["queue"])
    with driver.transaction():
        found, why = batch.lock(*MORE)
        reach("update.locked")
        waiting = [(job, more) for job, more in found if _waits(job)]
        why |= {job.id: Left.STARTED for job, _ in found if not _waits(job)}
        now = driver.now()
        moved = {job.id: _changes(job, more, columns, now) for job, more in waiting}
        driver.write(moved)
        notify_on_commit({columns.get("queue") or job.queue for job, _ in waiting}, driver.using)
        tell_on_commit(
            Verb.RESCHEDULE,
            driver.using,
            [job for job, _ in waiting],
            lambda job: str(moved[job.id].get("state", job.state)),
        )
    return Moved(moved=len(moved), left=counted(why))


def _changes(
    job: Stored, more: dict[str, Any], columns: dict[str, Any], now: datetime
) -> dict[str, Any]:
    made = {**columns, "updated_at": now}
    if "run_at" not in columns:
        return made
    run_at = columns["run_at"]
    starts_at = max(run_at or now, now)
    made["available_at"] = starts_at
    lifetime = lifetime_of(job.task, more["created_at"], more["expires_at"])
    if lifetime is not None:
        made["expires_at"] = max(more["created_at"], starts_at) + lifetime
    if job.state != JobState.BLOCKED:
        made["state"] = (JobState.SCHEDULED if starts_at > now else JobState.READY).value
    return made


def _run_now(batch: Batch) -> Moved:
    driver = batch.driver
    with driver.transaction():
        found, why = batch.lock()
        reach("run_now.locked")
        why |= {job.id: reason for job, _ in found if (reason := _no_wait(job))}
        due = [job for job, _ in found if job.id not in why]
        now = driver.now()
        batch.rows.filter(pk__in=[job.id for job in due]).update(
            state=JobState.READY.value, run_at=now, available_at=now, updated_at=now
        )
        notify_on_commit({job.queue for job in due}, driver.using)
        tell_on_commit(Verb.RESCHEDULE, driver.using, due, JobState.READY.value)
    return Moved(moved=len(due), left=counted(why))


def _waits(job: Stored) -> bool:
    return JobState(job.state) in TRANSITIONS[Verb.RESCHEDULE]


def _no_wait(job: Stored) -> Left | None:
    """Why there is no time that the job waits for."""
    if not _waits(job):
        return Left.STARTED
    waits_for = {JobState.READY: Left.READY, JobState.BLOCKED: Left.BLOCKED}
    return waits_for.get(JobState(job.state))
