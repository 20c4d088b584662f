"""
settle: inflight -> done | scheduled | ready | dead | cancelled.

Locks:  the jobs in id order, SKIP LOCKED; lease rows are only read, after those locks. Outcomes
        that end a job which others follow go into a second transaction, because advancing those
        may wait; not for long, and those whose followers are held are left for the next settle.
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
from ..models import Attempt, DeadLetter, Job, Lease
from ..values import Outcome, Rejection
from . import ends, moves
from .ends import Stored
from .patience import Patience, unless_held
from .transient import repeat

if TYPE_CHECKING:
    from .database import DatabaseDriver

Leases = dict[UUID, tuple[datetime, str]]


def settle(driver: DatabaseDriver, outcomes: Sequence[Outcome], now: datetime) -> list[Rejection]:
    latest, refused = _latest_of_each_job(outcomes)
    refused += _settle_all(driver, latest, now)
    return repeat(driver.using, lambda: _rejections(driver, refused, now)) if refused else []


def _latest_of_each_job(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """
    One outcome for each job: of its latest lease, the first if there are several; and the rest.

    A batch whose reply was lost is sent again, and may by now hold the next run of the same job.
    """
    latest: dict[UUID, Outcome] = {}
    others = []
    for outcome in outcomes:
        moves.check_outcome(outcome)
        other = latest.setdefault(outcome.job_id, outcome)
        if other is outcome:
            continue
        if (outcome.version or 0) > (other.version or 0):
            latest[outcome.job_id] = outcome
            others.append(other)
        else:
            others.append(outcome)
    return list(latest.values()), others


def _settle_all(driver: DatabaseDriver, outcomes: list[Outcome], now: datetime) -> list[Outcome]:
    """
    Settle in as few transactions as there can be; return what moved nothing.

    What is left, and not what moved: a UUID is hashed in Python, and a batch of plain acks that all
    went through, which is most of them, asks for no more than one hash a job.
    """
    plain = [o for o in outcomes if o.kind == OutcomeKind.ACK and not o.record]
    left = outcomes
    if plain:
        left = repeat(driver.using, lambda: driver.ack_plain(plain, now))
        left = left + [o for o in outcomes if o.kind != OutcomeKind.ACK or o.record]
    if left:
        moved = repeat(driver.using, lambda: _settle_rows(driver, left, now, followed=False))
        left = [outcome for outcome in left if outcome.job_id not in moved]
    return left if driver.on_end is None or not left else _settle_followed(driver, left, now)


def _settle_followed(
    driver: DatabaseDriver, outcomes: list[Outcome], now: datetime
) -> list[Outcome]:
    """Settle what others follow; a follower that somebody holds holds up its own outcomes only."""

    def settle_some(some: list[Outcome]) -> set[UUID]:
        return _settle_rows(driver, some, now, followed=True)

    moved = set().union(*unless_held(driver, outcomes, settle_some, Patience.SHORT))
    return [outcome for outcome in outcomes if outcome.job_id not in moved]


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
    if dropped:
        _drop(driver, [job for job, _ in accepted if job.id in dropped])
        accepted = [pair for pair in accepted if pair[0].id not in dropped]
    driver.write({job.id: moves.changes(job, outcome, now) for job, outcome in accepted})
    workers = {token: row[1] for token, row in leases.items()}
    ends.record_settled(accepted, workers, now, driver.using)


def _drop(driver: DatabaseDriver, jobs: list[Stored]) -> None:
    """Delete jobs with what is known of them; only who ran or died before has left anything."""
    before = [job.id for job in jobs if job.executions > 1 or job.last_error]
    for model in (Attempt, DeadLetter):
        model.objects.using(driver.using).filter(job__in=before).delete()
    Job.objects.using(driver.using).filter(pk__in=[job.id for job in jobs]).delete()


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
