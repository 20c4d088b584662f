"""
The jobs below others: which wait for them, how they are locked, and what an end makes of them.

A job whose `dependencies_left` is 0 has had all it waited for, and that is final: nothing raises a
zero again. So whoever reads one may leave that job alone without a lock; only the others are
locked, whatever their state, in one statement and in the order of their ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple
from uuid import UUID

from django.db import connections

from ..drivers import DatabaseDriver
from ..drivers.rows import prepare, quoted
from ..failpoints import reach
from ..lifecycle import ENDED, DependencyKind, JobState
from ..models import Dependency, Job

ROOTS_PER_STATEMENT = 1_000
# MariaDB goes down a thousand levels by itself, and says nothing of what lies deeper.
_HOWEVER_DEEP = "SET STATEMENT max_recursive_iterations = 4294967295 FOR "


class Below(NamedTuple):
    """An edge as it was read: `job` waits for `depends_on`."""

    job: UUID
    depends_on: UUID
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a job ended; `cause` is the job that a person must see to, if it is another one."""

    state: JobState
    category: str = ""
    cause: UUID | None = None


@dataclass(kw_only=True, slots=True)
class Dependent:
    """A locked job with conditions open, and what is to become of it."""

    id: UUID
    state: str
    dependencies_left: int
    task: str
    queue: str
    run_at: datetime | None
    attempts: int
    workflow: UUID | None
    end: End | None = None
    changed: bool = False

    @property
    def is_released(self) -> bool:
        return self.state == JobState.BLOCKED and not self.dependencies_left and self.end is None


_FIELDS = ("id", "state", "dependencies_left", "task", "queue", "run_at", "attempts", "workflow")

Dependents = dict[UUID, Dependent]


# -- reading and locking -----------------------------------------------------------------------


def direct_edges(using: str, ids: Collection[UUID]) -> list[Below]:
    """The edges to jobs that wait for these."""
    edges = Dependency.objects.using(using).filter(depends_on__in=ids, job__dependencies_left__gt=0)
    return [Below(*edge) for edge in edges.values_list("job", "depends_on", "kind")]


def all_edges_below(using: str, ids: Collection[UUID], through: JobState) -> list[Below]:
    """The edges below these and, through AFTER, below each job in that state, to the end."""
    connection, roots, found = connections[using], list(ids), dict[Below, None]()
    for start in range(0, len(roots), ROOTS_PER_STATEMENT):
        some = roots[start : start + ROOTS_PER_STATEMENT]
        sql = _below(using).format(roots=", ".join(["%s"] * len(some)), through=through.value)
        keys = [prepare("id", root, connection) for root in some]
        edges = Dependency.objects.using(using).raw(sql, keys)
        found.update({Below(e.job_id, e.depends_on_id, e.kind): None for e in edges})
    return list(found)


@cache
def _below(using: str) -> str:
    """One statement for the whole closure, however deep: names from the models' meta."""
    quote = connections[using].ops.quote_name
    job, column = quoted(using)
    edge = quote(Dependency._meta.db_table)
    names = {f.name: f"{edge}.{quote(str(f.column))}" for f in Dependency._meta.concrete_fields}
    link, key = f"{names['depends_on']} = down.id", f"{job}.{column['id']} = {names['job']}"
    below = f"FROM down JOIN {edge} ON {link} JOIN {job} ON {key}"
    if connections[using].vendor == "postgresql":
        # From each job to its edges and on, by their indexes: of tables that have just been filled
        # the planner thinks little, and joined all that is blocked with all that was found.
        below = (
            f"FROM down CROSS JOIN LATERAL (SELECT * FROM {edge} WHERE {link} OFFSET 0) AS {edge}"  # noqa: S608  names from the models
            f" CROSS JOIN LATERAL (SELECT * FROM {job} WHERE {key} OFFSET 0) AS {job}"
        )
    chosen = ", ".join(names[name] for name in ("id", "job", "depends_on", "kind"))
    is_mariadb = getattr(connections[using], "mysql_is_mariadb", False)
    prefix = _HOWEVER_DEEP if is_mariadb else ""
    return (
        f"{prefix}WITH RECURSIVE down (id) AS ("  # noqa: S608  values are parameters
        f"SELECT {column['id']} FROM {job} WHERE {column['id']} IN ({{roots}})"
        f" UNION SELECT {names['job']} {below} WHERE {names['kind']} = '{DependencyKind.AFTER}'"
        f" AND {job}.{column['state']} = '{{through}}' AND {job}.{column['has_dependents']})"
        f" SELECT {chosen} {below} WHERE {job}.{column['dependencies_left']} > 0"
    )


def lock_below(
    driver: DatabaseDriver,
    ids: Collection[UUID],
    deep: Collection[UUID] = (),
    *,
    through: JobState = JobState.BLOCKED,
) -> tuple[list[Below], Dependents]:
    """
    Lock the jobs that wait for these, and the whole closure below the deep ones.

    The caller holds them all, so that nobody can make another job wait for them meanwhile; but
    what lies deeper may grow until it is locked, and is looked at again.
    """
    near = direct_edges(driver.using, ids) if ids else []
    asked: set[UUID] = set()
    locked: Dependents = {}
    while True:
        edges = near + (all_edges_below(driver.using, deep, through) if deep else [])
        reach("advance.read")
        new = {edge.job for edge in edges} - asked
        locked |= lock(driver, new)
        asked |= new
        if not (new and deep):
            return edges, locked


def lock(driver: DatabaseDriver, ids: Collection[UUID]) -> Dependents:
    """Wait for those of the jobs that have conditions open, in the order of their ids."""
    if not ids:
        return {}
    rows = driver.among(Job.objects.using(driver.using).filter(dependencies_left__gt=0), ids)
    with driver.short_waits():
        locked = driver.waiting_for(rows.order_by("pk")).values(*_FIELDS)
        return {row["id"]: Dependent(**row) for row in locked}


def met_before(
    driver: DatabaseDriver, edges: Iterable[Below], locked: Dependents, but: Collection[UUID]
) -> dict[UUID, set[UUID]]:
    """
    Which of a job's AFTER_ANY had ended, leaving out some; read under the job's lock.

    A statement of its own: that of the lock has seen what was there before it waited.
    """
    asked = {edge.job for edge in edges if edge.kind == DependencyKind.AFTER_ANY} & locked.keys()
    if not asked:
        return {}
    rows = Dependency.objects.using(driver.using).filter(
        kind=DependencyKind.AFTER_ANY, depends_on__state__in=ENDED
    )
    found: dict[UUID, set[UUID]] = {}
    for job, depends_on in driver.among(rows, asked, "job").values_list("job", "depends_on"):
        if depends_on not in but:
            found.setdefault(job, set()).add(depends_on)
    return found


# -- what an end makes of them -----------------------------------------------------------------


def spread(
    ends: Mapping[UUID, End], edges: Sequence[Below], locked: Dependents, met: Collection[UUID]
) -> None:
    """
    Carry ends down the edges: lower what is left, and end what can never run.

    `met` are the jobs one of whose AFTER_ANY had ended before. Deaths go first: a job below a dead
    and a cancelled one is dead, for that is what a person can do something about.
    """
    below: dict[UUID, list[Below]] = {}
    for edge in edges:
        below.setdefault(edge.depends_on, []).append(edge)
    met = set(met)
    line = deque(sorted(ends.items(), key=lambda item: item[1].state != JobState.DEAD))
    while line:
        job_id, end = line.popleft()
        for edge in below.get(job_id, ()):
            dependent = locked.get(edge.job)
            if dependent is None or not _passes_on(edge, end, dependent, met):
                continue
            inherited = End(state=end.state, category=end.category, cause=end.cause or job_id)
            dependent.end = inherited
            dependent.changed = True
            (line.appendleft if end.state == JobState.DEAD else line.append)((edge.job, inherited))


def _passes_on(edge: Below, end: End, dependent: Dependent, met: set[UUID]) -> bool:
    """Lower what is left where the end meets a condition; say whether it ends the dependent too."""
    if edge.kind == DependencyKind.AFTER and end.state != JobState.DONE:
        return dependent.state == JobState.BLOCKED and dependent.end is None
    if edge.kind == DependencyKind.AFTER_ANY:
        if dependent.id in met:
            return False
        met.add(dependent.id)
    dependent.dependencies_left -= 1
    dependent.changed = True
    return False
