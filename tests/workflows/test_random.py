"""Graphs that nobody thought of, run to their end in random order and compared with a model."""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskharbor_django import JobHandle, requeue
from taskharbor_django.lifecycle import DependencyKind
from taskharbor_django.models import DeadLetter, Dependency, Job, Workflow
from taskharbor_django.operations.edges import new_workflow, store
from taskharbor_django.operations.plans import Edge, Plan
from taskharbor_django.values import JobRecord

from . import counts_add_up, driver, end, letter

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

KINDS = list(DependencyKind)
ENDED = ("done", "dead", "cancelled")


@dataclass
class Model:
    """What should be, worked out in the plainest way: look at everything after each step."""

    edges: dict  # node -> {(above, kind)}
    state: dict = field(default_factory=dict)
    released: set = field(default_factory=set)
    cause: dict = field(default_factory=dict)

    def end(self, node, state):
        self.state[node] = state
        self.settle()

    def requeue(self, node):
        self.state[node] = "ready"
        for below in [it for it in self.cause if self.state[it] == "dead"]:
            if not self.failed_above(below):
                self.state[below] = "blocked"
                del self.cause[below]
        # What lived again may have kept others dead.
        if any(self.state[it] == "dead" and not self.failed_above(it) for it in list(self.cause)):
            self.requeue(node)

    def failed_above(self, node):
        return [
            above
            for above, kind in self.edges[node]
            if kind == "after" and self.state[above] in ("dead", "cancelled")
        ]

    def settle(self):
        """Release and end what can be, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for node in [it for it, state in self.state.items() if state == "blocked"]:
                changed |= self.step(node)

    def step(self, node):
        failed = self.failed_above(node)
        if failed:
            dead = [above for above in failed if self.state[above] == "dead"]
            self.state[node] = "dead" if dead else "cancelled"
            if dead:
                self.cause[node] = dead
            return True
        if node in self.released or self.is_free(node):
            self.released.add(node)
            self.state[node] = "ready"
            return True
        return False

    def is_free(self, node):
        firsts = [
            self.state[above] in ENDED for above, kind in self.edges[node] if kind == "after_any"
        ]
        return (not firsts or any(firsts)) and all(
            self.state[above] in (ENDED if kind == "after_end" else ("done",))
            for above, kind in self.edges[node]
            if kind != "after_any"
        )


@st.composite
def graphs(draw):
    """Up to nine nodes, each waiting for some of those before it."""
    edges = {}
    for node in range(draw(st.integers(2, 9))):
        above = draw(st.lists(st.integers(0, node - 1), unique=True, max_size=4)) if node else []
        edges[node] = {(it, draw(st.sampled_from(KINDS)).value) for it in above}
    return edges


class Play:
    def __init__(self, edges):
        self.model = Model(edges)
        self.handles = {}

    def store(self, nodes):
        records = {node: JobRecord(task="t") for node in nodes}
        ids = {node: handle.id for node, handle in self.handles.items()}
        ids |= {node: record.id for node, record in records.items()}
        edges = [
            Edge(ids[node], ids[above], DependencyKind(kind))
            for node in nodes
            for above, kind in self.model.edges[node]
        ]
        workflow = new_workflow("", len(records))
        for record in records.values():
            record.__dict__["workflow"] = workflow.pk
        store(driver(), Plan(records=list(records.values()), edges=edges), workflow)
        self.handles |= {node: JobHandle.of(record.id) for node, record in records.items()}
        for node in nodes:
            self.model.state[node] = "blocked"
        self.model.settle()

    def in_state(self, *states):
        return sorted(node for node, state in self.model.state.items() if state in states)

    def act(self, draw):
        ready, dead = (
            self.in_state("ready"),
            [node for node in self.in_state("dead") if node not in self.model.cause],
        )
        waiting = self.in_state("ready", "blocked")
        choices = [("end", node) for node in ready] + [("requeue", node) for node in dead]
        choices += [("cancel", node) for node in waiting]
        verb, node = draw(st.sampled_from(choices))
        if verb == "requeue":
            assert requeue([self.handles[node]]).moved == 1
            self.model.requeue(node)
            self.model.settle()
        elif verb == "cancel":
            assert self.handles[node].cancel()
            self.model.end(node, "cancelled")
        else:
            state = draw(st.sampled_from(["done", "done", "dead"]))
            end(self.handles[node], state)
            self.model.end(node, state)
        self.compare()

    def compare(self):
        stored = dict(Job.objects.values_list("pk", "state"))
        assert {n: stored[handle.id] for n, handle in self.handles.items()} == self.model.state
        for node in self.model.cause:
            if self.model.state[node] == "dead":
                assert letter(self.handles[node]).reason == "dependency"
        counts_add_up()


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(edges=graphs(), data=st.data())
def test_random_graphs_go_the_way_of_the_model(transactional_db, edges, data):
    for model in (Dependency, DeadLetter, Job, Workflow):
        model.objects.all().delete()
    play = Play(edges)
    nodes = sorted(edges)
    # Some are stored at once, others later, when what they wait for may have ended.
    cut = data.draw(st.integers(1, len(nodes)))
    play.store(nodes[:cut])
    play.compare()
    for node in nodes[cut:]:
        for _ in range(data.draw(st.integers(0, 2))):
            if play.in_state("ready", "blocked"):
                play.act(data.draw)
        play.store([node])
        play.compare()
    for _ in range(12):
        if not play.in_state("ready", "blocked"):
            break
        play.act(data.draw)
    # And to the end.
    while ready := play.in_state("ready"):
        end(play.handles[ready[0]])
        play.model.end(ready[0], "done")
        play.compare()
    assert not play.in_state("ready", "blocked", "inflight")
