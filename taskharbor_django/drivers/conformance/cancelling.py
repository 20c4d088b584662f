"""Cancel: a request that the worker may still outrun, and a token that is taken away."""

from __future__ import annotations

from typing import Any

from ...exceptions import JobNotInflight
from ...lifecycle import OutcomeKind
from .harness import Harness
from .terms import HOUR, LEASE, SECOND, T0, changed, outcome, same

NOW = T0 + SECOND
CANCELLED: dict[str, Any] = {
    "state": "cancelled",
    "lease": None,
    "lease_expires_at": None,
    "finished_at": NOW,
}


class CancelRules(Harness):
    def test_a_normal_return_wins_over_a_request(self) -> None:
        held = self.hold()
        self.request_cancel(self.driver, held.job.id, T0)
        same(self.effect(OutcomeKind.ACK, held, NOW), {"state": "done", "finished_at": NOW})

    def test_a_burial_wins_over_a_request(self) -> None:
        held = self.hold()
        self.request_cancel(self.driver, held.job.id, T0)
        self.settle(OutcomeKind.FAIL, held, NOW)
        job = self.look(held.job.id)
        same((job.state, job.dead_letters), ("dead", 1))

    def test_a_job_that_would_be_given_back_ends_cancelled_instead(self) -> None:
        for kind, facts in (
            (OutcomeKind.RETRY, {}),
            (OutcomeKind.RELEASE, {}),
            (OutcomeKind.RELEASE, {"run_at": T0 + HOUR}),
        ):
            held = self.hold()
            self.request_cancel(self.driver, held.job.id, T0)
            effect = self.effect(kind, held, NOW, **facts)
            same({name: effect.get(name) for name in CANCELLED}, CANCELLED, kind)
            job = self.look(held.job.id)
            same((job.run_at, job.dead_letters, job.lease_losses), (None, 0, 0), kind)
            same(self.take(held.job.queue, now=T0 + 2 * HOUR), [], kind)

    def test_a_requested_cancel_is_carried_out(self) -> None:
        held = self.hold()
        self.request_cancel(self.driver, held.job.id, T0)
        same(self.effect(OutcomeKind.CANCEL, held, NOW), CANCELLED)

    def test_a_reclaim_carries_out_the_request_and_charges_nobody(self) -> None:
        held = self.hold()
        self.request_cancel(self.driver, held.job.id, T0)
        self.lose(held, max_lease_losses=1)
        job = self.look(held.job.id)
        same((job.state, job.lease, job.finished_at), ("cancelled", None, held.lease.expires_at))
        same((job.lease_losses, job.dead_letters, job.reason), (0, 0, ""))

    def test_a_sweep_carries_out_the_request_too(self) -> None:
        held = self.hold()
        self.request_cancel(self.driver, held.job.id, T0)
        self.drop_lease(self.driver, held.lease.token)
        self.driver.sweep(now=NOW)
        same((self.look(held.job.id).state, self.look(held.job.id).lease), ("cancelled", None))

    def test_a_request_leaves_the_lease_alone(self) -> None:
        held = self.hold()
        self.request_cancel(self.driver, held.job.id, T0)
        same(self.take(held.job.queue, now=NOW), [])
        token = held.lease.token
        same(list(self.driver.extend_leases([token], now=NOW, lease_for=LEASE)), [token])

    def test_a_request_concerns_one_job_of_a_lease(self) -> None:
        asked, other = self.hold_many(2)
        self.request_cancel(self.driver, asked.job.id, T0)
        self.lose(asked)
        states = self.look(asked.job.id).state, self.look(other.job.id).state
        same(states, ("cancelled", "ready"))

    def test_after_a_forced_cancel_nothing_the_worker_does_is_accepted(self) -> None:
        for kind in OutcomeKind:
            held = self.hold()
            self.take_token(self.driver, held.job.id, T0)
            before = self.look(held.job.id)
            rejected = self.driver.settle([outcome(kind, held)], now=NOW)
            same([type(each.error) for each in rejected], [JobNotInflight], kind)
            same(changed(before, self.look(held.job.id)), {}, kind)
            same((before.state, before.lease), ("cancelled", None), kind)

    def test_a_lease_without_the_job_that_was_taken_from_it_is_not_renewed(self) -> None:
        held = self.hold()
        self.take_token(self.driver, held.job.id, T0)
        same(self.driver.extend_leases([held.lease.token], now=NOW, lease_for=LEASE), {})
        same(self.driver.held(held.lease.token, now=NOW), [])

    def test_the_neighbours_of_a_taken_job_keep_their_lease(self) -> None:
        taken, other = self.hold_many(2)
        self.take_token(self.driver, taken.job.id, T0)
        token = other.lease.token
        same(list(self.driver.extend_leases([token], now=NOW, lease_for=LEASE)), [token])
        self.settle(OutcomeKind.ACK, other, NOW)
