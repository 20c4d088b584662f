"""
revive: dead -> blocked, for the jobs that died only with one that lives again.

Runs inside the transaction that requeues the others. An end is taken back: what it had lowered is
raised again where something is still left to wait for.

Locks:  the caller holds the requeued jobs; then the closure of dead jobs below them in one
        id-ordered statement, looked at again until it has not grown; then the workflow rows.
Fence:  whether another dependency is dead or cancelled is looked for in a statement after the one
        that locked the dependent: one that dies now waits for that lock and will find it blocked.
Repeat: with the transaction it is part of.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..drivers import DatabaseDriver
from ..failpoints import reach
from ..lifecycle import DeadReason, DependencyKind, JobState, Verb
from ..models import DeadLetter, Dependency, Job
from ..signals import tell_on_commit
from .advance import advance, count_open, write_dependents
from .callback import enqueue_callbacks
from .dependents import Below, Dependent, Dependents, End, lock, lock_below, met_before
from .terms import lifetime_of

REQUEUED_WITH = "requeued with the job that it died with"
DISCARDED_WITH = "discarded with the job that it died with"

Failed = dict[UUID, dict[UUID, UUID]]  # dependent -> failed AFTER -> the job to be seen to


def revive(driver: DatabaseDriver, ids: Sequence[UUID]) -> list[UUID]:
    """Take back what the deaths of these have done; return the jobs that live again with them."""
    jobs = Job.objects.using(driver.using).filter(pk__in=ids)
    requeued = list(
        jobs.values_list("pk", "workflow", "has_dependents", "dependencies_left", "updated_at")
    )
    now = max(row[-1] for row in requeued)
    above = [row[0] for row in requeued if row[2]]
    revived = _revive_below(driver, above, now) if above else []
    opened = Counter(row[1] for row in requeued) + Counter(it.workflow for it in revived)
    count_open(driver, opened, now)
    if waiting := [row[0] for row in requeued if row[3]]:
        _end_in_vain(driver, waiting, now)
    return [dependent.id for dependent in revived]


def _revive_below(
    driver: DatabaseDriver, above: Collection[UUID], now: datetime
) -> list[Dependent]:
    edges, locked = lock_below(driver, (), above, through=JobState.DEAD)
    reach("revive.locked")
    letters = _letters(driver, locked)
    failed = _failed(driver, letters)
    met = met_before(driver, edges, locked, but=above)
    revived = _take_back(above, edges, locked, failed, met)
    _write(driver, locked, revived, now)
    gone = [it.id for it in revived]
    rows = DeadLetter.objects.using(driver.using).filter(open_for__isnull=False)
    rows = driver.among(rows, gone, "open_for")
    rows.update(open_for=None, closed_at=now, note=REQUEUED_WITH)
    _blame_others(driver, letters, failed, {it.id for it in revived})
    return revived


def _end_in_vain(driver: DatabaseDriver, waiting: Collection[UUID], now: datetime) -> None:
    """End again those that were requeued while something they wait for is dead or cancelled."""
    failed = {job: pairs for job, pairs in _failed(driver, waiting).items() if pairs}
    if not failed:
        return
    jobs = Job.objects.using(driver.using).filter(
        pk__in={above for pairs in failed.values() for above in pairs}
    )
    facts = {pk: it for pk, *it in jobs.values_list("pk", "state", "failure_category")}
    doomed = lock(driver, failed)
    for dependent in doomed.values():
        above = min(failed[dependent.id], key=lambda pk: facts[pk][0] != JobState.DEAD)
        state, category = facts[above]
        cause = failed[dependent.id][above]
        dependent.end = End(state=JobState(state), category=category, cause=cause)
        dependent.changed = True
    write_dependents(driver, doomed.values(), now)
    too = advance(driver, list(doomed))
    enqueue_callbacks(driver, [*doomed, *too])
    given_up = [it.id for it in doomed.values() if it.end and it.end.state == JobState.CANCELLED]
    if given_up:
        discard_below(driver, given_up)


def _letters(driver: DatabaseDriver, locked: Dependents) -> dict[UUID, DeadLetter]:
    """The open letters of those that died only with another job."""
    dead = [it.id for it in locked.values() if it.state == JobState.DEAD]
    letters = DeadLetter.objects.using(driver.using).filter(reason=DeadReason.DEPENDENCY)
    return {it.job_id: it for it in driver.among(letters, dead, "open_for")}


def _failed(driver: DatabaseDriver, candidates: Collection[UUID]) -> Failed:
    """What each of them waits for in vain, and the job that must be seen to before."""
    edges = Dependency.objects.using(driver.using).filter(
        kind=DependencyKind.AFTER,
        depends_on__state__in=[JobState.DEAD, JobState.CANCELLED],
    )
    pairs = list(driver.among(edges, list(candidates), "job").values_list("job", "depends_on"))
    letters = DeadLetter.objects.using(driver.using).filter(cause__isnull=False)
    letters = driver.among(letters, {depends_on for _, depends_on in pairs}, "open_for")
    causes = dict(letters.values_list("open_for", "cause"))
    failed: Failed = {job: {} for job in candidates}
    for job, depends_on in pairs:
        failed[job][depends_on] = causes.get(depends_on, depends_on)
    return failed


def _take_back(
    above: Collection[UUID],
    edges: Sequence[Below],
    locked: Dependents,
    failed: Failed,
    met: dict[UUID, set[UUID]],
) -> list[Dependent]:
    """Walk down from what lives again; return those that do so too."""
    below: dict[UUID, list[Below]] = {}
    for edge in edges:
        below.setdefault(edge.depends_on, []).append(edge)
    ended = {job: set(before) for job, before in met.items()}
    line, revived = deque(above), list[Dependent]()
    for edge in edges:
        if edge.kind == DependencyKind.AFTER_ANY and edge.depends_on in above:
            ended.setdefault(edge.job, set()).add(edge.depends_on)
    while line:
        job_id = line.popleft()
        for edge in below.get(job_id, ()):
            dependent = locked.get(edge.job)
            if dependent is not None and _lives_again(edge, dependent, failed, ended):
                revived.append(dependent)
                line.append(dependent.id)
    return revived


def _lives_again(
    edge: Below, dependent: Dependent, failed: Failed, ended: dict[UUID, set[UUID]]
) -> bool:
    if edge.kind == DependencyKind.AFTER:
        in_vain = failed.get(dependent.id)
        if in_vain is None:
            return False
        in_vain.pop(edge.depends_on, None)
        return not in_vain and failed.pop(dependent.id, None) is not None
    if edge.kind == DependencyKind.AFTER_ANY:
        ended[dependent.id].discard(edge.depends_on)
        if ended[dependent.id]:
            return False
    dependent.dependencies_left += 1
    dependent.changed = True
    return False


def _write(
    driver: DatabaseDriver, locked: Dependents, revived: list[Dependent], now: datetime
) -> None:
    lifetimes = _lifetimes(driver, revived)
    changes: dict[UUID, dict[str, Any]] = {
        it.id: {"dependencies_left": it.dependencies_left, "updated_at": now}
        for it in locked.values()
        if it.changed
    }
    for it in revived:
        lifetime = lifetimes[it.id]
        starts_at = max(it.run_at or now, now)
        changes[it.id] = {
            "dependencies_left": it.dependencies_left,
            "updated_at": now,
            "state": JobState.BLOCKED.value,
            "finished_at": None,
            "last_error": "",
            "failure_category": "",
            "failed_at": None,
            "expires_at": None if lifetime is None else starts_at + lifetime,
        }
    driver.write(changes)
    tell_on_commit(Verb.REQUEUE, driver.using, revived, JobState.BLOCKED.value)


def _lifetimes(driver: DatabaseDriver, revived: list[Dependent]) -> dict[UUID, timedelta | None]:
    """How long each may live; it starts anew, as of any job that is requeued."""
    rows = driver.among(Job.objects.using(driver.using), [it.id for it in revived])
    facts = rows.values_list("pk", "task", "created_at", "expires_at")
    return {pk: lifetime_of(task, created, expires) for pk, task, created, expires in facts}


def _blame_others(
    driver: DatabaseDriver, letters: dict[UUID, DeadLetter], failed: Failed, revived: set[UUID]
) -> None:
    """Let the letters of those that stay dead name a job that is still to be seen to."""
    changed = []
    for job_id in failed.keys() & letters.keys() - revived:
        blamed = {_to_be_seen_to(job_id, above, failed) for above in failed[job_id]}
        if blamed and letters[job_id].cause_id not in blamed:
            letters[job_id].cause_id = next(iter(blamed))
            changed.append(letters[job_id])
    DeadLetter.objects.using(driver.using).bulk_update(changed, ["cause"])


def _to_be_seen_to(job_id: UUID, above: UUID, failed: Failed) -> UUID:
    """The job at the top of a path of deaths."""
    while failed.get(above):
        job_id, above = above, next(iter(failed[above]))
    return failed[job_id][above]


def discard_below(driver: DatabaseDriver, ids: Sequence[UUID]) -> list[UUID]:
    """Give up, with dead jobs that were discarded, those that died only with them."""
    edges, locked = lock_below(driver, (), ids, through=JobState.DEAD)
    letters, now = _letters(driver, locked), driver.now()
    below: dict[UUID, list[UUID]] = {}
    for edge in edges:
        if edge.kind == DependencyKind.AFTER and edge.job in letters:
            below.setdefault(edge.depends_on, []).append(edge.job)
    line = list(ids)
    for job_id in line:  # grows while it is walked
        line.extend(below.pop(job_id, ()))
    given_up = list(dict.fromkeys(line[len(ids) :]))
    rows = driver.among(Job.objects.using(driver.using), given_up)
    rows.update(state=JobState.CANCELLED.value, updated_at=now)
    closed = driver.among(DeadLetter.objects.using(driver.using), given_up, "open_for")
    closed.update(open_for=None, closed_at=now, note=DISCARDED_WITH)
    moved = [locked[job_id] for job_id in given_up]
    tell_on_commit(Verb.DISCARD, driver.using, moved, JobState.CANCELLED.value)
    return given_up
