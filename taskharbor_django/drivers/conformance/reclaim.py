"""Reclaim: expired leases taken back by reserve, lost ones by sweep; quarantine afterwards."""

from __future__ import annotations

from uuid import uuid4

from ...exceptions import JobNotInflight, LeaseExpired
from ...lifecycle import OutcomeKind
from ...values import Reservation
from .harness import Harness
from .terms import HOUR, LEASE, SECOND, T0, TICK, changed, different, outcome, refused, same


class ReclaimRules(Harness):
    def test_a_lost_lease_makes_the_job_runnable_at_once(self) -> None:
        job_id = self.put(run_at=T0 + SECOND)
        held = self.take_one(now=T0 + SECOND)
        before = self.look(job_id)
        self.lose(held)
        expected = {
            "state": "ready",
            "run_at": None,
            "lease": None,
            "lease_expires_at": None,
            "lease_losses": 1,
            "attempt_ends": ((1, "lost"),),
        }
        same(changed(before, self.look(job_id)), expected)

    def test_a_lease_is_reclaimed_at_exactly_its_end_and_not_a_tick_before(self) -> None:
        held = self.hold()
        before = self.look(held.job.id)
        self.turn(held.lease.expires_at - TICK)
        same(changed(before, self.look(held.job.id)), {})
        self.turn(held.lease.expires_at)
        same(self.look(held.job.id).state, "ready")

    def test_one_call_reclaims_and_reserves(self) -> None:
        held = self.hold()
        again = self.take_one(held.job.queue, now=held.lease.expires_at)
        same((again.job.lease_losses, again.lease.version), (1, 2))
        different(again.lease.token, held.lease.token)
        same(self.look(held.job.id).lease, again.lease.token)

    def test_all_jobs_of_an_expired_lease_are_reclaimed(self) -> None:
        held = self.hold_many(5)
        self.settle(OutcomeKind.ACK, held[0])
        self.settle(OutcomeKind.FAIL, held[1])
        self.lose(held[0])
        found = [self.look(each.job.id) for each in held]
        states = ["done", "dead", "ready", "ready", "ready"]
        same([job.state for job in found], states)
        same([job.lease_losses for job in found], [0, 0, 1, 1, 1])

    def test_a_valid_lease_is_left_alone_when_others_expire(self) -> None:
        short, long = self.hold(), self.hold(take={"lease_for": 2 * LEASE})
        before = self.look(long.job.id)
        self.lose(short)
        same(changed(before, self.look(long.job.id)), {})

    def test_losses_do_not_bury_without_a_limit(self) -> None:
        held = self.hold()
        for losses in range(1, 6):
            held = self.take_one(held.job.queue, now=held.lease.expires_at)
            same((held.job.lease_losses, held.job.attempts), (losses, 0))

    def test_the_loss_that_reaches_the_limit_buries(self) -> None:
        held = self.hold()
        for losses in (1, 2):
            self.lose(held, max_lease_losses=3)
            job = self.look(held.job.id)
            same((job.state, job.lease_losses), ("ready", losses))
            held = self.take_one(held.job.queue, now=held.lease.expires_at)
        before = self.look(held.job.id)
        self.lose(held, max_lease_losses=3)
        expected = {
            "state": "dead",
            "lease": None,
            "lease_expires_at": None,
            "lease_losses": 3,
            "finished_at": held.lease.expires_at,
            "failed_at": held.lease.expires_at,
            "failure_category": "system",
            "reason": "lease_lost",
            "dead_letters": 1,
            "attempt_ends": ((1, "lost"), (2, "lost"), (3, "lost")),
        }
        found = changed(before, self.look(held.job.id))
        same(bool(found.pop("last_error")), True)  # it says why, in words of its own
        same(found, expected)

    def test_a_limit_that_was_passed_already_buries_too(self) -> None:
        held = self.hold()
        held = self.take_one(held.job.queue, now=held.lease.expires_at)
        self.lose(held, max_lease_losses=1)
        job = self.look(held.job.id)
        same((job.state, job.lease_losses), ("dead", 2))

    def test_a_burial_spares_the_neighbours_that_are_below_the_limit(self) -> None:
        queue = self.new_queue()
        blemished = self.hold(queue=queue)
        self.lose(blemished)
        fresh = self.put(queue=queue, created_at=T0 + HOUR)
        held = self.take(queue, now=T0 + HOUR, limit=2)
        same(len(held), 2)
        self.lose(held[0], max_lease_losses=2)
        same((self.look(blemished.job.id).state, self.look(fresh).state), ("dead", "ready"))

    # -- quarantine ------------------------------------------------------------------------------

    def test_a_job_that_lost_a_lease_is_alone_in_its_next(self) -> None:
        queue = self.new_queue()
        lost = [each.job.id for each in self.hold_in(queue, 3)]
        self.turn(T0 + LEASE)
        fresh = self.put_many(2, queue=queue)
        call = uuid4()
        held = self.take(queue, now=T0 + LEASE, limit=10, token=call)
        tokens = {each.job.id: each.lease.token for each in held}
        same(set(tokens), {*lost, *fresh})
        same({tokens[job_id] for job_id in fresh}, {call})
        same(len({tokens[job_id] for job_id in lost} | {call}), 4)

    def test_a_job_stays_in_quarantine_after_a_retry(self) -> None:
        queue = self.new_queue()
        self.hold_in(queue, 2)
        held = self.take(queue, now=T0 + LEASE, limit=2)
        for each in held:
            self.settle(OutcomeKind.RETRY, each, T0 + LEASE)
        again = self.take(queue, now=T0 + LEASE, limit=2)
        same(len({each.lease.token for each in held + again}), 4)

    def test_a_call_can_take_quarantined_jobs_only(self) -> None:
        held = self.hold()
        call = uuid4()
        again = self.take_one(held.job.queue, now=held.lease.expires_at, token=call)
        different(again.lease.token, call, held.lease.token)
        same(self.driver.held(call, now=held.lease.expires_at), [again])

    def test_a_quarantined_job_does_not_cost_its_neighbours_their_lease(self) -> None:
        queue = self.new_queue()
        blemished = self.hold(queue=queue)
        self.lose(blemished)
        fresh = self.put(queue=queue)
        held = {each.job.id: each for each in self.take(queue, now=T0 + HOUR, limit=2)}
        token = held[fresh].lease.token
        self.driver.extend_leases([token], now=T0 + HOUR + SECOND, lease_for=LEASE)
        self.turn(T0 + HOUR + LEASE)
        same(self.look(blemished.job.id).lease_losses, 2)
        same((self.look(fresh).lease_losses, self.look(fresh).state), (0, "inflight"))

    # -- leases that are gone --------------------------------------------------------------------

    def test_a_missing_lease_counts_as_expired_for_its_jobs(self) -> None:
        held = self.hold()
        self.drop_lease(self.driver, held.lease.token)
        before = self.look(held.job.id)
        rejected = self.driver.settle([outcome(OutcomeKind.ACK, held)], now=T0)
        same([type(each.error) for each in rejected], [LeaseExpired])
        token = held.lease.token
        same(self.driver.extend_leases([token], now=T0, lease_for=LEASE), {})
        same(self.driver.held(token, now=T0), [])
        same(changed(before, self.look(held.job.id)), {})

    def test_a_sweep_reclaims_jobs_whose_lease_is_gone(self) -> None:
        held = self.hold_many(3)
        self.drop_lease(self.driver, held[0].lease.token)
        same(self.driver.sweep(now=T0), 3)
        found = [self.look(each.job.id) for each in held]
        same([(job.state, job.lease_losses) for job in found], [("ready", 1)] * 3)
        same(self.take_ids(held[0].job.queue, limit=5), [each.job.id for each in held])

    def test_a_sweep_buries_at_the_limit(self) -> None:
        held = self.hold()
        self.drop_lease(self.driver, held.lease.token)
        self.driver.sweep(now=T0 + SECOND, max_lease_losses=1)
        job = self.look(held.job.id)
        same((job.state, job.reason, job.dead_letters), ("dead", "lease_lost", 1))
        same((job.finished_at, job.lease), (T0 + SECOND, None))

    def test_a_sweep_leaves_held_and_waiting_jobs_alone(self) -> None:
        held, waiting = self.hold(), self.put(run_at=T0 + HOUR)
        before = self.look(held.job.id), self.look(waiting)
        same(self.driver.sweep(now=held.lease.expires_at - TICK), 0)
        same((self.look(held.job.id), self.look(waiting)), before)

    def test_a_sweep_removes_a_lease_without_inflight_jobs(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.ACK, held)
        self.driver.sweep(now=T0)
        job = self.look(held.job.id)
        same((job.state, job.lease, job.lease_expires_at), ("done", held.lease.token, None))

    def test_a_swept_lease_is_lost_to_its_worker(self) -> None:
        held = self.hold()
        self.drop_lease(self.driver, held.lease.token)
        self.driver.sweep(now=T0)
        refused(JobNotInflight, self.driver.ack, held.job.id, held.lease.token, now=T0)

    def hold_in(self, queue: str, count: int) -> list[Reservation]:
        self.put_many(count, queue=queue)
        return self.take(queue, limit=count)
