"""
bury: blocked | scheduled | ready | inflight -> dead, by hand.

Locks:  the jobs in id order; lease rows never, the worker is told by a notice.
Fence:  state is looked at again under the lock; what ended meanwhile is left alone and counted.
Repeat: safe; a job that is dead already is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from ..drivers import DatabaseDriver, ends
from ..drivers.ends import Stored
from ..drivers.moves import BY_HAND
from ..failpoints import reach
from ..lifecycle import TRANSITIONS, DeadReason, FailureCategory, JobState, Verb
from ..models import Job, Notice
from ..signals import tell_on_commit
from .batches import Batch, Left, Moved, counted, in_batches
from .cancel import leave_notices
from .selection import Which
from .terms import check_remark


def bury(
    which: Which,
    *,
    note: str = "",
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
) -> Moved:
    """
    Put open jobs among the dead letters, from where they can be requeued.

    A running one is taken away from its worker: what that reports is refused. `note` is kept as
    the error.
    """
    check_remark(None, note)
    verb = partial(_bury, note=note)
    return in_batches(which, verb, using=using, limit=limit, after=after)


def _bury(batch: Batch, *, note: str) -> Moved:
    driver = batch.driver
    with driver.transaction():
        found, why = batch.lock()
        reach("bury.locked")
        jobs = [job for job, _ in found if _is_open(job)]
        why |= {job.id: Left.ENDED for job, _ in found if not _is_open(job)}
        bury_locked(
            driver,
            jobs,
            driver.now(),
            verb=Verb.BURY,
            reason=DeadReason.MANUAL,
            category=FailureCategory.CANCELLED,
            error=note or BY_HAND,
        )
    return Moved(moved=len(jobs), left=counted(why))


def _is_open(job: Stored) -> bool:
    return JobState(job.state) in TRANSITIONS[Verb.BURY]


def bury_locked(
    driver: DatabaseDriver,
    jobs: Sequence[Stored],
    now: datetime,
    *,
    verb: Verb,
    reason: DeadReason,
    category: FailureCategory,
    error: str,
) -> None:
    """Bury locked open jobs without a token, open their letters, and tell who holds or follows."""
    Job.objects.using(driver.using).filter(pk__in=[job.id for job in jobs]).update(
        state=JobState.DEAD.value,
        lease=None,
        finished_at=now,
        updated_at=now,
        failed_at=now,
        last_error=error,
        failure_category=category.value,
        failure_code="",
    )
    ends.record_buried(jobs, now, driver.using, reason=reason, category=category, error=error)
    leave_notices(driver, jobs, Notice.Kind.REVOKED, now)
    driver.report_ends(jobs)
    tell_on_commit(verb, driver.using, jobs, JobState.DEAD.value, reason=reason.value)
