"""Close: every later call is refused, before anything else is looked at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

from ...exceptions import DriverClosed
from ...lifecycle import OutcomeKind
from ...values import Outcome
from .harness import Harness
from .terms import FAILURE, LEASE, T0, outcome, refused

NOTHING = timedelta(0)
NAIVE = T0.replace(tzinfo=None)


class ClosingRules(Harness):
    def test_a_closed_driver_refuses_every_call(self) -> None:
        held = self.hold()
        job_id, token = held.job.id, held.lease.token
        driver = self.driver
        driver.close()
        calls: dict[str, Callable[[], object]] = {
            "enqueue": lambda: driver.enqueue(self.record()),
            "enqueue_many": lambda: driver.enqueue_many([self.record()]),
            "reserve": self.take,
            "held": lambda: driver.held(token, now=T0),
            "expire_leases": lambda: driver.expire_leases("w", now=T0),
            "extend_leases": lambda: driver.extend_leases([token], now=T0, lease_for=LEASE),
            "extend_lease": lambda: driver.extend_lease(job_id, token, now=T0, lease_for=LEASE),
            "settle": lambda: driver.settle([outcome(OutcomeKind.ACK, held)], now=T0),
            "ack": lambda: driver.ack(job_id, token, now=T0),
            "retry": lambda: driver.retry(job_id, token, now=T0, update=FAILURE),
            "fail": lambda: driver.fail(job_id, token, now=T0, reason="exhausted"),
            "release": lambda: driver.release(job_id, token, now=T0),
            "sweep": lambda: driver.sweep(now=T0),
        }
        for verb, call in calls.items():
            refused(DriverClosed, call, about=verb)

    def test_a_closed_driver_refuses_also_calls_that_would_do_nothing(self) -> None:
        driver = self.driver
        driver.close()
        calls: dict[str, Callable[[], object]] = {
            "enqueue_many": lambda: driver.enqueue_many([]),
            "extend_leases": lambda: driver.extend_leases([], now=T0, lease_for=LEASE),
            "settle": lambda: driver.settle([], now=T0),
        }
        for verb, call in calls.items():
            refused(DriverClosed, call, about=verb)

    def test_closed_comes_before_every_other_error(self) -> None:
        driver, job_id, token = self.driver, uuid4(), uuid4()
        known = self.record()
        driver.enqueue(known)
        driver.close()
        bad = Outcome(job_id=job_id, token=token, kind=OutcomeKind.FAIL, reason="because")
        calls: dict[str, Callable[[], object]] = {
            "enqueue, invalid": lambda: driver.enqueue(self.record(task="")),
            "enqueue, duplicate": lambda: driver.enqueue(known),
            "reserve, limit": lambda: self.take(limit=0),
            "reserve, duration": lambda: self.take(lease_for=NOTHING),
            "reserve, naive": lambda: self.take(now=NAIVE),
            "held, naive": lambda: driver.held(token, now=NAIVE),
            "extend_leases": lambda: driver.extend_leases([token], now=T0, lease_for=NOTHING),
            "extend_lease": lambda: driver.extend_lease(job_id, token, now=T0, lease_for=NOTHING),
            "settle, reason": lambda: driver.settle([bad], now=T0),
            "settle, naive": lambda: driver.settle([], now=NAIVE),
            "ack, unknown": lambda: driver.ack(job_id, token, now=T0),
            "fail, reason": lambda: driver.fail(job_id, token, now=T0, reason="because"),
            "sweep, naive": lambda: driver.sweep(now=NAIVE),
        }
        for verb, call in calls.items():
            refused(DriverClosed, call, about=verb)

    def test_closing_twice_is_closing_once(self) -> None:
        self.driver.close()
        self.driver.close()
        refused(DriverClosed, self.take)
