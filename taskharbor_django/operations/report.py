"""
report: what a worker writes about a job while it runs; the state does not change.

Locks:  the jobs, SKIP LOCKED: what is locked is written the next time. A checkpoint has no next
        time and waits for its one row, with a time limit: whoever holds it just now (the reports
        of the same worker, most often) must not fail the handler.
Fence:  the token on the locked row of a job that still runs: an ended one keeps its token.
Repeat: safe; the newest report wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import OperationalError

from ..drivers import DatabaseDriver
from ..drivers.transient import is_transient
from ..exceptions import JobLocked, LeaseMismatch
from ..models import Attempt, Job, Notice

Reports = Mapping[UUID, tuple[UUID, dict[str, Any]]]  # job -> its token, the columns to write


def report(driver: DatabaseDriver, reports: Reports) -> set[UUID]:
    """Write progress and start times of running jobs; return the jobs that were written."""
    with driver.transaction():
        running = Job.objects.using(driver.using).inflight()
        jobs = running.filter(pk__in=list(reports)).order_by("pk")
        rows = driver.locked(jobs).values_list("pk", "lease")
        written = {pk for pk, lease in rows if lease == reports[pk][0]}
        driver.write({pk: reports[pk][1] for pk in written})
    return written


def save_checkpoint(
    driver: DatabaseDriver, job_id: UUID, token: UUID, data: bytes, *, now: datetime
) -> None:
    """Store a checkpoint, or raise why this worker may not."""
    mine = Job.objects.using(driver.using).inflight().filter(pk=job_id, lease=token)
    try:
        with driver.transaction():
            with driver.short_waits():
                if not driver.waiting_for(mine).values_list("pk"):
                    raise LeaseMismatch
            driver.write({job_id: {"checkpoint": data, "updated_at": now}})
    except OperationalError as error:
        if not is_transient(error):
            raise
        raise JobLocked from error


def previous_attempt_id(driver: DatabaseDriver, job_id: UUID) -> int | None:
    attempts = Attempt.objects.using(driver.using).filter(job=job_id).order_by("-lease_version")
    return attempts.values_list("pk", flat=True).first()


def notices_for(driver: DatabaseDriver, tokens: list[UUID]) -> list[tuple[int, UUID, UUID, str]]:
    """What somebody wants of the jobs under these tokens: (id, token, job, kind)."""
    rows = Notice.objects.using(driver.using).filter(token__in=tokens)
    return list(rows.values_list("pk", "token", "job_id", "kind"))


def remove_notices(driver: DatabaseDriver, ids: list[int]) -> None:
    """Remove what was acted upon; a crash before this acts upon it once more, which is harmless."""
    Notice.objects.using(driver.using).filter(pk__in=ids).delete()
