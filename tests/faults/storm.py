"""Workers, operators and chores in threads with connections of their own, all on the same jobs."""

import random
import threading
import time
from collections import Counter
from datetime import timedelta
from uuid import uuid4

from django.db import connections

from taskharbor_django import chain, chord, operations
from taskharbor_django.drivers import FailureUpdate, Outcome
from taskharbor_django.exceptions import JobLocked
from taskharbor_django.lifecycle import OutcomeKind, Priority
from taskharbor_django.models import Job, Workflow
from taskharbor_django.operations import Selection, WorkflowHandle
from taskharbor_django.operations.expire import expire
from taskharbor_django.operations.prune import prune
from taskharbor_django.operations.storage import driver_for
from tests.testapp.workflow_tasks import first, total

QUEUE = "default"
OPEN = ("blocked", "scheduled", "ready", "inflight")
JOBS = 40  # how many are kept open, so that many meet on each
WORKERS, OPERATORS = 3, 3
MAX_LEASE_LOSSES = 3
PATIENCE = 1_800


def seconds(chance, least, most):
    return timedelta(seconds=chance.uniform(least, most))


class Storm:
    """So many calls by all together; `accepted` is what workers were told to have settled."""

    def __init__(self, seed, calls):
        self.calls = calls
        self.seed = seed
        self.did = Counter()
        self.accepted = []
        self.errors = []
        self._left = calls
        self._lock = threading.Lock()

    def run(self):
        roles = [Worker] * WORKERS + [Operator] * OPERATORS + [Chores, Customer]
        actors = [role(self, random.Random(f"{self.seed} {n}")) for n, role in enumerate(roles)]
        threads = [threading.Thread(target=self._act, args=[actor]) for actor in actors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not self.errors, self.errors
        assert not any(thread.is_alive() for thread in threads), "somebody hangs"

    def _act(self, actor):
        try:
            while self._takes_one() and not self.errors:
                name = actor.act()
                with self._lock:
                    self.did[name] += 1
        except Exception as error:  # told by the thread that waits
            self.errors.append(error)
            raise
        finally:
            connections.close_all()

    @property
    def goes_on(self):
        return self._left > 0 and not self.errors

    def _takes_one(self):
        with self._lock:
            self._left -= 1
            return self._left >= 0


class Actor:
    def __init__(self, storm, chance):
        self.storm, self.chance = storm, chance
        self.driver = driver_for("default")

    def some(self, *states, most=4):
        found = Job.objects.filter(state=self.chance.choice(states))
        ids = list(found.order_by("-updated_at").values_list("pk", flat=True)[:JOBS])
        return self.chance.sample(ids, min(len(ids), self.chance.randint(1, most)))


class Customer(Actor):
    def act(self):
        while Job.objects.filter(state__in=OPEN).count() > JOBS and self.storm.goes_on:
            time.sleep(0.05)
        draw = self.chance.random()
        if draw < 0.4:
            later = {
                "delay": self.chance.choice([0, 0.05]),
                "lifetime": self.chance.choice([1, 60]),
            }
            first.using(**later).enqueue(1)
        elif draw < 0.7:
            chain(first.si(1), first.si(2), first.si(3)).enqueue()
        else:
            chord([first.si(n) for n in range(3)], total.s(), run_on_failure=draw < 0.8).enqueue()
        return "enqueue"


class Worker(Actor):
    """Takes jobs for a moment, and ends them in any way, often too late."""

    def __init__(self, storm, chance):
        super().__init__(storm, chance)
        self.held = []

    def act(self):
        draw = self.chance.random()
        if not self.held or draw < 0.3:
            lease_for = seconds(self.chance, 0.02, 1.5)
            self.held += self.driver.reserve(
                QUEUE,
                now=self.driver.now(),
                lease_for=lease_for,
                limit=self.chance.randint(1, 5),
                token=uuid4(),
                max_lease_losses=MAX_LEASE_LOSSES,
            )
            return "reserve"
        if draw < 0.4:
            tokens = [each.lease.token for each in self.held]
            lease_for = seconds(self.chance, 0.02, 1.5)
            self.driver.extend_leases(tokens, now=self.driver.now(), lease_for=lease_for)
            return "heartbeat"
        self.chance.shuffle(self.held)
        batch = [self.held.pop() for _ in range(min(len(self.held), self.chance.randint(1, 4)))]
        return self._settle(batch)

    def _settle(self, batch):
        kinds = [OutcomeKind.ACK, OutcomeKind.ACK, *OutcomeKind]
        outcomes = [self._outcome(each, self.chance.choice(kinds)) for each in batch]
        refused = self.driver.settle(outcomes, now=self.driver.now())
        # Repeated: the driver had to send it twice, and the first one went through.
        lost = {_run(it.outcome): it.error for it in refused if not it.repeated}
        # Held by another just now: a worker would try again.
        self.held += [
            each
            for each, outcome in zip(batch, outcomes, strict=True)
            if isinstance(lost.get(_run(outcome)), JobLocked)
        ]
        self.storm.accepted += [
            (*_run(outcome), outcome.kind.value)
            for outcome in outcomes
            if _run(outcome) not in lost
        ]
        return "settle"

    def _outcome(self, each, kind):
        later = self.driver.now() + seconds(self.chance, -0.1, 0.1)
        if kind == OutcomeKind.RETRY and each.job.attempts + 1 >= each.job.max_attempts:
            kind = OutcomeKind.FAIL
        failed = kind in (OutcomeKind.RETRY, OutcomeKind.FAIL)
        update = FailureUpdate(attempts=each.job.attempts + 1, run_at=later, last_error="no")
        return Outcome(
            job_id=each.job.id,
            token=each.lease.token,
            version=each.lease.version,
            kind=kind,
            started_at=self.driver.now() if self.chance.random() < 0.5 else None,
            run_at=later if kind == OutcomeKind.RELEASE else None,
            update=update if failed else None,
            reason="permanent" if kind == OutcomeKind.FAIL else "",
        )


def _run(outcome):
    """A batch may have two runs of a job, one of them lost."""
    return outcome.job_id, outcome.version


class Operator(Actor):
    def act(self):
        verb = self.chance.choice(sorted(OPERATORS_VERBS))
        OPERATORS_VERBS[verb](self)
        return verb

    def cancel(self):
        operations.cancel(self.some(*OPEN))

    def cancel_by_force(self):
        operations.cancel(self.some("inflight"), force=True)

    def requeue(self):
        delay = self.chance.choice([None, 0.05])
        operations.requeue(
            self.some("dead", "inflight"), delay=delay, one_more=self.chance.random() < 0.3
        )

    def requeue_all(self):
        operations.requeue(Selection(state="dead"))

    def replay(self):
        operations.replay(self.some("dead", most=2), keep=self.chance.random() < 0.2)

    def discard(self):
        operations.discard(self.some("dead", most=2))

    def run_now(self):
        operations.run_now(Selection(state="scheduled"))

    def update(self):
        later = self.driver.now() + seconds(self.chance, -0.1, 0.1)
        terms = self.chance.choice([{"run_at": later}, {"priority": Priority.HIGH}])
        operations.update(self.some("ready", "scheduled", "inflight", "blocked"), **terms)

    def bury(self):
        operations.bury(self.some(*OPEN, "done", most=2))

    def cancel_a_workflow(self):
        open_ones = Workflow.objects.filter(finished_at=None)
        if found := self._one_of(open_ones.values_list("pk", flat=True)):
            WorkflowHandle.of(found).cancel(force=self.chance.random() < 0.5)

    def resume_a_workflow(self):
        dead = Job.objects.filter(state="dead").exclude(workflow=None)
        if found := self._one_of(dead.values_list("workflow", flat=True)):
            WorkflowHandle.of(found).resume()

    def _one_of(self, keys):
        found = list(keys[:JOBS])
        return self.chance.choice(found) if found else None

    def erase(self):
        operations.erase(self.some("done", "cancelled", "inflight"))

    def pause(self):
        operations.pause(QUEUE, until=self.driver.now() + timedelta(seconds=0.02))

    def resume(self):
        operations.resume(QUEUE)


OPERATORS_VERBS = {
    name: getattr(Operator, name)
    for name in vars(Operator)
    if name != "act" and not name.startswith("_")
}


class Chores(Actor):
    def act(self):
        now = self.driver.now()
        name = self.chance.choice(["expire", "prune", "sweep"])
        if name == "sweep":
            self.driver.sweep(now=now, max_lease_losses=MAX_LEASE_LOSSES)
        else:
            for _ in {"expire": expire, "prune": prune}[name](self.driver, now=now):
                pass
        return name


def drain():
    """Work off what is left, as a worker that nothing happens to; return what was settled."""
    driver, settled = driver_for("default"), []
    operations.resume(QUEUE)
    while Job.objects.filter(state__in=OPEN).exists():
        held = driver.reserve(QUEUE, now=driver.now(), lease_for=timedelta(seconds=30), limit=100)
        acks = [
            Outcome(
                job_id=each.job.id,
                token=each.lease.token,
                version=each.lease.version,
                kind=OutcomeKind.ACK,
            )
            for each in held
        ]
        assert driver.settle(acks, now=driver.now()) == []
        settled += [(*_run(ack), ack.kind.value) for ack in acks]
    driver.sweep(now=driver.now())
    return settled
