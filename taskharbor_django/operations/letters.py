"""What the verbs of dead jobs share: their open letters, and how one is closed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from ..drivers import DatabaseDriver
from ..drivers.ends import Stored
from ..models import DeadLetter
from ..payload import ERASED
from .batches import Batch


def open_letters(driver: DatabaseDriver, jobs: Iterable[Stored]) -> dict[UUID, DeadLetter]:
    """The open letter of each job that is dead."""
    letters = DeadLetter.objects.using(driver.using).filter(open_for__in=[job.id for job in jobs])
    found = letters.only("job_id", "reason", "cause_id", "task", "queue")
    return {letter.job_id: letter for letter in found}


def close_letters(
    driver: DatabaseDriver, ids: Sequence[UUID], now: datetime, *, by: Any, note: str
) -> None:
    """Close the letters of jobs that are dead no more; say who did it and why."""
    letters = DeadLetter.objects.using(driver.using).filter(open_for__in=ids)
    author = getattr(by, "pk", by)
    letters.update(open_for=None, closed_at=now, closed_by_id=author, note=note)


def erased_among(batch: Batch) -> set[UUID]:
    """Those whose arguments are gone: running them would run something else."""
    return set(batch.rows.filter(payload=ERASED).values_list("pk", flat=True))
