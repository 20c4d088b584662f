"""
Jobs that are to be stored together, and what their edges make of each: pure functions.

What is left to wait for is AFTER not done, and AFTER_END not ended, and one while none of the
AFTER_ANY has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from ..conf import get_settings
from ..exceptions import DependencyCycle, TooDeep, TooManyJobs
from ..lifecycle import ENDED, DependencyKind, JobState
from ..values import JobRecord

BATCH_BYTES = 4 * 2**20
EDGES_PER_JOB = 10  # on average, in a workflow as large as it may be


@dataclass(frozen=True, slots=True)
class Edge:
    """`job` is to wait for `depends_on`; its result has that position among those it takes."""

    job: UUID
    depends_on: UUID
    kind: DependencyKind = DependencyKind.AFTER
    position: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Jobs that are to be stored together, and what each waits for."""

    records: list[JobRecord] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    finalizers: list[object] = field(default_factory=list)
    """those of chords; one may come on top of as many members as there may be"""

    @property
    def named(self) -> set[UUID]:
        """The jobs outside of the plan that it waits for."""
        return {edge.depends_on for edge in self.edges} - {record.id for record in self.records}


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A stored job that others are to wait for, as it was under the share lock."""

    state: JobState
    priority: int
    category: str
    depth: int


def batches(records: Iterable[JobRecord], size: int) -> Iterator[list[JobRecord]]:
    """Cut into batches, smaller ones of large jobs: MariaDB takes 16 MiB in a statement."""
    batch: list[JobRecord] = []
    weight = 0
    for record in records:
        batch.append(record)
        weight += len(record.payload)
        if len(batch) == size or weight >= BATCH_BYTES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def waits(edges: Iterable[Edge]) -> dict[UUID, list[Edge]]:
    """The edges of each job that waits."""
    found: dict[UUID, list[Edge]] = {}
    for edge in edges:
        found.setdefault(edge.job, []).append(edge)
    return found


def in_order(plan: Plan) -> list[JobRecord]:
    """The jobs of a plan, each after those it waits for; DependencyCycle when there is none."""
    records = {record.id: record for record in plan.records}
    above = {
        job: {edge.depends_on for edge in edges if edge.depends_on in records}
        for job, edges in waits(plan.edges).items()
    }
    below: dict[UUID, list[UUID]] = {}
    for job, dependencies in above.items():
        for dependency in dependencies:
            below.setdefault(dependency, []).append(job)
    ordered = [record for record in plan.records if not above.get(record.id)]
    for record in ordered:  # grows while it is walked
        for job in below.get(record.id, ()):
            above[job].discard(record.id)
            if not above[job]:
                ordered.append(records[job])
    if len(ordered) < len(records):
        placed = {record.id for record in ordered}
        stuck = ", ".join(sorted({it.task for it in plan.records if it.id not in placed})[:5])
        raise DependencyCycle(f"Jobs wait for each other in a circle, among them {stuck}.")
    return ordered


def check_size(plan: Plan, *, jobs: int = 0, edges: int = 0) -> None:
    """Refuse a plan that is too large, or would be with so many more."""
    most = get_settings().workflow_max_jobs
    if len(plan.records) + jobs > most + bool(plan.finalizers):
        raise TooManyJobs(
            f"The workflow has {len(plan.records) + jobs:,} jobs or more;"
            f" WORKFLOW_MAX_JOBS allows {most:,}."
        )
    if len(plan.edges) + edges > most * EDGES_PER_JOB:
        raise TooManyJobs(
            f"The jobs wait for each other in more than {most * EDGES_PER_JOB:,} ways."
            f" Put a step between two large groups that follow each other."
        )


def depths_in(plan: Plan, order: list[JobRecord], named: dict[UUID, Named]) -> dict[UUID, int]:
    depths = {job_id: it.depth for job_id, it in named.items()}
    waiting = waits(plan.edges)
    for record in order:
        above = [depths[edge.depends_on] for edge in waiting.get(record.id, ())]
        depths[record.id] = 1 + max(above, default=0)
    check_depth(max(depths.values(), default=0))
    return depths


def check_depth(deepest: int) -> None:
    most = get_settings().max_depth
    if deepest > most:
        raise TooDeep(
            f"{deepest} jobs would wait one for the other; MAX_DEPTH allows {most} in a row."
        )


def fill(plan: Plan, order: list[JobRecord], named: dict[UUID, Named]) -> None:
    """Give each record what its edges make of it: conditions left, priority, dependents."""
    waiting = waits(plan.edges)
    waited_for = {edge.depends_on for edge in plan.edges}
    priorities = {job_id: it.priority for job_id, it in named.items()}
    for record in order:
        edges = waiting.get(record.id, ())
        above = [priorities[edge.depends_on] for edge in edges]
        priorities[record.id] = min([record.priority, *above])
        # Straight into the fields, as the drivers do: these records are nobody else's yet.
        record.__dict__.update(
            dependencies_left=conditions_left(edges, named),
            has_dependents=record.id in waited_for,
            priority=priorities[record.id],
        )


def conditions_left(edges: Iterable[Edge], named: dict[UUID, Named]) -> int:
    """How many conditions are open; a job that is stored only now has not ended."""
    left, firsts = 0, []
    for edge in edges:
        state = named[edge.depends_on].state if edge.depends_on in named else None
        if edge.kind == DependencyKind.AFTER_ANY:
            firsts.append(state in ENDED)
        elif edge.kind == DependencyKind.AFTER:
            left += state != JobState.DONE
        else:
            left += state not in ENDED
    return left + bool(firsts and not any(firsts))
