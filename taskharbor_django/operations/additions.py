"""
add: nothing -> ready | blocked, jobs that a running job puts into its own workflow.

Who waits for the running job waits for them too.

Locks:  the running job; then its dependents in one id-ordered statement, and for a higher priority
        those below them, level by level; then the workflow row.
Fence:  state and token of the running job, under its lock; and that nobody has asked it to stop:
        who cancels a workflow must not find it grown afterwards.
Repeat: with a key, safe: the ids are made from the job's and the key, so that what is there already
        is found under the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db.models import Max

from ..conf import get_settings
from ..drivers import DatabaseDriver
from ..drivers.transient import repeat
from ..exceptions import CancelRequested, InvalidWorkflow, LeaseMismatch, TooManyJobs
from ..failpoints import reach
from ..lifecycle import DependencyKind, Input
from ..models import Dependency, Job
from ..values import Reservation
from .advance import count_open, write_dependents
from .dependents import Below, Dependents, direct_edges, lock_below
from .edges import insert, insert_edges
from .enqueue import in_one_database
from .notify import notify_on_commit
from .plans import Edge, Plan, check_depth, check_size, depths_in, fill, in_order

AFTER_END = DependencyKind.AFTER_END
Waits = tuple[tuple[UUID, DependencyKind], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Addition:
    """What a running job adds: jobs, the last of them, and a key by which it is known again."""

    plan: Plan
    ends: tuple[UUID, ...]
    waits: Waits
    """what stands before an empty group at the end: it is waited for, and gives no result"""
    keyed: bool


def addition(
    plan: Plan, ends: Sequence[UUID], waits: Waits, job_id: UUID, key: str | None
) -> Addition:
    """Check what a job wants to add; with a key, give it ids that the next attempt makes again."""
    if not plan.records:
        raise InvalidWorkflow("there is nothing to add")
    if plan.named:
        raise InvalidWorkflow("what a running job adds cannot wait for jobs outside of it")
    if key is None:
        return Addition(plan=plan, ends=tuple(ends), waits=waits, keyed=False)
    ids = {record.id: _known_id(job_id, key, place) for place, record in enumerate(plan.records)}
    for record in plan.records:
        record.__dict__["id"] = ids[record.id]
    edges = [replace(it, job=ids[it.job], depends_on=ids[it.depends_on]) for it in plan.edges]
    known = Plan(records=plan.records, edges=edges)
    return Addition(
        plan=known,
        ends=tuple(ids[end] for end in ends),
        waits=tuple((ids[job], kind) for job, kind in waits),
        keyed=True,
    )


def _known_id(job_id: UUID, key: str, place: int) -> UUID:
    text = f"{job_id} {place} {key}".encode("utf-8", "surrogatepass")
    return UUID(bytes=sha256(text).digest()[:16], version=4)


def add(driver: DatabaseDriver, reservation: Reservation, asked: Addition) -> None:
    """Store what a running job adds, or raise why it may not."""
    repeat(driver.using, lambda: _add(driver, reservation, asked))


def _add(driver: DatabaseDriver, reservation: Reservation, asked: Addition) -> None:
    in_one_database(asked.plan.records, driver.using)
    with driver.transaction():
        workflow = _hold(driver, reservation)
        reach("add.held")
        if asked.keyed and _is_there(driver, asked):
            return
        check_size(asked.plan)
        edges, locked = lock_below(driver, [reservation.job.id])
        plan = asked.plan
        for record in plan.records:
            record.__dict__["workflow"] = workflow
        order = in_order(plan)
        fill(plan, order, {})
        links = _links(driver, edges, locked, asked)
        waited_for = {link.depends_on for link in links}
        for record in plan.records:
            if record.id in waited_for:
                record.__dict__["has_dependents"] = True
        depths = depths_in(plan, order, {})
        insert(driver, plan, depths)
        _link(driver, links, locked, depths)
        _hurry(driver, links, plan)
        reach("add.inserted")
        count_open(driver, {workflow: len(plan.records)}, driver.now())
        _check_room(driver, workflow)
        notify_on_commit({record.queue for record in plan.records}, driver.using)


def _hold(driver: DatabaseDriver, reservation: Reservation) -> UUID:
    """Lock the running job, if it still is this worker's; return its workflow."""
    jobs = Job.objects.using(driver.using).inflight()
    mine = jobs.filter(pk=reservation.job.id, lease=reservation.lease.token)
    with driver.short_waits():
        held = list(driver.waiting_for(mine).values_list("workflow", "cancel_requested_at"))
    if not held:
        raise LeaseMismatch
    workflow, cancel_requested_at = held[0]
    if cancel_requested_at is not None:
        raise CancelRequested("The job should stop: it cannot add anything to its workflow.")
    if workflow is None:
        raise InvalidWorkflow("the job is in no workflow that anything could be added to")
    return UUID(str(workflow))


def _is_there(driver: DatabaseDriver, asked: Addition) -> bool:
    return Job.objects.using(driver.using).filter(pk=asked.plan.records[0].id).exists()


def _check_room(driver: DatabaseDriver, workflow: UUID) -> None:
    """Refuse what is too much; under the lock of the workflow's row, for others add to it too."""
    most = get_settings().workflow_max_jobs
    jobs = Job.objects.using(driver.using).filter(workflow=workflow).count()
    if jobs > most:
        raise TooManyJobs(
            f"The workflow would have {jobs:,} jobs; WORKFLOW_MAX_JOBS allows {most:,}."
        )


def _links(
    driver: DatabaseDriver, edges: Sequence[Below], locked: Dependents, asked: Addition
) -> list[Edge]:
    """The edges from who waits for the running job to the last of the new ones."""
    lists = _next_positions(driver, locked)
    links = []
    for edge in edges:
        if edge.kind == DependencyKind.AFTER_ANY or edge.job not in locked:
            continue
        kind, place = DependencyKind(edge.kind), lists.get(edge.job)
        for number, end in enumerate(asked.ends):
            position = None if place is None else place + number
            links.append(Edge(edge.job, end, kind, position))
        waited_for = {(end, AFTER_END if it == AFTER_END else kind) for end, it in asked.waits}
        links += [Edge(edge.job, end, how) for end, how in sorted(waited_for)]
        lists.pop(edge.job, None)
    return list(dict.fromkeys(links))  # two kinds of edges to the running job may come to the same


def _next_positions(driver: DatabaseDriver, locked: Dependents) -> dict[UUID, int]:
    """Of jobs that take a list of results, where it ends."""
    rows = Dependency.objects.using(driver.using).filter(job__input=Input.LIST).order_by()
    waiting = driver.among(rows, list(locked), "job")
    last = waiting.values_list("job").annotate(last=Max("position"))
    return {job: place + 1 for job, place in last if place is not None}


def _link(
    driver: DatabaseDriver, links: list[Edge], locked: Dependents, depths: dict[UUID, int]
) -> None:
    if not links:
        return
    deepest = dict(depths)
    for link in links:
        deepest[link.job] = max(deepest.get(link.job, 0), 1 + depths[link.depends_on])
        locked[link.job].dependencies_left += 1
        locked[link.job].changed = True
    check_depth(max(deepest.values()))
    insert_edges(driver, links, deepest)
    write_dependents(driver, locked.values(), driver.now())


def _hurry(driver: DatabaseDriver, links: Sequence[Edge], plan: Plan) -> None:
    """Let who waits for the new jobs inherit their priority, level by level to the last."""
    priorities = {record.id: record.priority for record in plan.records}
    best = min((priorities[link.depends_on] for link in links), default=0)
    slower = Job.objects.using(driver.using).filter(priority__gt=best, dependencies_left__gt=0)
    below = {link.job for link in links}
    while below:
        with driver.short_waits():
            rows = driver.waiting_for(slower.filter(pk__in=below).order_by("pk"))
            found = list(rows.values_list("pk", flat=True))
        slower.filter(pk__in=found).update(priority=best)
        below = {edge.job for edge in direct_edges(driver.using, found)}


def handles(asked: Addition, using: str) -> Any:
    """What `ctx.add` returns: the handle of the last job, or those of all that are last."""
    from .handle import JobHandle

    last = dict.fromkeys((*asked.ends, *(job for job, _ in asked.waits)))
    made = [JobHandle(id=end, using=using) for end in last]
    return made[0] if len(made) == 1 else made
