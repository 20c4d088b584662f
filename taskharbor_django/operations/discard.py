"""
discard: dead -> cancelled; the letter is closed with a note.

Locks:  the jobs in id order; a dead letter is covered by its job's lock.
Fence:  state is checked again under the lock; what moved meanwhile is left alone and counted.
Repeat: safe; a job that is no longer dead is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from ..drivers import DatabaseDriver
from ..drivers.ends import Stored
from ..failpoints import reach
from ..lifecycle import TRANSITIONS, JobState, Verb
from ..models import Job
from ..signals import tell_on_commit
from .batches import Batch, Left, Moved, counted, in_batches
from .letters import close_letters
from .revive import discard_below
from .selection import Which
from .terms import check_remark


def discard(
    which: Which,
    *,
    by: Any = None,
    note: str = "",
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
) -> Moved:
    """Give dead jobs up: they will not run again, and leave the dead letters."""
    check_remark(by, note)
    verb = partial(_discard, by=by, note=note)
    return in_batches(which, verb, using=using, limit=limit, after=after)


def _discard(batch: Batch, *, by: Any, note: str) -> Moved:
    with batch.driver.transaction():
        found, why = batch.lock()
        reach("discard.locked")
        dead = [job for job, _ in found if is_dead(job)]
        why |= {job.id: Left.NOT_DEAD for job, _ in found if not is_dead(job)}
        discard_locked(batch.driver, dead, batch.driver.now(), by=by, note=note)
    return Moved(moved=len(dead), left=counted(why))


def is_dead(job: Stored) -> bool:
    return JobState(job.state) in TRANSITIONS[Verb.DISCARD]


def discard_locked(
    driver: DatabaseDriver, dead: Sequence[Stored], now: datetime, *, by: Any, note: str
) -> None:
    """Cancel locked dead jobs, without a token, and close their letters."""
    ids = [job.id for job in dead]
    jobs = Job.objects.using(driver.using).filter(pk__in=ids)
    jobs.update(state=JobState.CANCELLED.value, lease=None, updated_at=now)
    close_letters(driver, ids, now, by=by, note=note)
    if followed := [job.id for job in dead if job.followed]:
        discard_below(driver, followed)
    tell_on_commit(Verb.DISCARD, driver.using, dead, JobState.CANCELLED.value)
