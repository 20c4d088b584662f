"""
workers: the row of a worker process, and what it did in each minute.

Locks:  its own rows only; no other process writes them, but for `request`.
Fence:  the id of the process's start, which is never used again.
Repeat: safe, but for minutes whose commit was not answered: those may be counted twice.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from .. import __version__
from ..drivers import DatabaseDriver
from ..models import QueueMinute, Worker
from .storage import default_alias

Counts = Mapping[tuple[datetime, str], Mapping[str, int]]  # (minute, queue) -> column -> how many


def start_worker(
    driver: DatabaseDriver,
    worker: str,
    *,
    name: str,
    queues: str,
    slots: int,
    lease: timedelta,
    now: datetime,
) -> None:
    row = Worker(
        id=worker,
        name=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        queues=queues,
        slots=slots,
        lease=lease,
        started_at=now,
        last_beat_at=now,
    )
    # A first try whose reply was lost may have stored it.
    Worker.objects.using(driver.using).bulk_create([row], ignore_conflicts=True)


def beat_worker(driver: DatabaseDriver, worker: str, *, now: datetime, **facts: Any) -> str:
    """Say that the process lives; return what was asked of it: "", "quiet" or "stop"."""
    row = Worker.objects.using(driver.using).filter(pk=worker)
    row.update(last_beat_at=now, **facts)
    return row.values_list("request", flat=True).first() or ""


def stop_worker(driver: DatabaseDriver, worker: str, *, now: datetime) -> None:
    rows = Worker.objects.using(driver.using).filter(pk=worker)
    rows.update(stopped_at=now, last_beat_at=now, busy=0)


def ask_workers(
    ids: Iterable[str], request: Worker.Request | str, *, using: str | None = None
) -> int:
    """
    Ask workers to reserve nothing more, to stop, or with "" to go on; return how many were asked.

    They hear it with their next beat. Who was asked to stop cannot be called back.
    """
    rows = Worker.objects.using(using or default_alias())
    open_rows = rows.filter(pk__in=list(ids), stopped_at=None).exclude(request=Worker.Request.STOP)
    return open_rows.update(request=Worker.Request(request).value if request else "")


def count_minutes(driver: DatabaseDriver, worker: str, counts: Counts) -> None:
    """Add to the statistics of each minute and queue, to all or to none."""
    if not counts:
        return
    rows = QueueMinute.objects.using(driver.using)
    with driver.transaction():
        for (minute, queue), columns in counts.items():
            added = {name: F(name) + count for name, count in columns.items()}
            mine = rows.filter(minute=minute, queue=queue, worker=worker)
            if not mine.update(**added):
                rows.create(minute=minute, queue=queue, worker=worker, **columns)
