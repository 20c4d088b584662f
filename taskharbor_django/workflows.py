"""
chain, group, chord and graph: ways to write down which job waits for which.

Each describes edges and nothing more; `enqueue` hands jobs and edges to one submission, in the
caller's transaction. A part may stand wherever a signature may, at any depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from .exceptions import DependencyCycle, InvalidWorkflow, UnknownDependency
from .lifecycle import DependencyKind, Input
from .models.workflow import NAME_MAX_CHARS
from .operations.edges import new_workflow, store
from .operations.enqueue import bound_waiting, edges_of, in_one_database, refuse_too_many
from .operations.notify import notify_on_commit
from .operations.plans import Edge, Plan, check_size, depths_in, in_order
from .operations.records import record_of
from .operations.storage import alias_of, driver_for
from .operations.transactions import after_commit, refuse_elsewhere
from .operations.workflow import WorkflowHandle
from .tasks import Signature
from .values import is_storable, shown

AFTER_END = DependencyKind.AFTER_END


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """What a step follows: jobs whose results it takes, and jobs that it only waits for."""

    results: tuple[UUID, ...] = ()
    many: bool = False
    kind: DependencyKind = DependencyKind.AFTER
    waits: tuple[tuple[UUID, DependencyKind], ...] = ()

    @property
    def input(self) -> str:
        if self.many:
            return Input.LIST.value
        return Input.VALUE.value if self.results else ""

    def waited_for(self) -> tuple[tuple[UUID, DependencyKind], ...]:
        """The same jobs, and none of their results."""
        return (*self.waits, *((job, self.kind) for job in self.results))


class Part:
    """A piece of a workflow, or a whole one."""

    __slots__ = ()

    def lay(self, plan: Plan, before: Before) -> Before:
        """Write jobs and edges into the plan; return what a next step would follow."""
        raise NotImplementedError

    def enqueue(self, *, name: str = "") -> WorkflowHandle:
        """Store all of it in the caller's transaction; return the workflow's handle."""
        plan, name = plan_of(self)[0], _checked(name)
        refuse_elsewhere(_home(plan), plan.records[0].queue)
        return _enqueue(plan, name)

    def enqueue_on_commit(self, *, name: str = "") -> None:
        """Store it once the caller's transactions have committed; refuse it, if need be, now."""
        plan, name = plan_of(self)[0], _checked(name)
        _home(plan)
        for record in plan.records:
            record.validate()
        if not plan.named:  # else only the database knows how deep they stand
            depths_in(plan, in_order(plan), {})
        after_commit(lambda: _enqueue(plan, name))

    async def aenqueue(self, *, name: str = "") -> WorkflowHandle:
        return await sync_to_async(self.enqueue)(name=name)


@dataclass(frozen=True, slots=True)
class Chain(Part):
    """One step after the other; each takes the result of the one before it."""

    steps: tuple[Part | Signature, ...]

    def lay(self, plan: Plan, before: Before) -> Before:
        for step in self.steps:
            before = lay(step, plan, before)
        return before


@dataclass(frozen=True, slots=True)
class Group(Part):
    """All at once; what follows takes the list of their results, in this order."""

    members: tuple[Part | Signature, ...]

    def lay(self, plan: Plan, before: Before) -> Before:
        if not self.members:
            return Before(many=True, waits=before.waited_for())
        ends = [lay(member, plan, before) for member in self.members]
        results = tuple(job for end in ends for job in end.results)
        return Before(results=results, many=True, waits=_all_waits(ends))


@dataclass(frozen=True, slots=True)
class Chord(Part):
    """A group, and a finalizer that takes the list of its results."""

    members: Group
    finalizer: Part | Signature
    run_on_failure: bool = False

    def lay(self, plan: Plan, before: Before) -> Before:
        ends = self.members.lay(plan, before)
        kind = AFTER_END if self.run_on_failure else DependencyKind.AFTER
        waits = tuple((job, _past_empty(kind, how)) for job, how in ends.waits)
        plan.finalizers.append(self.finalizer)
        return lay(self.finalizer, plan, replace(ends, kind=kind, waits=waits))


@dataclass(frozen=True, slots=True)
class Graph(Part):
    """Parts by name, and by name what each waits for; they take no results of each other."""

    nodes: dict[str, Part | Signature]
    after: dict[str, tuple[str, ...]]
    after_any: dict[str, tuple[str, ...]]

    def lay(self, plan: Plan, before: Before) -> Before:
        if not self.nodes:
            return Before(many=True, waits=before.waited_for())
        laid: dict[str, Before] = {}
        for name in self._order():
            waits = tuple(dict.fromkeys(self._waits(name, laid)))
            first = Before(waits=waits) if waits else before
            laid[name] = lay(self.nodes[name], plan, first)
        waited_for = {name for names in self._named().values() for name in names}
        ends = [laid[name] for name in self.nodes if name not in waited_for]
        return Before(
            results=tuple(job for end in ends for job in end.results),
            many=True,
            waits=_all_waits(ends),
        )

    def _waits(self, name: str, laid: dict[str, Before]) -> Iterable[tuple[UUID, DependencyKind]]:
        for kind in (DependencyKind.AFTER, DependencyKind.AFTER_ANY):
            for above in getattr(self, kind.value).get(name, ()):
                for job, how in laid[above].waited_for():
                    yield job, _past_empty(kind, how)

    def _named(self) -> dict[str, tuple[str, ...]]:
        return {
            name: (*self.after.get(name, ()), *self.after_any.get(name, ())) for name in self.nodes
        }

    def _order(self) -> list[str]:
        left = {name: set(above) for name, above in self._named().items()}
        order: list[str] = []
        while left:
            free = [name for name, above in left.items() if not above]
            if not free:
                raise DependencyCycle(f"{', '.join(left)} wait for each other in a circle.")
            order += free
            left = {name: above - set(free) for name, above in left.items() if above}
        return order


def _past_empty(kind: DependencyKind, how: DependencyKind) -> DependencyKind:
    """The kind of an edge past an empty group: what only had to end before it only has to end."""
    return how if (kind, how) == (DependencyKind.AFTER, AFTER_END) else kind


def _all_waits(ends: Iterable[Before]) -> tuple[tuple[UUID, DependencyKind], ...]:
    """Each once: many empty groups may stand behind the same jobs."""
    return tuple(dict.fromkeys(it for end in ends for it in end.waits))


# -- how they are written ----------------------------------------------------------------------


def chain(*steps: Any) -> Chain:
    """One step after the other: `chain(fetch.s(url), parse.s(), store.s())`."""
    if not steps:
        raise InvalidWorkflow("a chain needs at least one step")
    return Chain(_parts(steps))


def group(*members: Any) -> Group:
    """All at once: `group(resize.s(size) for size in sizes)`, or one argument for each."""
    return Group(_parts(members))


def chord(members: Any, finalizer: Any, *, run_on_failure: bool = False) -> Chord:
    """
    A group and what follows it: `chord([count.s(shop) for shop in shops], total.s())`.

    With `run_on_failure` the finalizer runs however the members end, and finds a Failure in the
    place of each result that is missing.
    """
    whole = members if isinstance(members, Group) else Group(_parts((members,)))
    return Chord(whole, _part(finalizer), run_on_failure)


def graph(
    nodes: Mapping[str, Any],
    *,
    after: Mapping[str, Iterable[str]] | None = None,
    after_any: Mapping[str, Iterable[str]] | None = None,
) -> Graph:
    """Any graph without a circle: `graph({"a": …, "b": …, "c": …}, after={"c": ["a", "b"]})`."""
    if not isinstance(nodes, Mapping) or not all(isinstance(name, str) for name in nodes):
        raise InvalidWorkflow(f"a graph is a dict of steps by name, not {shown(nodes)}")
    parts = {name: _part(node) for name, node in nodes.items()}
    return Graph(parts, _names(parts, after or {}), _names(parts, after_any or {}))


def _names(
    nodes: Mapping[str, Any], edges: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    if not isinstance(edges, Mapping):
        raise InvalidWorkflow(f"who waits for whom is a dict of names, not {shown(edges)}")
    for name, above in edges.items():
        try:
            names = (above,) if isinstance(above, str) else tuple(dict.fromkeys(above))
        except TypeError:
            raise InvalidWorkflow(f"{shown(above)} is no list of names of nodes") from None
        for named in (name, *names):
            if named not in nodes:
                raise UnknownDependency(f"The graph has no node {shown(named)}.")
        refuse_too_many(f"the node {shown(name)}", len(names))
        found[name] = names
    return found


def _parts(given: tuple[Any, ...]) -> tuple[Part | Signature, ...]:
    if len(given) == 1 and not isinstance(given[0], Part | Signature):
        try:
            given = tuple(given[0])
        except TypeError:
            raise _no_part(given[0]) from None
    return tuple(_part(item) for item in given)


def _part(item: Any) -> Part | Signature:
    if not isinstance(item, Part | Signature):
        raise _no_part(item)
    return item


def _no_part(item: Any) -> InvalidWorkflow:
    return InvalidWorkflow(f"{shown(item)} cannot be a step; make one by task.s(...)")


# -- from parts to a plan ----------------------------------------------------------------------


def plan_of(part: Part | Signature) -> tuple[Plan, Before]:
    """The jobs and edges of a part, and what its end is."""
    plan = Plan()
    return plan, lay(_part(part), plan, Before())


def lay(part: Part | Signature, plan: Plan, before: Before) -> Before:
    if isinstance(part, Part):
        return part.lay(plan, before)
    # Before they are made: two large groups one after the other are a product of edges.
    check_size(plan, jobs=1, edges=len(before.results) + len(before.waits))
    takes = "" if part.immutable else before.input
    record = record_of(part, takes).apart()
    if record.idempotency_key is not None:
        raise InvalidWorkflow("a step of a workflow cannot have an idempotency key")
    plan.records.append(record)
    plan.edges.extend(
        Edge(record.id, job, before.kind, place if takes else None)
        for place, job in enumerate(before.results)
    )
    plan.edges.extend(Edge(record.id, job, kind) for job, kind in dict.fromkeys(before.waits))
    plan.edges.extend(edges_of(part, record))
    return Before(results=(record.id,))


def _checked(name: str) -> str:
    if not isinstance(name, str) or len(name) > NAME_MAX_CHARS or not is_storable(name):
        raise InvalidWorkflow(f"name: {shown(name)} is no text of up to {NAME_MAX_CHARS} letters")
    return name


def _home(plan: Plan) -> str:
    """The one database of all its jobs."""
    if not plan.records:
        raise InvalidWorkflow("a workflow needs at least one job")
    using = alias_of(plan.records[0].queue)
    in_one_database(plan.records, using)
    return using


def _enqueue(plan: Plan, name: str) -> WorkflowHandle:
    using = _home(plan)
    bound_waiting(using)
    workflow = new_workflow(name, len(plan.records))
    for record in plan.records:
        record.__dict__["workflow"] = workflow.pk
    store(driver_for(using), plan, workflow)
    notify_on_commit({record.queue for record in plan.records}, using)
    return WorkflowHandle(id=workflow.pk, using=using)
