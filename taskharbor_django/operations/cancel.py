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
from typing import Any
from uuid import UUID

from ..drivers import DatabaseDriver
from ..drivers.ends import Stored, stored_rows
from ..drivers.transient import repeat
from ..exceptions import InvalidJob
from ..failpoints import reach
from ..lifecycle import TRANSITIONS, JobState, Verb
from ..models import Job, Notice
from ..values import shown
from .storage import default_alias, driver_for


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancelled:
    """How many were cancelled at once, asked to stop, or had ended (or never were)."""

    cancelled: int = 0
    asked: int = 0
    left: int = 0


def cancel(jobs: Iterable[Any], *, force: bool = False, using: str | None = None) -> Cancelled:
    """
    Cancel waiting jobs; ask running ones to stop, or with `force` take their token away.

    Takes ids, also as text, handles and Jobs.
    """
    if isinstance(jobs, str | UUID) or hasattr(jobs, "id"):
        raise InvalidJob("cancel takes several jobs: put a single one into a list", field="id")
    wanted: dict[str, set[UUID]] = {}
    for job in jobs:
        wanted.setdefault(using or _alias_of(job), set()).add(as_id(job))
    done = [_cancel_in(alias, ids, force=force) for alias, ids in wanted.items()]
    return Cancelled(
        cancelled=sum(it.cancelled for it in done),
        asked=sum(it.asked for it in done),
        left=sum(it.left for it in done),
    )


def _alias_of(job: Any) -> str:
    """The database that a handle or Job comes from; of an id, the default."""
    state = getattr(job, "_state", None)
    return getattr(job, "using", None) or getattr(state, "db", None) or default_alias()


def _cancel_in(using: str, wanted: set[UUID], *, force: bool) -> Cancelled:
    driver = driver_for(using)
    return repeat(using, lambda: _cancel(driver, wanted, force=force))


def as_id(job: Any) -> UUID:
    """The id of what stands for a job, or InvalidJob."""
    job_id = getattr(job, "id", job)
    try:
        return job_id if isinstance(job_id, UUID) else UUID(job_id)
    except (TypeError, ValueError, AttributeError):
        raise InvalidJob(f"id: {shown(job)} is no job id", field="id") from None


def _cancel(driver: DatabaseDriver, wanted: set[UUID], *, force: bool) -> Cancelled:
    stored = Job.objects.using(driver.using)
    with driver.transaction():
        rows = stored.filter(pk__in=wanted).order_by("pk")
        with driver.short_waits():
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
