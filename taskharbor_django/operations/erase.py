"""
erase: what ended jobs were told, returned and said; the states do not change.

Locks:  the jobs in id order, then their attempts and dead letters.
Fence:  state is checked again under the lock; what has not ended is left alone and counted.
Repeat: safe.
"""

from __future__ import annotations

from uuid import UUID

from ..failpoints import reach
from ..lifecycle import ENDED, JobState
from ..models import Attempt, DeadLetter, Job
from ..payload import ERASED
from .batches import Batch, Left, Moved, counted, in_batches
from .selection import Which

SAID = {"error": "", "traceback": ""}


def erase(
    which: Which,
    *,
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
) -> Moved:
    """Remove payload, result, checkpoint, tags, messages and errors of jobs that have ended."""
    return in_batches(which, _erase, using=using, limit=limit, after=after)


def _erase(batch: Batch) -> Moved:
    using = batch.driver.using
    with batch.driver.transaction():
        found, why = batch.lock()
        reach("erase.locked")
        ids = [job.id for job, _ in found if job.state in ENDED]
        why |= {job.id: Left.OPEN for job, _ in found if job.state not in ENDED}
        jobs = Job.objects.using(using).filter(pk__in=ids)
        jobs.update(
            payload=ERASED,
            checkpoint=None,
            tags=None,
            last_error="",
            progress_message="",
            updated_at=batch.driver.now(),
        )
        # No bytes at all are a result that was not kept; NULL would be a returned None.
        jobs.filter(state=JobState.DONE.value).update(result=b"", result_expires_at=None)
        Attempt.objects.using(using).filter(job__in=ids).update(**SAID)
        DeadLetter.objects.using(using).filter(job__in=ids).update(**SAID)
    return Moved(moved=len(ids), left=counted(why))
