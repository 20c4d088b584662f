"""
The places where a crash could split a verb, as scenes: what was there, what is done, what must be
possible afterwards.
"""

import pickle
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from .drivers import END, FORMS, acks, hold, job, outcome, put, reclaim, take
from .raw import NOW


@dataclass(frozen=True)
class Scene:
    """What one verb is about to do when it is split."""

    form: str
    facts: Any = None

    @property
    def driver(self):
        return FORMS[self.form]()


class Verb:
    """A verb with what it finds and what a second try must make of it."""

    survives = False
    """the crash comes after the commit: only the reply is lost"""

    def prepare(self, driver):
        """Store what the verb will find, and return what it must know."""

    def act(self, driver, facts):
        raise NotImplementedError

    def recover(self, driver, facts):
        """Do what the next worker would; assert that the verb's work gets done, once."""
        raise NotImplementedError


class Enqueue(Verb):
    def prepare(self, driver):
        return f"key-{uuid4()}"

    def act(self, driver, facts):
        put(driver, idempotency_key=facts)

    def recover(self, driver, facts):
        (first,) = put(driver, idempotency_key=facts)
        assert put(driver, idempotency_key=facts) == [first]
        assert [held.job.id for held in take(driver, limit=9)] == [first]


class Reserve(Verb):
    def prepare(self, driver):
        return put(driver, 2, run_at=END), uuid4()

    def act(self, driver, facts):
        take(driver, now=END, limit=9, token=facts[1])

    def recover(self, driver, facts):
        taken = take(driver, now=END, limit=9)
        assert [(held.job.id, held.lease.version) for held in taken] == [(i, 1) for i in facts[0]]


class Claim(Reserve):
    def prepare(self, driver):
        return put(driver, 2), uuid4()


class ReserveWithoutReply(Claim):
    survives = True

    def recover(self, driver, facts):
        ids, call = facts
        held = driver.held(call, now=END)
        assert [each.job.id for each in held] == ids
        assert take(driver, now=END, limit=9) == []
        assert driver.settle(acks(held), now=END) == []


class Settle(Verb):
    def prepare(self, driver):
        held = hold(driver, 5)
        kinds = ("ack", "retry", "fail", "release", "cancel")
        pairs = zip(kinds, held, strict=True)
        return held, [outcome(kind, each, record=kind == "ack") for kind, each in pairs]

    def act(self, driver, facts):
        driver.settle(facts[1], now=NOW)

    def recover(self, driver, facts):
        held, outcomes = facts
        assert driver.settle(outcomes, now=NOW) == []
        states = [job(each).state for each in held]
        assert states == ["done", "ready", "dead", "ready", "cancelled"]
        assert [each.repeated for each in driver.settle(outcomes, now=NOW)] == [True] * 5


class SettleWithoutReply(Settle):
    survives = True

    def prepare(self, driver):
        held = hold(driver, 3)
        return held, acks(held)

    def recover(self, driver, facts):
        held, outcomes = facts
        assert [each.repeated for each in driver.settle(outcomes, now=NOW)] == [True] * 3
        assert {job(each).state for each in held} == {"done"}


class Reclaim(Verb):
    def prepare(self, driver):
        return hold(driver, 3)

    def act(self, driver, facts):
        reclaim(driver)

    def recover(self, driver, facts):
        taken = take(driver, now=END, limit=9)
        assert [each.job.id for each in taken] == [each.job.id for each in facts]
        assert {job(each).lease_losses for each in facts} == {1}
        assert driver.settle(acks(taken), now=END) == []


class Sweep(Reclaim):
    def prepare(self, driver):
        from taskharbor_django.models import Lease

        held = hold(driver, 3)
        Lease.objects.all().delete()
        return held

    def act(self, driver, facts):
        driver.sweep(now=NOW)

    def recover(self, driver, facts):
        assert driver.sweep(now=NOW) == len(facts)
        assert {(job(each).state, job(each).lease_losses) for each in facts} == {("ready", 1)}


class Cancel(Verb):
    def prepare(self, driver):
        return hold(driver, 2)

    def act(self, driver, facts):
        from taskharbor_django.operations import cancel

        return cancel([each.job.id for each in facts], force=True)

    def recover(self, driver, facts):
        assert self.act(driver, facts).moved == 2
        assert self.act(driver, facts).left == {"ended": 2}


BOTH, SET_BASED, PORTABLE = ("set-based", "portable"), ("set-based",), ("portable",)

PLACES = {
    "enqueue.keys_taken": (Enqueue, BOTH),
    "reserve.peeked": (Reserve, BOTH),
    "promote.locked": (Reserve, PORTABLE),
    "claim.leased": (Claim, PORTABLE),
    "claim.done": (ReserveWithoutReply, SET_BASED),
    "settle.acked": (SettleWithoutReply, SET_BASED),
    "settle.locked": (Settle, BOTH),
    "settle.moved": (Settle, BOTH),
    "settle.reported": (Settle, BOTH),
    "reclaim.leases_locked": (Reclaim, BOTH),
    "reclaim.jobs_moved": (Reclaim, BOTH),
    "sweep.jobs_locked": (Sweep, BOTH),
    "sweep.jobs_moved": (Sweep, BOTH),
    "cancel.locked": (Cancel, BOTH),
}


def play(name, stream):
    """Do it in a process of its own, which TASKHARBOR_FAILPOINTS may kill on the way."""
    scene = pickle.load(stream)  # noqa: S301  written by the test
    PLACES[name][0]().act(scene.driver, scene.facts)
