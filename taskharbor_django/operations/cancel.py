"""
cancel: blocked | scheduled | ready -> cancelled; inflight is asked, or with force cancelled too.

Locks:  the jobs in id order; lease rows are never locked, the worker is told by a notice.
Fence:  state is looked at under the lock; what ended meanwhile is left alone.
Repeat: safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from ..drivers import DatabaseDriver, ends
from ..drivers.ends import Stored
from ..drivers.moves import BY_FORCE
from ..failpoints import reach
from ..lifecycle import TRANSITIONS, JobState, Verb
from ..models import Job, Notice
from ..signals import tell_on_commit
from .batches import Batch, Left, Moved, counted, in_batches
from .selection import Which


def cancel(
    which: Which,
    *,
    force: bool = False,
    state: JobState | None = None,
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
) -> Moved:
    """
    Cancel waiting jobs; ask running ones to stop, or with `force` take their token away.

    Takes ids, also as text, handles and Jobs, or a Selection. With `state`, those in another are
    left alone.
    """
    verb = partial(_cancel, force=force)
    return in_batches(which, verb, using=using, limit=limit, after=after, state=state)


def _cancel(batch: Batch, *, force: bool) -> Moved:
    driver = batch.driver
    stored = Job.objects.using(driver.using)
    with driver.transaction():
        found, why = batch.lock()
        jobs = [job for job, _ in found if _is_open(job)]
        why |= {job.id: Left.ENDED for job, _ in found if not _is_open(job)}
        reach("cancel.locked")
        asked = [job for job in jobs if not force and job.state == JobState.INFLIGHT]
        ended = [job for job in jobs if force or job.state != JobState.INFLIGHT]
        now = driver.now()
        stored.filter(pk__in=[job.id for job in ended]).update(
            state=JobState.CANCELLED.value, lease=None, finished_at=now, updated_at=now
        )
        stored.filter(pk__in=[job.id for job in asked]).update(
            cancel_requested_at=now, updated_at=now
        )
        ends.record_cut_off(ended, now, driver.using, error=BY_FORCE)
        leave_notices(driver, jobs, Notice.Kind.REVOKED if force else Notice.Kind.CANCEL, now)
        driver.report_ends(ended)
        tell_on_commit(Verb.CANCEL, driver.using, ended, JobState.CANCELLED.value)
    return Moved(moved=len(ended), asked=len(asked), left=counted(why))


def leave_notices(
    driver: DatabaseDriver, jobs: Sequence[Stored], kind: Notice.Kind, now: datetime
) -> None:
    """Tell the workers that hold these jobs."""
    Notice.objects.using(driver.using).bulk_create(
        Notice(token=job.lease, job_id=job.id, kind=kind, created_at=now)
        for job in jobs
        if job.lease is not None
    )


def _is_open(job: Stored) -> bool:
    return JobState(job.state) in TRANSITIONS[Verb.CANCEL]
