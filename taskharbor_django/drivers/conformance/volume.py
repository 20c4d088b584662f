"""Volume: a thousand jobs in one call are treated like one."""

from __future__ import annotations

from uuid import uuid4

from ...exceptions import LeaseMismatch
from ...lifecycle import OutcomeKind
from .harness import Harness
from .terms import HOUR, LEASE, SECOND, T0, outcome, same

MANY = 1_000
# Where the kinds of OutcomeKind, in their order, lead.
STATES = ["done", "ready", "dead", "ready", "cancelled"]


class VolumeRules(Harness):
    def test_a_thousand_jobs_go_through_in_one_call_each(self) -> None:
        ids = self.put_many(MANY, payload=b"x" * 100)
        same(len(set(ids)), MANY)
        held = self.take(limit=2 * MANY)
        same([each.job.id for each in held], ids)
        token = held[0].lease.token
        same({each.lease.token for each in held}, {token})
        same(list(self.driver.extend_leases([token], now=T0, lease_for=LEASE)), [token])
        same(len(self.driver.held(token, now=T0)), MANY)
        same(self.driver.settle([outcome(OutcomeKind.ACK, each) for each in held], now=T0), [])
        same(self.driver.held(token, now=T0), [])
        same(self.take(limit=MANY, now=T0 + HOUR), [])
        same({self.look(job_id).state for job_id in ids[::97]}, {"done"})

    def test_of_a_thousand_outcomes_exactly_the_bad_ones_are_rejected(self) -> None:
        held = self.hold_many(MANY)
        kinds = list(OutcomeKind) * (MANY // 5)
        outcomes = list(map(outcome, kinds, held))
        outcomes[::10] = [outcome(OutcomeKind.ACK, each, token=uuid4()) for each in held[::10]]
        rejected = self.driver.settle(outcomes, now=T0 + SECOND)
        same({each.outcome for each in rejected}, set(outcomes[::10]))
        same({type(each.error) for each in rejected}, {LeaseMismatch})
        expected = ["inflight", *STATES[1:], *STATES] * 2
        same([self.look(each.job.id).state for each in held[-20:]], expected)

    def test_a_thousand_jobs_of_one_lease_are_reclaimed_together(self) -> None:
        held = self.hold_many(MANY)
        again = self.take(held[0].job.queue, limit=MANY, now=T0 + LEASE)
        same([each.job.id for each in again], [each.job.id for each in held])
        same({each.job.lease_losses for each in again}, {1})
        same(len({each.lease.token for each in again}), MANY)

    def test_a_thousand_due_jobs_become_ready(self) -> None:
        ids = self.put_many(MANY, run_at=T0 + SECOND)
        same(self.take(limit=MANY, now=T0), [])
        same(self.take_ids(limit=MANY, now=T0 + SECOND), ids)

    def test_a_thousand_keys_are_known_in_one_batch(self) -> None:
        records = [self.record(idempotency_key=f"key-{n}") for n in range(MANY)]
        ids = self.driver.enqueue_many(records)
        again = [self.record(idempotency_key=f"key-{n}") for n in range(MANY)]
        same(self.driver.enqueue_many(again), ids)
        same(len(self.take(limit=2 * MANY)), MANY)
