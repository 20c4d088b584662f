"""
expire: blocked | scheduled | ready | inflight -> dead, when a job's lifetime is over.

Locks:  the jobs in id order, SKIP LOCKED; lease rows never, the worker is told by a notice.
Fence:  state and expiry are looked at again under the lock.
Repeat: safe; what ended meanwhile is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from ..drivers import DatabaseDriver, ends
from ..drivers.moves import OVERDUE
from ..drivers.transient import repeat
from ..failpoints import reach
from ..lifecycle import TRANSITIONS, DeadReason, FailureCategory, JobState, Verb
from ..models import Job
from .bury import bury_locked

BATCH = 500

_OPEN = [state for state in TRANSITIONS[Verb.EXPIRE] if state is not None]


def expire(driver: DatabaseDriver, *, now: datetime) -> Iterator[int]:
    """Bury jobs whose lifetime is over, batch after batch; yield how many each time."""
    for state in _OPEN:
        while buried := _expire_some(driver, state, now):
            yield buried


def overdue(driver: DatabaseDriver, *, now: datetime, most: int = 100_000) -> int:
    """How many jobs are over their lifetime, counted up to `most` in each state."""
    return sum(_overdue(driver, state, now)[:most].count() for state in _OPEN)


def _expire_some(driver: DatabaseDriver, state: JobState, now: datetime) -> int:
    # Found without a lock, and looked at again under it.
    ids = list(_overdue(driver, state, now).values_list("pk", flat=True)[:BATCH])
    return repeat(driver.using, lambda: _bury(driver, ids, now)) if ids else 0


def _overdue(driver: DatabaseDriver, state: JobState, now: datetime) -> QuerySet[Job]:
    """
    There is no index for it, and a state at a time keeps to its own.

    A lifetime is over once in the life of few jobs; an index would cost an entry on every write.
    """
    return Job.objects.using(driver.using).in_state(state).filter(expires_at__lte=now)


def _bury(driver: DatabaseDriver, ids: list[UUID], now: datetime) -> int:
    stored = Job.objects.using(driver.using)
    open_jobs = stored.filter(pk__in=ids, state__in=_OPEN, expires_at__lte=now).order_by("pk")
    with driver.transaction():
        jobs = ends.stored_rows(driver.locked(open_jobs))
        reach("expire.locked")
        bury_locked(
            driver,
            jobs,
            now,
            verb=Verb.EXPIRE,
            reason=DeadReason.LIFETIME,
            category=FailureCategory.SYSTEM,
            error=OVERDUE,
        )
        reach("expire.moved")
    return len(jobs)
