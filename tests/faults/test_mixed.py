"""
Jobs of every kind while workers are hurt at random: each ends as its kind must, and once.

TASKHARBOR_MIXED_JOBS says how many, TASKHARBOR_MIXED_SEED repeats a run as far as chance goes.
"""

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from django.db import connection
from django.db.models import Count, Max, Sum

from taskharbor_django import enqueue_many
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease
from tests.process.harness import kill, wait_until
from tests.testapp import fault_tasks as tasks

from .crew import freeze, stopped
from .history import late_starts

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.sqlite]

JOBS = int(os.environ.get("TASKHARBOR_MIXED_JOBS", "10000"))
SEED = int(os.environ.get("TASKHARBOR_MIXED_SEED") or random.SystemRandom().randrange(1, 10**9))
WORKERS, THREADS, LEASE, CHILDREN = 3, 4, 3.0, 3
LOOK_EACH = 0.2
# How often a worker is hurt, of a thousand jobs.
HURTS = {"killed": 1.5, "stopped": 0.6, "told to end": 0.9}
# How a worker may end: told to, or by a kill or poison.
TOLD, BY_FORCE = {0}, {3, -signal.SIGKILL, -signal.SIGSEGV}

DONE, FAILED_ONCE, EXHAUSTED = ("done", 0), ("done", 1), ("dead", 3)
POISONED = ("dead", 2)


@dataclass(frozen=True)
class Kind:
    """How many of a hundred, how one is made, and how it must end: its state and its attempts."""

    share: float
    call: object
    end: tuple
    least: int = 1

    def count(self, jobs):
        return max(self.least, round(jobs * self.share / 100))


def deaths(chance):
    return chance.choice(["exit", "kill", "segfault"])


KINDS = {
    "fast": Kind(45, lambda _: tasks.touch.call(), DONE),
    "async": Kind(15, lambda _: tasks.atouch.call(), DONE),
    "slow": Kind(8, lambda chance: tasks.slow.call(chance.uniform(0.02, 0.3)), DONE),
    "scheduled": Kind(
        8, lambda chance: tasks.touch.using(delay=chance.uniform(0.1, 20)).call(), DONE
    ),
    "failing once": Kind(8, lambda _: tasks.fail_once.call(), FAILED_ONCE),
    "always failing": Kind(4, lambda _: tasks.fail_always.call(), EXHAUSTED),
    "isolated": Kind(4, lambda _: tasks.touch_apart.call(), DONE),
    "snoozing": Kind(2, lambda _: tasks.snooze_once.call(), DONE),
    "atomic": Kind(2, lambda _: tasks.book.call(), DONE),
    "parent": Kind(2, lambda _: tasks.have_children.call(CHILDREN), DONE),
    "atomic parent": Kind(1.5, lambda _: tasks.have_children_atomically.call(CHILDREN), DONE),
    "crashing apart": Kind(
        0.3, lambda chance: tasks.poison_apart.call(deaths(chance)), POISONED, least=2
    ),
    "crashing": Kind(0.1, lambda chance: tasks.poison.call(deaths(chance)), POISONED, least=2),
    "crashing coroutine": Kind(
        0.1, lambda chance: tasks.apoison.call(deaths(chance)), POISONED, least=1
    ),
}


@dataclass
class Crowd:
    """Workers, of which one is hurt now and then; whoever has ended is replaced."""

    crew: object
    chance: random.Random
    workers: list = field(default_factory=list)
    stopped: dict = field(default_factory=dict)  # worker -> when it may go on
    told: set = field(default_factory=set)
    hurt: Counter = field(default_factory=Counter)
    started: int = 0
    died: int = 0

    def keep_up(self):
        self._let_go_on(time.monotonic())
        for worker in [worker for worker in self.workers if not worker.alive]:
            self._bury(worker)
        while len(self.workers) < WORKERS:
            self._start()

    @property
    def well(self):
        """Nobody is stopped or about to end."""
        return not self.stopped and self.told.isdisjoint(self.workers)

    def _start(self):
        # Whoever is killed is innocent, however often it happens to the same job.
        settings = {"MAX_LEASE_LOSSES": 1000}
        started = self.crew.start(
            lease=LEASE, threads=THREADS, settings=settings, ends=TOLD | BY_FORCE
        )
        self.workers.append(started)
        self.started += 1

    def _bury(self, worker):
        code = worker.exit_code()
        assert code in BY_FORCE | (TOLD if worker in self.told else set()), worker.output
        self.died += code != 0
        self.workers.remove(worker)
        self.stopped.pop(worker, None)

    def _let_go_on(self, now):
        for worker in [worker for worker, until in self.stopped.items() if until < now]:
            del self.stopped[worker]
            kill(worker.pid, signal.SIGCONT)

    def hurt_one(self, how):
        """Hurt one that works; return whether there was one."""
        busy = [
            worker
            for worker in self.workers
            if worker not in self.stopped and worker not in self.told and worker.lines("is ready")
        ]
        if not busy:
            return False
        done = HURT[how](self, self.chance.choice(busy))
        self.hurt[how] += done
        return done

    def kill(self, worker):
        kill(worker.pid)
        return True

    def stop(self, worker):
        """Past its lease, wherever it is; but with SQLite's lock it would stop everybody."""
        if connection.vendor == "sqlite":
            freeze(worker)
        else:
            kill(worker.pid, signal.SIGSTOP)
            stopped(worker)
        if not worker.alive:  # poison was quicker
            return False
        self.stopped[worker] = time.monotonic() + LEASE * self.chance.uniform(1.2, 2)
        return True

    def tell(self, worker):
        kill(worker.pid, signal.SIGTERM)
        self.told.add(worker)
        return True


HURT = {"killed": Crowd.kill, "stopped": Crowd.stop, "told to end": Crowd.tell}


def enqueue_all(crew, chance):
    """Store the crowd in random order; return the kind of each job."""
    names = [name for name, kind in KINDS.items() for _ in range(kind.count(JOBS))]
    chance.shuffle(names)
    ids = []
    enqueue_many((KINDS[name].call(chance) for name in names), on_batch=ids.extend)
    crew.history.enqueued.update(ids)
    return dict(zip(ids, names, strict=True))


def plan(chance, total):
    """When to hurt whom: by progress and not by time, so that a slow machine has work done, too."""
    hows = [how for how, rate in HURTS.items() for _ in range(max(2, round(JOBS * rate / 1000)))]
    return sorted((chance.randrange(total * 9 // 10), how) for how in hows)


def work(crowd, total, hurts):
    """Let the crowd end all jobs, and hurt it meanwhile."""

    def over():
        time.sleep(LOOK_EACH)  # counting is not for free
        crowd.keep_up()
        ended = Job.objects.ended().count()
        if hurts and ended >= hurts[0][0] and crowd.hurt_one(hurts[0][1]):
            hurts.pop(0)
        return ended >= total and not hurts and crowd.well

    wait_until(over, timeout=120 + JOBS * 0.1, what="the end of all jobs")


def test_jobs_of_every_kind_end_as_they_must_while_workers_are_hurt(crew, record_property):
    chance = random.Random(SEED)
    print(f"TASKHARBOR_MIXED_JOBS={JOBS} TASKHARBOR_MIXED_SEED={SEED}")  # noqa: T201
    began = time.monotonic()
    kinds = enqueue_all(crew, chance)
    parents = [job for job, name in kinds.items() if name.endswith("parent")]
    total = len(kinds) + CHILDREN * len(parents)
    crowd = Crowd(crew, chance)
    work(crowd, total, plan(chance, total))
    took = time.monotonic() - began
    for name, value in facts_of(crowd, total, took).items():
        record_property(name, value)
    check_counts(kinds, crew.history)
    check_children(parents, total)
    record_property("late starts", late_starts(crew.history.facts()))
    crew.finish(stopped_anywhere=True)
    assert not Lease.objects.exists()


def facts_of(crowd, total, took):
    states = Job.objects.values_list("state").annotate(Count("pk")).order_by("state")
    sums = Job.objects.aggregate(Sum("executions"), Sum("lease_losses"), Max("lease_losses"))
    ends = Attempt.objects.values_list("end").annotate(Count("pk")).order_by("end")
    return {
        "seed": SEED,
        "jobs": total,
        "seconds": round(took),
        **dict(states),
        **{f"attempts {end}": count for end, count in ends},
        **sums,
        **crowd.hurt,
        "workers started": crowd.started,
        "workers died": crowd.died,
    }


def check_counts(kinds, history):
    """All of a kind have ended alike, and have as many failures recorded as they were charged."""
    ends = {pk: end for pk, *end in Job.objects.values_list("pk", "state", "attempts")}
    odd = [
        f"job {pk}: {name} ended as {ends[pk]}"
        for pk, name in kinds.items()
        if tuple(ends[pk]) != KINDS[name].end
    ]
    assert not odd, history.tell(odd)
    sizes = Counter(kinds.values())
    failures = Attempt.objects.filter(end="failed").values_list("job", flat=True)
    recorded = Counter(kinds[job] for job in failures)
    assert recorded == {
        name: size * attempts for name, size in sizes.items() if (attempts := KINDS[name].end[1])
    }
    losses = Job.objects.aggregate(total=Sum("lease_losses"))["total"]
    assert Attempt.objects.filter(end="lost").count() == losses
    dead = sum(size for name, size in sizes.items() if KINDS[name].end[0] == "dead")
    letters = DeadLetter.objects.values_list("reason").annotate(Count("pk"))
    assert dict(letters) == {"exhausted": dead}


def check_children(parents, total):
    """However often a parent ran, each child is there once."""
    children = dict(Job.objects.exclude(parent=None).values_list("parent").annotate(Count("pk")))
    assert children == dict.fromkeys(parents, CHILDREN)
    assert Job.objects.count() == total
    assert set(Job.objects.exclude(parent=None).values_list("state", "attempts")) == {DONE}
