"""
callback: the end of a job that has a callback_url -> a job that delivers it.

Locks:  none of its own; it is called in the transaction that ends the job, whose rows are locked.
Fence:  that transaction: end and delivery are stored together, or neither.
Repeat: as the end; a job that is requeued and ends again calls back again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from ..drivers import DatabaseDriver
from ..models import Job
from ..tasks import registry
from ..values import JobRecord
from .logs import fault
from .notify import notify_on_commit
from .records import record_of

logger = logging.getLogger(__name__)

CALLBACK_TASK = "taskharbor.callback"

_TOLD = (
    "id",
    "task",
    "queue",
    "state",
    "attempts",
    "correlation_id",
    "created_at",
    "finished_at",
    "failure_category",
    "failure_code",
)


def enqueue_callbacks(driver: DatabaseDriver, ended: Sequence[UUID]) -> None:
    """Enqueue a delivery for each of the ended jobs that asked for one."""
    asking = Job.objects.using(driver.using).exclude(callback_url="")
    rows = driver.among(asking, ended).order_by("pk").values("callback_url", *_TOLD)
    records = [record for row in rows if (record := _delivery(row)) is not None]
    if records:
        driver.enqueue_many(records)
        notify_on_commit({record.queue for record in records}, driver.using)


def _delivery(row: dict[str, Any]) -> JobRecord | None:
    """The job that delivers; it goes to the queue of the one that ended, which somebody serves."""
    url = row.pop("callback_url")
    same = {"queue": row["queue"], "correlation_id": row["correlation_id"]}
    try:
        task = registry.get(CALLBACK_TASK).using(**same)
        record = replace(record_of(task.call(url, _facts(row))), parent=row["id"])
        record.validate()
    except Exception as error:  # noqa: BLE001  it must not undo the end of the job
        fault(logger, error, "no callback for job %s", row["id"], job_id=str(row["id"]))
        return None
    return record


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """What a receiver is told; arguments, result and error texts stay here."""
    told = {"job" if name == "id" else name: value for name, value in row.items()}
    told["job"] = str(told["job"])
    for name in ("created_at", "finished_at"):
        told[name] = told[name].isoformat()
    return told
