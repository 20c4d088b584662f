"""
A workflow as nodes and edges, small enough to be looked at.

Up to `most` jobs each is a node. Beyond, jobs of the same task that stand at the same depth are one
node, with how many of them are in each state; and if that is still too much, the deepest are left
out, and how many is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..lifecycle import JobState
from ..models import Dependency, Job

NODES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One job, or many that are alike; `depth` is the column it stands in, from 1."""

    id: str
    task: str
    depth: int
    states: dict[JobState, int]
    job: UUID | None = None
    """the job, unless the node stands for several"""

    @property
    def count(self) -> int:
        return sum(self.states.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """An edge between two nodes; `count` edges between jobs when nodes are collapsed."""

    source: str
    target: str
    kind: str
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    nodes: list[Node]
    lines: list[Line]
    collapsed: bool = False
    left_out: int = 0
    """jobs that no node stands for"""


def draw(using: str, workflow: UUID, most: int = NODES) -> Drawing:
    """Read a workflow's jobs and edges; collapse them when there are more than `most`."""
    jobs = list(
        Job.objects.using(using)
        .filter(workflow=workflow)
        .order_by("created_at", "seq")
        .values_list("pk", "task", "state")
    )
    inside = {pk for pk, _, _ in jobs}
    rows = Dependency.objects.using(using).filter(job__workflow=workflow)
    edges = [edge for edge in rows.values_list("job", "depends_on", "kind") if edge[1] in inside]
    depths = depths_among(inside, edges)
    collapsed = len(jobs) > most
    place = {pk: f"{depths[pk]}:{task}" if collapsed else str(pk) for pk, task, _ in jobs}
    nodes = _nodes(jobs, place, depths)
    shown = {node.id for node in nodes[:most]}
    lines = Counter(
        (place[source], place[target], kind)
        for target, source, kind in edges
        if place[source] in shown and place[target] in shown
    )
    return Drawing(
        nodes=nodes[:most],
        lines=[Line(source=s, target=t, kind=k, count=n) for (s, t, k), n in lines.items()],
        collapsed=collapsed,
        left_out=sum(node.count for node in nodes[most:]),
    )


def _nodes(jobs: list[Any], place: dict[UUID, str], depths: dict[UUID, int]) -> list[Node]:
    states: dict[str, Counter[JobState]] = {}
    first: dict[str, tuple[UUID, str]] = {}
    for pk, task, state in jobs:
        states.setdefault(place[pk], Counter())[JobState(state)] += 1
        first.setdefault(place[pk], (pk, task))
    nodes = [
        Node(
            id=key,
            task=first[key][1],
            depth=depths[first[key][0]],
            states=dict(counted),
            job=first[key][0] if counted.total() == 1 else None,
        )
        for key, counted in states.items()
    ]
    return sorted(nodes, key=lambda node: node.depth)


def depths_among(inside: Collection[UUID], edges: Iterable[Any]) -> dict[UUID, int]:
    """How many of these jobs the longest path to each has."""
    above: dict[UUID, set[UUID]] = {pk: set() for pk in inside}
    below: dict[UUID, list[UUID]] = {}
    for job, depends_on, _ in edges:
        if depends_on not in above[job]:
            above[job].add(depends_on)
            below.setdefault(depends_on, []).append(job)
    depths = dict.fromkeys((pk for pk in inside if not above[pk]), 1)
    line = list(depths)
    for pk in line:  # grows while it is walked
        for job in below.get(pk, ()):
            above[job].discard(pk)
            if not above[job]:
                depths[job] = depths[pk] + 1  # the last of those above it is the deepest
                line.append(job)
    return depths
