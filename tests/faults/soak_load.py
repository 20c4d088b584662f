"""What the soak gives its workers to do, and what its operators do to that."""

import contextlib
import random
import threading
import time
from collections import Counter
from datetime import timedelta

from django.db import InterfaceError, InternalError, OperationalError, connection, transaction

from taskharbor_django import chain, chord, graph, group, operations
from taskharbor_django.lifecycle import Priority
from taskharbor_django.models import Job, Workflow
from taskharbor_django.operations import Selection, WorkflowHandle
from taskharbor_django.operations.expire import expire
from taskharbor_django.operations.prune import prune
from taskharbor_django.operations.storage import driver_for
from tests.testapp import fault_tasks as tasks

QUEUES = ("default", "second", "third")
AT_MOST_OPEN = 120
PACE, OPERATORS_PACE = 0.05, 0.4
OPEN = ("blocked", "scheduled", "ready", "inflight")
RECENT = 300
AWAY = (InterfaceError, InternalError, OperationalError)  # or read-only


class Undone(Exception):
    """Raised to roll an enqueue back."""


class Actor(threading.Thread):
    """Acts again and again until told to stop; a database that is away is no reason to."""

    def __init__(self, seed, pace):
        super().__init__(daemon=True)
        self.chance = random.Random(seed)
        self.did = Counter()
        self.away = 0
        self.error = None
        self._pace = pace
        self._enough = threading.Event()

    def run(self):
        try:
            while not self._enough.wait(self._pace * self.chance.uniform(0.5, 1.5)):
                self._act_or_wait()
        except BaseException as error:  # told at the end, by the thread that checks
            self.error = error
            raise
        finally:
            connection.close()

    def _act_or_wait(self):
        try:
            self.act()
        except AWAY:
            self.away += 1
            connection.close()
            self._enough.wait(0.3)

    def stop(self):
        self._enough.set()
        self.join(120)
        assert not self.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error

    def act(self):
        raise NotImplementedError


# -- jobs ----------------------------------------------------------------------------------------


def death(chance):
    return chance.choice(["exit", "kill", "segfault"])


def stumble(chance):
    how = chance.choice(["SystemExit", "KeyboardInterrupt", "GeneratorExit", "RecursionError"])
    return chance.choice([tasks.stumble, tasks.stumble_apart]).call(how)


def hostile(chance):
    what = chance.choice([name for name in tasks.HOSTILE if name != "large"])
    return tasks.utter.call(what, chance.choice(list(tasks.UTTERANCES)))


# weight, how one is made, and as what it must end if nobody interferes: done (True), dead (False)
KINDS = {
    "fast": (30, lambda _: tasks.touch.call(), True),
    "async": (12, lambda _: tasks.atouch.call(), True),
    "slow": (10, lambda chance: tasks.slow.call(chance.uniform(0.02, 0.5)), True),
    "long": (2, lambda chance: tasks.slow.call(chance.uniform(2, 8)), True),
    "later": (8, lambda chance: tasks.touch.using(delay=chance.uniform(0.1, 10)).call(), True),
    "failing once": (6, lambda _: tasks.fail_once.call(), True),
    "always failing": (3, lambda _: tasks.fail_always.call(), False),
    "isolated": (3, lambda _: tasks.touch_apart.call(), True),
    "snoozing": (3, lambda _: tasks.snooze_once.call(), True),
    "atomic": (4, lambda _: tasks.book.call(), True),
    "parent": (2, lambda _: tasks.have_children.call(2), True),
    "atomic parent": (2, lambda _: tasks.have_children_atomically.call(2), True),
    "short-lived": (
        2,
        lambda chance: tasks.slow.using(lifetime=2).call(chance.uniform(0, 3)),
        None,
    ),
    "too slow": (1, lambda _: tasks.slow.using(timeout=0.3).call(1.0), False),
    "crashing": (0.15, lambda chance: tasks.poison.call(death(chance)), False),
    "crashing coroutine": (0.15, lambda chance: tasks.apoison.call(death(chance)), False),
    "crashing apart": (0.3, lambda chance: tasks.poison_apart.call(death(chance)), False),
    "endless": (0.5, lambda _: tasks.spin.call(), False),
    "endless coroutine": (0.5, lambda _: tasks.aspin.call(), False),
    "endless apart": (0.3, lambda _: tasks.spin_apart.call(), False),
    "stumbling": (1, stumble, False),
    "hostile": (1, hostile, None),
}


def _chain(chance):
    return chain(*(tasks.touch.si() for _ in range(chance.randint(2, 4))))


def _chord(chance):
    members = [tasks.touch.s() for _ in range(chance.randint(1, 6))]
    if chance.random() < 0.2:
        members.append(tasks.fail_always.s())
    return chord(members, tasks.gather.s(), run_on_failure=chance.random() < 0.5)


def _adding(chance):
    return chain(tasks.spread.si(chance.randint(1, 4)), tasks.touch.si())


def _any(chance):
    nodes = {"a": tasks.touch.s(), "b": tasks.fail_once.s(), "c": tasks.touch.si()}
    return graph(nodes, after_any={"c": ["a", "b"]})


WORKFLOWS = (
    _chain,
    _chord,
    _chord,
    _adding,
    _any,
    lambda _: group(tasks.touch.s(), tasks.book.s()),
)


class Load(Actor):
    """Enqueues jobs and workflows, some in transactions that are rolled back."""

    def __init__(self, seed):
        super().__init__(f"{seed} load", PACE)
        self.enqueued, self.rolled_back = set(), set()
        self.must_be_done, self.must_be_dead = set(), set()

    def act(self):
        if Job.objects.filter(state__in=OPEN).count() > AT_MOST_OPEN:
            return
        draw = self.chance.random()
        if draw < 0.05:
            self._roll_back()
        elif draw < 0.06:
            self._take_long_to_commit()
        elif draw < 0.15:
            self.chance.choice(WORKFLOWS)(self.chance).enqueue()
            self.did["workflows"] += 1
        else:
            self._enqueue_some()

    def _call(self):
        (name,) = self.chance.choices(list(KINDS), [weight for weight, *_ in KINDS.values()])
        _, make, must = KINDS[name]
        call = make(self.chance)
        task = call.task.using(queue=self.chance.choice(QUEUES))
        return name, task.s(*call.args, **call.kwargs), must

    def _enqueue_some(self):
        for _ in range(self.chance.randint(1, 5)):
            self._note(*self._enqueue_one())

    def _enqueue_one(self):
        name, signature, must = self._call()
        return name, signature.enqueue(), must

    def _note(self, name, handle, must):
        self.enqueued.add(handle.id)
        self.did[name] += 1
        if must is not None:
            (self.must_be_done if must else self.must_be_dead).add(handle.id)

    def _take_long_to_commit(self):
        """Workers see nothing of these meanwhile, and all of them at once afterwards."""
        with transaction.atomic():
            made = [self._enqueue_one() for _ in range(5)]
            time.sleep(self.chance.uniform(0.5, 3))
        for one in made:
            self._note(*one)
        self.did["long transactions"] += 1

    def _roll_back(self):
        made = set()
        with contextlib.suppress(Undone), transaction.atomic():
            _, signature, _ = self._call()
            made.add(signature.enqueue().id)
            raise Undone
        self.rolled_back |= made
        self.did["rolled back"] += 1


# -- operators -----------------------------------------------------------------------------------


class Operators(Actor):
    """People, and chores that somebody runs by hand, who meet jobs in every state."""

    def __init__(self, seed):
        super().__init__(f"{seed} operators", OPERATORS_PACE)
        self.touched = set()
        self.moved = Counter()

    def act(self):
        verb = self.chance.choice(VERBS)
        done = verb(self)
        self.did[verb.__name__] += 1
        self.moved[verb.__name__] += getattr(done, "moved", 0) + getattr(done, "asked", 0)

    def some(self, *states, most=5, alone=False):
        jobs = Job.objects.filter(state=self.chance.choice(states)).order_by("-updated_at")
        jobs = jobs.filter(workflow=None) if alone else jobs
        ids = list(jobs.values_list("pk", flat=True)[:RECENT])
        return self.chance.sample(ids, min(len(ids), self.chance.randint(1, most)))

    def mark(self, ids):
        """Whatever becomes of these, it is because of a person."""
        self.touched.update(ids)
        return ids

    def requeue_all(self):
        return operations.requeue(Selection(state="dead"), note="soak")

    def requeue_some(self):
        ids = self.some("dead", "done", "inflight", most=20)
        return operations.requeue(ids, one_more=self.chance.random() < 0.3, delay=1)

    def cancel_some(self):
        return operations.cancel(self.mark(self.some(*OPEN)))

    def cancel_by_force(self):
        return operations.cancel(self.mark(self.some("inflight", "ready", most=2)), force=True)

    def cancel_a_workflow(self):
        found = list(Workflow.objects.filter(finished_at=None).values_list("pk", flat=True)[:50])
        if not found:
            return None
        handle = WorkflowHandle.of(self.chance.choice(found))
        return handle.cancel(force=self.chance.random() < 0.5)

    def resume_a_workflow(self):
        dead = Job.objects.filter(state="dead").exclude(workflow=None)
        found = list(dead.values_list("workflow", flat=True)[:50])
        return WorkflowHandle.of(self.chance.choice(found)).resume() if found else None

    def bury_some(self):
        return operations.bury(self.mark(self.some(*OPEN, most=2)), note="soak")

    def discard_some(self):
        return operations.discard(self.mark(self.some("dead", "done", most=3)), note="soak")

    def replay_some(self):
        return operations.replay(self.mark(self.some("dead", most=3)))

    def run_now_all(self):
        return operations.run_now(Selection(state="scheduled"))

    def update_some(self):
        now = driver_for("default").now()
        terms = self.chance.choice(
            [
                {"priority": self.chance.choice(list(Priority))},
                {"queue": self.chance.choice(QUEUES)},
                {"run_at": now + timedelta(seconds=self.chance.uniform(-1, 3))},
                {"tags": {"a": "b"}},
            ]
        )
        return operations.update(self.some(*OPEN, most=20), **terms)

    def erase_some(self):
        return operations.erase(self.mark(self.some("done", "cancelled", "ready", alone=True)))

    def pause_a_queue(self):
        until = driver_for("default").now() + timedelta(seconds=self.chance.uniform(0.5, 3))
        operations.pause(self.chance.choice(QUEUES), until=until)

    def resume_a_queue(self):
        operations.resume(self.chance.choice(QUEUES))

    def chores(self):
        driver = driver_for("default")
        for _ in expire(driver, now=driver.now()):
            pass
        for _ in prune(driver, now=driver.now()):
            pass
        driver.sweep(now=driver.now(), max_lease_losses=1000)

    def hold_a_snapshot(self):
        """Look at jobs in a transaction that stays open for a while."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM taskharbor_job")
            time.sleep(self.chance.uniform(0.5, 3))

    def get_in_the_way(self):
        """A stranger who locks jobs one by one, in an order of its own: a deadlock now and then."""
        with transaction.atomic():
            for job in self.some("ready", "inflight", most=20):
                Job.objects.select_for_update().filter(pk=job).first()
                time.sleep(0.02)


VERBS = (
    Operators.requeue_all,
    Operators.requeue_some,
    Operators.requeue_some,
    Operators.cancel_some,
    Operators.cancel_some,
    Operators.cancel_by_force,
    Operators.cancel_by_force,
    Operators.cancel_a_workflow,
    Operators.resume_a_workflow,
    Operators.bury_some,
    Operators.discard_some,
    Operators.replay_some,
    Operators.run_now_all,
    Operators.update_some,
    Operators.update_some,
    Operators.erase_some,
    Operators.pause_a_queue,
    Operators.resume_a_queue,
    Operators.chores,
    Operators.hold_a_snapshot,
    Operators.get_in_the_way,
)
