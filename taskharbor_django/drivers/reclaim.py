"""
reclaim: inflight -> ready | dead | cancelled, when a lease has expired or is gone.

Locks:  the lease row first, with its expiry checked under that lock, then its inflight jobs; both
        SKIP LOCKED. Settle never locks a lease, so the order cannot close a circle. Jobs that end
        and are followed go into a second transaction, because advancing those may wait; this one
        does not, and leaves those whose followers are held for the next turn.
Fence:  a renewed lease fails the check; a job that moved meanwhile no longer has the token.
Repeat: safe; what was taken back has no token any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Exists, F, OuterRef

from ..failpoints import reach
from ..lifecycle import DeadReason, FailureCategory, JobState, Verb
from ..models import Job, Lease, Notice
from ..signals import tell_on_commit
from . import ends
from .ends import Stored
from .moves import LOST
from .patience import Patience, unless_held
from .transient import repeat

if TYPE_CHECKING:
    from .database import DatabaseDriver

LEASES_PER_TURN = 100
JOBS_PER_TURN = 1_000
UNREAD_FOR = timedelta(hours=1)

Told = Collection[UUID] | None
"""jobs of whose end somebody has to be told; None stands for those of whose end nobody has"""
Taken = tuple[int, list[UUID]]  # how many were taken back, and who of the other kind was seen


def reclaim_expired(driver: DatabaseDriver, now: datetime, max_lease_losses: int | None) -> int:
    """Take back the jobs of expired leases; return how many."""
    return _told_last(driver, partial(_reclaim, driver, now, max_lease_losses))


def _told_last(driver: DatabaseDriver, take: Callable[[Told], Taken]) -> int:
    """
    Take back first what nobody has to be told of, then the rest; return how many.

    A dependent that somebody holds must keep no worker from taking back the others and claiming:
    who waits for a job is told of its end only if that needs no waiting. What was not told is tried
    again next turn.
    """
    taken, told = repeat(driver.using, lambda: take(None))
    if told:
        taken += sum(unless_held(driver, told, lambda some: take(some)[0], Patience.NONE))
    return taken


def _reclaim(
    driver: DatabaseDriver, now: datetime, max_lease_losses: int | None, told: Told
) -> Taken:
    with driver.transaction():
        workers = _expired(driver, now)
        reach("reclaim.leases_locked")
        seen = _inflight_of(driver, workers)
        jobs, others = _divided(driver, seen, max_lease_losses, told)
        _reclaim_locked(driver, jobs, workers, now, max_lease_losses)
        reach("reclaim.jobs_moved")
        _remove(driver, _empty(driver, list(workers)))
    return len(jobs), others


def _divided(
    driver: DatabaseDriver, jobs: list[Stored], max_lease_losses: int | None, told: Told
) -> tuple[list[Stored], list[UUID]]:
    """Those of the kind that is asked for, and the ids of the others."""
    if told is None:
        told_of = {job.id for job in jobs if _is_told_of(driver, job, max_lease_losses)}
        return [job for job in jobs if job.id not in told_of], list(told_of)
    named = set(told)
    return [job for job in jobs if job.id in named], []


def _is_told_of(driver: DatabaseDriver, job: Stored, max_lease_losses: int | None) -> bool:
    ends_now = job.cancel_requested or _is_last(job, max_lease_losses)
    return driver.on_end is not None and job.followed and ends_now


def _expired(driver: DatabaseDriver, now: datetime) -> dict[UUID, str]:
    """Lock expired leases; PostgreSQL looks at a changed row's expiry again once it is locked."""
    leases = Lease.objects.using(driver.using).filter(expires_at__lte=now)
    rows = driver.locked(leases.order_by("expires_at"), key=True)[:LEASES_PER_TURN]
    return dict(rows.values_list("token", "worker"))


def _inflight_of(driver: DatabaseDriver, workers: dict[UUID, str]) -> list[Stored]:
    jobs = Job.objects.using(driver.using).inflight().filter(lease__in=list(workers))
    return ends.stored_rows(driver.locked(jobs.order_by("pk"))[:JOBS_PER_TURN])


def sweep_orphans(driver: DatabaseDriver, now: datetime, max_lease_losses: int | None) -> int:
    """Take back inflight jobs whose lease row is gone, remove leases without jobs."""
    return _told_last(driver, partial(_sweep, driver, now, max_lease_losses))


def _sweep(
    driver: DatabaseDriver, now: datetime, max_lease_losses: int | None, told: Told
) -> Taken:
    with driver.transaction():
        gone = ~Exists(Lease.objects.using(driver.using).filter(token=OuterRef("lease")))
        jobs = Job.objects.using(driver.using).inflight().filter(gone).order_by("pk")
        locked = ends.stored_rows(driver.locked(jobs)[:JOBS_PER_TURN])
        reach("sweep.jobs_locked")
        # The lock may have come after another reserve whose lease the first look could not see.
        tokens = [job.lease for job in locked if job.lease is not None]
        leases = Lease.objects.using(driver.using).filter(token__in=tokens)
        present = set(leases.values_list("token", flat=True))
        orphans = [job for job in locked if job.lease not in present]
        taken, others = _divided(driver, orphans, max_lease_losses, told)
        _reclaim_locked(driver, taken, {}, now, max_lease_losses)
        reach("sweep.jobs_moved")
        _remove(driver, _oldest_empty(driver))
        _remove_notices(driver, now)
    return len(taken), others


def _remove_notices(driver: DatabaseDriver, now: datetime) -> None:
    """Remove notices that nobody will read: their lease ended before its worker's next beat."""
    gone = ~Exists(Lease.objects.using(driver.using).filter(token=OuterRef("token")))
    old = Notice.objects.using(driver.using).filter(created_at__lt=now - UNREAD_FOR)
    unread = old.filter(gone).values_list("pk", flat=True)[:JOBS_PER_TURN]
    Notice.objects.using(driver.using).filter(pk__in=list(unread)).delete()


def _oldest_empty(driver: DatabaseDriver) -> list[UUID]:
    """Lock leases that cover nothing; a heartbeat that holds one just now removes it itself."""
    leases = Lease.objects.using(driver.using)
    oldest = leases.order_by("expires_at")[:JOBS_PER_TURN].values_list("token", flat=True)
    empty = leases.filter(pk__in=_empty(driver, list(oldest))).order_by("pk")
    return list(driver.locked(empty, key=True).values_list("pk", flat=True))


def _reclaim_locked(
    driver: DatabaseDriver,
    jobs: list[Stored],
    workers: dict[UUID, str],
    now: datetime,
    max_lease_losses: int | None,
) -> None:
    if not jobs:
        return
    cancelled = [job for job in jobs if job.cancel_requested]
    buried = [job for job in jobs if not job.cancel_requested and _is_last(job, max_lease_losses)]
    ended = {job.id for job in cancelled} | {job.id for job in buried}
    charged = {"lease_losses": F("lease_losses") + 1}
    _move(driver, cancelled, now, state=JobState.CANCELLED.value, finished_at=now)
    why = {
        "last_error": LOST,
        "failure_category": FailureCategory.SYSTEM.value,
        "failed_at": now,
    }
    _move(driver, buried, now, state=JobState.DEAD.value, finished_at=now, **why, **charged)
    runnable = [job for job in jobs if job.id not in ended]
    _move(driver, runnable, now, state=JobState.READY.value, run_at=None, **charged)
    ends.record_lost(jobs, buried, workers, now, driver.using)
    driver.report_ends([job for job in jobs if job.id in ended])
    tell = partial(tell_on_commit, Verb.RECLAIM, driver.using, error=LOST)
    tell(cancelled, JobState.CANCELLED.value)
    tell(buried, JobState.DEAD.value, reason=DeadReason.LEASE_LOST.value)
    tell(runnable, JobState.READY.value)


def _is_last(job: Stored, max_lease_losses: int | None) -> bool:
    return max_lease_losses is not None and job.lease_losses + 1 >= max_lease_losses


def _move(driver: DatabaseDriver, jobs: list[Stored], now: datetime, **columns: Any) -> None:
    if jobs:
        rows = Job.objects.using(driver.using).filter(pk__in=[job.id for job in jobs])
        rows.update(lease=None, started_at=None, updated_at=now, **columns)


def _empty(driver: DatabaseDriver, tokens: list[UUID]) -> list[UUID]:
    """
    Say which of the leases seen cover no inflight job any more.

    A claim writes lease and jobs at once: what is seen, and empty afterwards, stays empty.
    """
    inflight = Job.objects.using(driver.using).inflight().filter(lease__in=tokens)
    occupied = set(inflight.values_list("lease", flat=True))
    return [token for token in tokens if token not in occupied]


def _remove(driver: DatabaseDriver, tokens: list[UUID]) -> None:
    Lease.objects.using(driver.using).filter(pk__in=tokens).delete()
