"""The results that a job takes from those it waited for, read when it is about to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from ..drivers import DatabaseDriver
from ..lifecycle import JobState
from ..models import Dependency, Job
from ..values import Reservation

# How an input says what it is: a result, a failure where failures are taken, nothing to be had.
VALUE, FAILURE, MISSING = "value", "failure", "missing"

_RESULT = ("pk", "state", "result", "result_expires_at")
_FAILURE = ("failure_category", "failure_code", "last_error")


def attach(driver: DatabaseDriver, reserved: Sequence[Reservation]) -> Sequence[Reservation]:
    """Put the results that these jobs take beside them: two statements for all, if there is any."""
    takers = [it.job.id for it in reserved if it.job.input]
    if not takers:
        return reserved
    edges = Dependency.objects.using(driver.using).filter(job__in=takers, position__isnull=False)
    wanted: dict[UUID, list[UUID]] = {}
    for job, depends_on in edges.order_by("position").values_list("job", "depends_on"):
        wanted.setdefault(job, []).append(depends_on)
    # From the jobs' side: an edge to a job that is gone must not vanish from the list.
    found = Job.objects.using(driver.using).filter(
        dependents__job__in=takers, dependents__position__isnull=False
    )
    read = {row["pk"]: _input(row) for row in found.values(*_RESULT, *_FAILURE)}
    return [_with_inputs(it, wanted, read) if it.job.input else it for it in reserved]


def _with_inputs(
    reservation: Reservation, wanted: dict[UUID, list[UUID]], read: dict[UUID, Any]
) -> Reservation:
    sources = wanted.get(reservation.job.id, [])
    inputs = tuple(read.get(source, (MISSING, str(source))) for source in sources)
    return replace(reservation, job=replace(reservation.job, inputs=inputs))


def _input(row: dict[str, Any]) -> tuple[str, Any]:
    if row["state"] != JobState.DONE:
        facts = {"job_id": str(row["pk"]), "state": row["state"]}
        return FAILURE, facts | {
            "category": row["failure_category"],
            "code": row["failure_code"],
            "error": row["last_error"],
        }
    result = row["result"]
    # NULL is what a handler returned that returned nothing; with a time it is one that was removed.
    if result is None and row["result_expires_at"] is not None:
        return MISSING, str(row["pk"])
    if result is not None and not len(result):
        return MISSING, str(row["pk"])
    return VALUE, None if result is None else bytes(result)
