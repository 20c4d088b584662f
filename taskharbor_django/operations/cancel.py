"""
cancel: blocked | scheduled | ready -> cancelled; inflight is asked, or with force cancelled too.

Locks:  the jobs in id order; lease rows are never locked, the worker is told by a notice.
Fence:  state is looked at under the lock; what ended meanwhile is left alone.
Repeat: safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ..drivers import DatabaseDriver
from ..drivers.ends import Stored, stored_rows
from ..drivers.transient import repeat
from ..failpoints import reach
from ..lifecycle import TRANSITIONS, JobState, Verb
from ..models import Job, Notice
from .storage import default_alias, driver_for


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancelled:
    """How many were cancelled at once, asked to stop, or had ended (or never were)."""

    cancelled: int = 0
    asked: int = 0
    left: int = 0


def cancel(ids: Iterable[UUID], *, force: bool = False, using: str | None = None) -> Cancelled:
    """Cancel waiting jobs; ask running ones to stop, or with `force` take their token away."""
    driver, wanted = driver_for(using or default_alias()), set(ids)
    return repeat(driver.using, lambda: _cancel(driver, wanted, force=force))


def _cancel(driver: DatabaseDriver, wanted: set[UUID], *, force: bool) -> Cancelled:
    stored = Job.objects.using(driver.using)
    with driver.transaction():
        rows = stored.filter(pk__in=wanted).order_by("pk")
        jobs = [job for job in stored_rows(driver.waiting_for(rows)) if _is_open(job)]
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
        _leave_notices(driver, jobs, Notice.Kind.REVOKED if force else Notice.Kind.CANCEL, now)
        driver.report_ends(ended)
    return Cancelled(cancelled=len(ended), asked=len(asked), left=len(wanted) - len(jobs))


def _leave_notices(
    driver: DatabaseDriver, jobs: list[Stored], kind: Notice.Kind, now: datetime
) -> None:
    Notice.objects.using(driver.using).bulk_create(
        Notice(token=job.lease, job_id=job.id, kind=kind, created_at=now)
        for job in jobs
        if job.lease is not None
    )


def _is_open(job: Stored) -> bool:
    return JobState(job.state) in TRANSITIONS[Verb.CANCEL]
