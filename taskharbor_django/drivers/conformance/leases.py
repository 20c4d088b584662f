"""Leases: the heartbeat that renews them, what a caller holds, and the end of a dead process."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import uuid4

from ...exceptions import LeaseExpired
from ...lifecycle import OutcomeKind
from ...values import Lease, Reservation
from .harness import Harness
from .terms import HOUR, LEASE, SECOND, T0, TICK, changed, refused, same


class LeaseRules(Harness):
    def test_an_extension_keeps_the_token_and_counts_from_now(self) -> None:
        held = self.hold(take={"worker": "worker-7"})
        before = self.look(held.job.id)
        now = T0 + 7 * SECOND + TICK
        lease = self.extend(held, now, HOUR)
        same((lease.token, lease.expires_at), (held.lease.token, now + HOUR))
        same((lease.version, lease.worker), (1, "worker-7"))
        same(changed(before, self.look(held.job.id)), {"lease_expires_at": now + HOUR})

    def test_an_extension_keeps_others_away_until_the_new_end(self) -> None:
        held = self.hold()
        self.extend(held, T0 + SECOND, LEASE)
        same(self.take(held.job.queue, now=T0 + LEASE), [])
        same(self.take(held.job.queue, now=T0 + SECOND + LEASE - TICK), [])
        same(self.take_ids(held.job.queue, now=T0 + SECOND + LEASE), [held.job.id])

    def test_a_lease_can_be_extended_until_a_tick_before_its_end(self) -> None:
        held = self.hold()
        last = held.lease.expires_at - TICK
        same(self.extend(held, last, LEASE).expires_at, last + LEASE)

    def test_an_extension_can_be_repeated(self) -> None:
        held = self.hold()
        for beat in range(1, 20):
            lease = self.extend(held, T0 + beat * 20 * SECOND, LEASE)
            same(lease.token, held.lease.token)
        same(self.look(held.job.id).lease_version, 1)
        self.settle(OutcomeKind.ACK, held, T0 + 400 * SECOND)

    def test_a_lease_of_one_job_can_be_shortened(self) -> None:
        held = self.hold()
        same(self.extend(held, T0, SECOND).expires_at, T0 + SECOND)
        token = held.lease.token
        renewed = self.driver.extend_leases([token], now=T0, lease_for=TICK)
        same(renewed[token].expires_at, T0 + TICK)
        same(self.look(held.job.id).lease_expires_at, T0 + TICK)

    def test_a_lease_of_several_jobs_never_ends_earlier_than_it_stood(self) -> None:
        first, second = self.hold_many(2)
        token = first.lease.token
        same(self.extend(first, T0, SECOND).expires_at, T0 + LEASE)
        renewed = self.driver.extend_leases([token], now=T0, lease_for=SECOND)
        same(renewed[token].expires_at, T0 + LEASE)
        same(self.look(second.job.id).lease_expires_at, T0 + LEASE)

    def test_a_lease_whose_other_jobs_ended_can_be_shortened(self) -> None:
        first, second = self.hold_many(2)
        self.settle(OutcomeKind.ACK, second)
        same(self.extend(first, T0, SECOND).expires_at, T0 + SECOND)

    def test_a_renewal_holds_for_all_jobs_of_the_lease(self) -> None:
        held = self.hold_many(3)
        self.extend(held[0], T0 + SECOND, LEASE)
        self.turn(T0 + LEASE)
        same({self.look(each.job.id).state for each in held}, {"inflight"})
        self.turn(T0 + SECOND + LEASE)
        same({self.look(each.job.id).state for each in held}, {"ready"})

    def test_many_leases_are_renewed_in_one_call(self) -> None:
        held = [self.hold() for _ in range(5)]
        tokens = [each.lease.token for each in held]
        renewed = self.driver.extend_leases(iter(tokens), now=T0 + SECOND, lease_for=HOUR)
        expiries = {token: lease.expires_at for token, lease in renewed.items()}
        same(expiries, dict.fromkeys(tokens, T0 + SECOND + HOUR))
        same([lease.token for lease in renewed.values()], list(renewed))
        for each in held:
            same(self.look(each.job.id).lease_expires_at, T0 + SECOND + HOUR)

    def test_a_token_named_twice_is_renewed_once(self) -> None:
        token = self.hold().lease.token
        renewed = self.driver.extend_leases([token, token], now=T0, lease_for=HOUR)
        same({key: lease.expires_at for key, lease in renewed.items()}, {token: T0 + HOUR})

    def test_no_tokens_no_renewals(self) -> None:
        same(self.driver.extend_leases([], now=T0, lease_for=LEASE), {})

    def test_only_named_leases_are_renewed(self) -> None:
        named, other = self.hold(), self.hold()
        before = self.look(other.job.id)
        self.driver.extend_leases([named.lease.token], now=T0, lease_for=HOUR)
        same(changed(before, self.look(other.job.id)), {})

    def test_lost_leases_are_missing_and_the_others_are_renewed(self) -> None:
        standing = self.hold(take={"lease_for": HOUR})
        expired, reclaimed = self.hold(), self.hold(take={"lease_for": SECOND})
        self.turn(T0 + SECOND)
        lost = [expired.lease.token, reclaimed.lease.token, uuid4()]
        before = self.look(expired.job.id)
        renewed = self.driver.extend_leases(
            [*lost, standing.lease.token], now=expired.lease.expires_at, lease_for=LEASE
        )
        same(list(renewed), [standing.lease.token])
        same(changed(before, self.look(expired.job.id)), {})

    def test_a_renewal_in_the_last_tick_is_granted(self) -> None:
        token = self.hold().lease.token
        now = T0 + LEASE - TICK
        same(list(self.driver.extend_leases([token], now=now, lease_for=LEASE)), [token])

    def test_a_lease_without_inflight_jobs_is_not_renewed_but_removed(self) -> None:
        for kind in (OutcomeKind.ACK, OutcomeKind.FAIL):
            held = self.hold()
            self.settle(kind, held)
            token = held.lease.token
            same(self.driver.extend_leases([token], now=T0, lease_for=HOUR), {}, kind)
            job = self.look(held.job.id)
            same((job.lease, job.lease_expires_at), (token, None), kind)

    def test_a_lease_is_renewed_while_one_of_its_jobs_is_inflight(self) -> None:
        held = self.hold_many(3)
        token = held[0].lease.token
        for each, kind in zip(held, (OutcomeKind.ACK, OutcomeKind.RELEASE), strict=False):
            self.settle(kind, each)
            same(list(self.driver.extend_leases([token], now=T0, lease_for=LEASE)), [token])

    # -- what a caller holds ---------------------------------------------------------------------

    def test_after_a_lost_reply_the_caller_can_ask_what_it_holds(self) -> None:
        call = uuid4()
        queue = self.new_queue()
        self.put_many(3, queue=queue, payload=b"\x00\xff", max_attempts=4)
        taken = self.take(queue, limit=3, token=call, worker="worker-7")
        same(self.driver.held(call, now=T0), taken)

    def test_a_call_that_took_nothing_holds_nothing(self) -> None:
        call = uuid4()
        self.take(token=call)
        self.hold()
        same(self.driver.held(call, now=T0), [])

    def test_quarantined_jobs_are_held_by_the_call_that_took_them(self) -> None:
        first, _ = self.hold_many(2)
        self.lose(first)
        queue, call, now = first.job.queue, uuid4(), first.lease.expires_at
        self.put(queue=queue, created_at=now)
        taken = self.take(queue, now=now, limit=5, token=call)
        same(len({each.lease.token for each in taken}), 3)
        same(self.driver.held(call, now=now), taken)
        same(self.driver.held(taken[0].lease.token, now=now), [])

    def test_only_what_is_still_held_is_held(self) -> None:
        held = self.hold_many(5)
        token = held[0].lease.token
        kinds = (OutcomeKind.ACK, OutcomeKind.RETRY, OutcomeKind.FAIL, OutcomeKind.RELEASE)
        for each, kind in zip(held, kinds, strict=False):
            self.settle(kind, each)
        same(self.driver.held(token, now=T0), held[4:])

    def test_an_expired_lease_is_not_held(self) -> None:
        held = self.hold()
        token = held.lease.token
        same(self.driver.held(token, now=held.lease.expires_at - TICK), [held])
        same(self.driver.held(token, now=held.lease.expires_at), [])

    def test_what_is_held_shows_the_renewed_lease(self) -> None:
        held = self.hold()
        self.extend(held, T0 + SECOND, HOUR)
        found = self.driver.held(held.lease.token, now=T0 + HOUR)
        same([each.lease.expires_at for each in found], [T0 + SECOND + HOUR])

    def test_asking_changes_nothing(self) -> None:
        held = self.hold()
        before = self.look(held.job.id)
        for now in (T0, held.lease.expires_at):
            self.driver.held(held.lease.token, now=now)
        same(changed(before, self.look(held.job.id)), {})

    # -- a process seen to die -------------------------------------------------------------------

    def test_the_leases_of_a_dead_process_end_now(self) -> None:
        dead = [self.hold(take={"worker": "dead"}) for _ in range(2)]
        alive = self.hold(take={"worker": "alive"})
        before = self.look(alive.job.id)
        same(self.driver.expire_leases("dead", now=T0 + SECOND), 2)
        for each in dead:
            same(self.look(each.job.id).lease_expires_at, T0 + SECOND)
            refused(LeaseExpired, self.extend, each, T0 + SECOND, LEASE)
        for each in dead:
            same(self.take_ids(each.job.queue, now=T0 + SECOND), [each.job.id])
        same(changed(before, self.look(alive.job.id)), {})

    def test_a_lease_that_ended_before_the_death_is_not_counted_or_moved(self) -> None:
        held = self.hold(take={"worker": "dead"})
        before = self.look(held.job.id)
        same(self.driver.expire_leases("dead", now=held.lease.expires_at), 0)
        same(self.driver.expire_leases("dead", now=T0 + HOUR), 0)
        same(changed(before, self.look(held.job.id)), {})

    def test_a_death_in_the_last_tick_of_a_lease_still_ends_it(self) -> None:
        held = self.hold(take={"worker": "dead"})
        now = held.lease.expires_at - TICK
        same(self.driver.expire_leases("dead", now=now), 1)
        same(self.look(held.job.id).lease_expires_at, now)

    def test_nobody_is_buried_with_an_unknown_process(self) -> None:
        self.hold(take={"worker": "alive"})
        for worker in ("aliv", "ALIVE", "alive2"):
            same(self.driver.expire_leases(worker, now=T0), 0, worker)

    def extend(self, held: Reservation, now: datetime, lease_for: timedelta) -> Lease:
        job_id, token = held.job.id, held.lease.token
        lease: Lease = self.driver.extend_lease(job_id, token, now=now, lease_for=lease_for)
        return lease
