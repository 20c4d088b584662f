"""
settle: inflight -> done | scheduled | ready | dead | cancelled.

Locks:  the jobs in id order, SKIP LOCKED; lease rows are only read, after those locks. Outcomes
        that end a job which others follow go into a second transaction, because advancing those
        may wait.
Fence:  state, token and version of the locked row; its lease unexpired at `now`.
Repeat: safe; an outcome that was applied before is told apart and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from ..exceptions import JobLocked
from ..failpoints import reach
from ..lifecycle import ENDED, OutcomeKind
from ..models import Attempt, Job, Lease
from ..values import Outcome, Rejection
from . import ends, moves
from .ends import Stored
from .transient import repeat

if TYPE_CHECKING:
    from .database import DatabaseDriver

Leases = dict[UUID, tuple[datetime, str]]


def settle(driver: DatabaseDriver, outcomes: Sequence[Outcome], now: datetime) -> list[Rejection]:
    first: dict[UUID, Outcome] = {}
    refused = []
    for outcome in outcomes:
        moves.check_outcome(outcome)
        if outcome.job_id in first:
            refused.append(outcome)
        else:
            first[outcome.job_id] = outcome
    moved = _settle_all(driver, list(first.values()), now)
    refused += [outcome for job_id, outcome in first.items() if job_id not in moved]
    return repeat(driver.using, lambda: _rejections(driver, refused, now)) if refused else []


def _settle_all(driver: DatabaseDriver, outcomes: list[Outcome], now: datetime) -> set[UUID]:
    plain = [o for o in outcomes if o.kind == OutcomeKind.ACK and not o.record]
    moved = repeat(driver.using, lambda: driver.ack_plain(plain, now)) if plain else set()
    moved |= _settle_left(driver, [o for o in outcomes if o.job_id not in moved], now)
    if driver.on_end is not None:
        left = [outcome for outcome in outcomes if outcome.job_id not in moved]
        moved |= _settle_left(driver, left, now, followed=True)
    return moved


def _settle_left(
    driver: DatabaseDriver, outcomes: list[Outcome], now: datetime, *, followed: bool = False
) -> set[UUID]:
    if not outcomes:
        return set()
    return repeat(driver.using, lambda: _settle_rows(driver, outcomes, now, followed=followed))


def _settle_rows(
    driver: DatabaseDriver, outcomes: list[Outcome], now: datetime, *, followed: bool
) -> set[UUID]:
    """Settle, in one transaction, the outcomes that may share one; return the jobs it moved."""
    with driver.transaction():
        jobs = _lock(driver, outcomes)
        leases = _leases(driver, jobs.values())
        accepted = [
            (jobs[outcome.job_id], outcome)
            for outcome in outcomes
            if _is_accepted(jobs.get(outcome.job_id), leases, outcome, now)
        ]
        if driver.on_end is not None:
            accepted = [pair for pair in accepted if _has_followers(*pair, now) == followed]
        reach("settle.locked")
        _apply(driver, accepted, leases, now)
        reach("settle.moved")
        driver.report_ends([job for job, outcome in accepted if _ends(job, outcome, now)])
        reach("settle.reported")
    return {job.id for job, _ in accepted}


def _lock(driver: DatabaseDriver, outcomes: Sequence[Outcome]) -> dict[UUID, Stored]:
    ids = [outcome.job_id for outcome in outcomes]
    jobs = Job.objects.using(driver.using).filter(pk__in=ids).order_by("pk")
    return {job.id: job for job in ends.stored_rows(driver.locked(jobs))}


def _leases(driver: DatabaseDriver, jobs: object) -> Leases:
    tokens = {job.lease for job in jobs if job.lease is not None}  # type: ignore[attr-defined]
    leases = Lease.objects.using(driver.using).filter(token__in=tokens)
    return {row[0]: row[1:] for row in leases.values_list("token", "expires_at", "worker")}


def _is_accepted(job: Stored | None, leases: Leases, outcome: Outcome, now: datetime) -> bool:
    return moves.refusal(job, _expiry(job, leases), outcome, now) is None


def _expiry(job: Stored | None, leases: Leases) -> datetime | None:
    if job is None or job.lease is None or job.lease not in leases:
        return None
    return leases[job.lease][0]


def _ends(job: Stored, outcome: Outcome, now: datetime) -> bool:
    return moves.target(job, outcome, now) in ENDED


def _has_followers(job: Stored, outcome: Outcome, now: datetime) -> bool:
    return job.followed and _ends(job, outcome, now)


def _apply(
    driver: DatabaseDriver,
    accepted: list[tuple[Stored, Outcome]],
    leases: Leases,
    now: datetime,
) -> None:
    if not accepted:
        return
    dropped = {job.id for job, outcome in accepted if moves.drops(outcome) and not job.needed}
    again = {job.id for job, _ in accepted if job.id in dropped and job.executions > 1}
    Attempt.objects.using(driver.using).filter(job__in=again).delete()
    Job.objects.using(driver.using).filter(pk__in=dropped).delete()
    kept = {job.id: moves.changes(job, outcome, now) for job, outcome in accepted}
    driver.write({pk: made for pk, made in kept.items() if pk not in dropped})
    workers = {token: row[1] for token, row in leases.items()}
    ends.record_settled(accepted, workers, now, driver.using)


def fenced(driver: DatabaseDriver, outcome: Outcome, now: datetime) -> Stored:
    """Return the job that the outcome's token holds, or raise why it does not."""
    job, leases = _read(driver, [outcome])
    error = moves.refusal(
        job.get(outcome.job_id), _expiry(job.get(outcome.job_id), leases), outcome, now
    )
    if error is not None:
        raise error
    return job[outcome.job_id]


def _read(driver: DatabaseDriver, outcomes: Sequence[Outcome]) -> tuple[dict[UUID, Stored], Leases]:
    ids = {outcome.job_id for outcome in outcomes}
    jobs = {
        job.id: job for job in ends.stored_rows(Job.objects.using(driver.using).filter(pk__in=ids))
    }
    return jobs, _leases(driver, jobs.values())


def _rejections(
    driver: DatabaseDriver, outcomes: Sequence[Outcome], now: datetime
) -> list[Rejection]:
    """Say of each outcome that moved nothing why; in statements newer than the attempt to."""
    jobs, leases = _read(driver, outcomes)
    attempts = _attempts(driver, jobs)
    rejections = []
    for outcome in outcomes:
        job = jobs.get(outcome.job_id)
        error = moves.refusal(job, _expiry(job, leases), outcome, now) or JobLocked()
        attempt = attempts.get((outcome.job_id, outcome.version))
        repeated = moves.was_applied(job, attempt, outcome)
        rejections.append(Rejection(outcome, error, repeated))
    return rejections


def _attempts(
    driver: DatabaseDriver, jobs: dict[UUID, Stored]
) -> dict[tuple[UUID, int | None], str]:
    attempts = Attempt.objects.using(driver.using).filter(job__in=list(jobs))
    return {row[:2]: row[2] for row in attempts.values_list("job", "lease_version", "end")}
