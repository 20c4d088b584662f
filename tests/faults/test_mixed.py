"""
Jobs of every kind while workers are killed at random: each ends as its kind must, and once.

TASKHARBOR_MIXED_JOBS says how many, TASKHARBOR_MIXED_SEED repeats a run as far as chance goes.
"""

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from django.db.models import Count, Max, Sum

from taskharbor_django import enqueue_many
from taskharbor_django.models import DeadLetter, Job
from tests.process.harness import kill, wait_until
from tests.testapp import fault_tasks as tasks

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.sqlite]

JOBS = int(os.environ.get("TASKHARBOR_MIXED_JOBS", "1000"))
SEED = int(os.environ.get("TASKHARBOR_MIXED_SEED") or random.SystemRandom().randrange(1, 10**9))
WORKERS, THREADS, LEASE, CHILDREN = 3, 4, 3.0, 3
LOOK_EACH = 0.2

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
    """Workers, of which one is killed now and then; whoever has died is replaced."""

    crew: object
    chance: random.Random
    workers: list = field(default_factory=list)
    killed: int = 0
    died: int = 0

    def keep_up(self):
        alive = [worker for worker in self.workers if worker.alive]
        self.died += len(self.workers) - len(alive)
        while len(alive) < WORKERS:
            alive.append(
                self.crew.start(
                    lease=LEASE,
                    threads=THREADS,
                    # Whoever is killed is innocent, however often it happens to the same job.
                    settings={"MAX_LEASE_LOSSES": 1000},
                )
            )
        self.workers = alive

    def kill_one(self):
        kill(self.chance.choice(self.workers).pid)
        self.killed += 1


def enqueue_all(crew, chance):
    """Store the crowd in random order; return the kind of each job."""
    names = [name for name, kind in KINDS.items() for _ in range(kind.count(JOBS))]
    chance.shuffle(names)
    ids = []
    enqueue_many((KINDS[name].call(chance) for name in names), on_batch=ids.extend)
    crew.history.enqueued.update(ids)
    return dict(zip(ids, names, strict=True))


def test_jobs_of_every_kind_end_as_they_must_while_workers_are_killed(crew, record_property):
    chance = random.Random(SEED)
    print(f"TASKHARBOR_MIXED_JOBS={JOBS} TASKHARBOR_MIXED_SEED={SEED}")  # noqa: T201
    began = time.monotonic()
    kinds = enqueue_all(crew, chance)
    parents = [job for job, name in kinds.items() if name.endswith("parent")]
    total = len(kinds) + CHILDREN * len(parents)
    crowd = Crowd(crew, chance)
    # By progress and not by time: on a slow machine, too, work is done between two kills.
    kills = sorted(chance.randrange(total) for _ in range(max(5, JOBS // 300)))

    def over():
        time.sleep(LOOK_EACH)  # counting is not for free
        crowd.keep_up()
        ended = Job.objects.ended().count()
        if kills and ended >= kills[0]:
            kills.pop(0)
            crowd.kill_one()
        return ended >= total

    wait_until(over, timeout=120 + JOBS * 0.2, what="the end of all jobs")
    took = time.monotonic() - began
    assert Counter(ends_of(kinds)) == Counter(
        {(name, KINDS[name].end): count for name, count in Counter(kinds.values()).items()}
    )
    children = dict(Job.objects.exclude(parent=None).values_list("parent").annotate(Count("pk")))
    assert children == dict.fromkeys(parents, CHILDREN)
    assert Job.objects.count() == total
    assert set(Job.objects.exclude(parent=None).values_list("state", "attempts")) == {DONE}
    reasons = Counter(DeadLetter.objects.values_list("reason", flat=True))
    assert set(reasons) == {"exhausted"}
    facts = Job.objects.aggregate(Sum("executions"), Sum("lease_losses"), Max("lease_losses"))
    facts |= {"jobs": total, "seconds": round(took), "killed": crowd.killed, "died": crowd.died}
    for name, value in facts.items():
        record_property(name, value)
    print(facts)  # noqa: T201
    crew.finish()


def ends_of(kinds):
    for pk, state, attempts in Job.objects.values_list("pk", "state", "attempts"):
        if pk in kinds:
            yield kinds[pk], (state, attempts)
