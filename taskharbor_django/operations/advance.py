"""
advance: blocked -> ready | scheduled | dead | cancelled, when what a job waited for has ended.

Runs inside the transaction that ended the others, one statement for each kind of write.

Locks:  the caller holds the ended jobs; then their dependents in one id-ordered statement, for a
        death or a cancel the whole closure below; then the workflow rows in id order.
Fence:  edges are read in a statement after the one that moved the ended jobs: who submits an edge
        to a job holds that job, so that its edge is there by now or sees the end. What is left is
        changed under the dependent's lock, by differences, whatever state the dependent is in.
Repeat: with the transaction it is part of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Case, DateTimeField, F, IntegerField, Value, When

from ..drivers import DatabaseDriver
from ..drivers.moves import fingerprint
from ..failpoints import reach
from ..lifecycle import DeadReason, JobState, Verb
from ..models import DeadLetter, Job, Workflow
from ..signals import tell_on_commit
from .dependents import Dependent, Dependents, End, lock_below, met_before, spread
from .notify import notify_on_commit

DIED_WITH = "Job {cause}, which this one waited for, is dead."


def advance(driver: DatabaseDriver, ids: Sequence[UUID]) -> list[UUID]:
    """Let dependents and workflows know that these have ended; return the jobs that ended too."""
    ended = list(
        Job.objects.using(driver.using)
        .filter(pk__in=ids)
        .values_list("pk", "state", "failure_category", "has_dependents", "workflow", "updated_at")
    )
    now = max(row[-1] for row in ended)
    ends = {row[0]: End(state=JobState(row[1]), category=row[2]) for row in ended if row[3]}
    dependents = _below(driver, ends) if ends else {}
    write_dependents(driver, dependents.values(), now)
    reach("advance.moved")
    too = [dependent for dependent in dependents.values() if dependent.end is not None]
    closed = Counter(row[4] for row in ended) + Counter(it.workflow for it in too)
    count_open(driver, {workflow: -count for workflow, count in closed.items()}, now)
    reach("advance.counted")
    return [dependent.id for dependent in too]


def _below(driver: DatabaseDriver, ends: Mapping[UUID, End]) -> Dependents:
    """Lock who waits for these, and work out what their ends make of each."""
    failed = {job_id for job_id, end in ends.items() if end.state != JobState.DONE}
    edges, locked = lock_below(driver, ends.keys() - failed, failed)
    reach("advance.locked")
    met = met_before(driver, edges, locked, but=ends.keys())
    spread(ends, edges, locked, met.keys())
    return locked


# -- writing -----------------------------------------------------------------------------------


def write_dependents(
    driver: DatabaseDriver, dependents: Iterable[Dependent], now: datetime
) -> None:
    """Write what has become of locked dependents, and wake workers for those that may run."""
    changed = [dependent for dependent in dependents if dependent.changed]
    driver.write({dependent.id: _changes(dependent, now) for dependent in changed})
    letters = [_letter(dependent, dependent.end, now) for dependent in changed if dependent.end]
    DeadLetter.objects.using(driver.using).bulk_create(filter(None, letters))
    _tell(driver, [it for it in changed if it.end or it.is_released], now)
    queues = {dependent.queue for dependent in changed if dependent.is_released}
    if queues:
        notify_on_commit(queues, driver.using)


def _tell(driver: DatabaseDriver, moved: Sequence[Dependent], now: datetime) -> None:
    died: list[Dependent] = []
    others: list[Dependent] = []
    for dependent in moved:
        is_dead = dependent.end is not None and dependent.end.state == JobState.DEAD
        (died if is_dead else others).append(dependent)
    reason = DeadReason.DEPENDENCY.value
    tell_on_commit(Verb.ADVANCE, driver.using, died, JobState.DEAD.value, reason=reason)
    tell_on_commit(Verb.ADVANCE, driver.using, others, lambda it: str(_changes(it, now)["state"]))


def _changes(dependent: Dependent, now: datetime) -> dict[str, Any]:
    made: dict[str, Any] = {"dependencies_left": dependent.dependencies_left, "updated_at": now}
    if dependent.end is not None:
        return made | _ended(dependent.end, now)
    if dependent.is_released:
        # From now on it stands in line: with the time of its creation it would be looked for only
        # by the claims that search from the very beginning.
        starts_at = max(dependent.run_at or now, now)
        state = JobState.SCHEDULED if starts_at > now else JobState.READY
        made |= {"state": state.value, "available_at": starts_at}
    return made


def _ended(end: End, now: datetime) -> dict[str, Any]:
    made: dict[str, Any] = {"state": end.state.value, "finished_at": now}
    if end.state == JobState.DEAD:
        made["last_error"] = DIED_WITH.format(cause=end.cause)
        made |= {"failure_category": end.category, "failed_at": now}
    return made


def _letter(dependent: Dependent, end: End, now: datetime) -> DeadLetter | None:
    if end.state != JobState.DEAD:
        return None
    error = DIED_WITH.format(cause=end.cause)
    return DeadLetter(
        job_id=dependent.id,
        open_for=dependent.id,
        task=dependent.task,
        queue=dependent.queue,
        reason=DeadReason.DEPENDENCY,
        category=end.category,
        error=error,
        attempts=dependent.attempts,
        cause_id=end.cause,
        fingerprint=fingerprint(dependent.task, DeadReason.DEPENDENCY, "", error),
        died_at=now,
    )


def count_open(
    driver: DatabaseDriver, differences: Mapping[UUID | None, int], now: datetime
) -> None:
    """Change by how many jobs workflows are open; the last one out notes the time."""
    changed = {key: count for key, count in differences.items() if key is not None and count}
    if not changed:
        return
    rows = Workflow.objects.using(driver.using).filter(pk__in=changed)
    with driver.short_waits():
        if len(changed) > 1:
            list(driver.waiting_for(rows.order_by("pk")).values_list("pk"))
        cases = [When(pk=key, then=Value(count)) for key, count in changed.items()]
        left = F("open_jobs") + Case(*cases, output_field=IntegerField())
        rows = rows.annotate(left=left)
        # finished_at comes first: MariaDB shows later assignments what earlier ones have made.
        rows.update(
            finished_at=Case(
                When(left__lte=0, then=Value(now)), default=None, output_field=DateTimeField()
            ),
            open_jobs=left,
        )
