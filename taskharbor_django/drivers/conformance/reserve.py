"""Reserve: who is runnable, and what a reservation does to the job and gives to the caller."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

from ...exceptions import InvalidLeaseDuration
from ...lifecycle import OutcomeKind
from .harness import Harness
from .terms import HOUR, LEASE, SECOND, T0, TICK, changed, different, refused, same


class ReserveRules(Harness):
    def test_nothing_runnable_is_an_empty_list(self) -> None:
        same(self.take(), [])

    def test_only_jobs_of_the_queue_are_reserved(self) -> None:
        self.put(queue="other")
        mine = self.put(queue="mine")
        same(self.take_ids("mine", limit=10), [mine])

    def test_queue_names_are_compared_character_by_character(self) -> None:
        names = ["mail", "Mail", "MAIL", "mail.", "mail:1", "mai"]
        ids = {name: self.put(queue=name) for name in names}
        for name in names:
            same(self.take_ids(name, limit=10), [ids[name]], name)

    def test_never_more_jobs_than_the_limit(self) -> None:
        ids = self.put_many(5)
        same(self.take_ids(limit=3), ids[:3])
        same(self.take_ids(limit=3), ids[3:])
        same(self.take_ids(limit=3), [])

    def test_a_limit_below_one_is_refused_and_nothing_moves(self) -> None:
        planned, lost = self.put(run_at=T0 + SECOND), self.hold().job.id
        before = self.look(planned), self.look(lost)
        for limit in (0, -1):
            refused(ValueError, self.take, limit=limit, now=T0 + HOUR, about=limit)
        same((self.look(planned), self.look(lost)), before)

    def test_a_lease_that_lasts_no_time_is_refused_and_nothing_moves(self) -> None:
        planned, lost = self.put(run_at=T0 + SECOND), self.hold().job.id
        before = self.look(planned), self.look(lost)
        for lease_for in (timedelta(0), -TICK):
            refused(InvalidLeaseDuration, self.take, lease_for=lease_for, now=T0 + HOUR)
        same((self.look(planned), self.look(lost)), before)

    def test_a_lease_may_last_one_microsecond(self) -> None:
        held = self.hold(take={"lease_for": TICK})
        same(held.lease.expires_at, T0 + TICK)
        same(self.take_ids(held.job.queue), [])
        same(self.take_ids(held.job.queue, now=T0 + TICK), [held.job.id])

    # -- who is runnable -------------------------------------------------------------------------

    def test_a_job_is_due_at_exactly_run_at_and_not_a_tick_before(self) -> None:
        job_id = self.put(run_at=T0 + SECOND)
        same(self.take_ids(now=T0 + SECOND - TICK), [])
        same(self.look(job_id).state, "scheduled")
        same(self.take_ids(now=T0 + SECOND), [job_id])

    def test_a_retried_job_is_due_at_exactly_its_new_run_at(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.RELEASE, held, run_at=T0 + SECOND)
        queue = held.job.queue
        same(self.take_ids(queue, now=T0 + SECOND - TICK), [])
        same(self.take_ids(queue, now=T0 + SECOND), [held.job.id])

    def test_a_job_that_another_clock_saw_due_waits_for_the_callers(self) -> None:
        job_id = self.put(run_at=T0 + SECOND)
        self.turn(T0 + SECOND)
        same(self.look(job_id).state, "ready")
        same(self.take_ids(now=T0 + SECOND - TICK), [])
        same(self.take_ids(now=T0 + SECOND), [job_id])

    def test_a_job_without_run_at_is_runnable_for_a_clock_behind_the_one_that_enqueued(
        self,
    ) -> None:
        job_id = self.put(created_at=T0 + SECOND)
        same(self.take_ids(now=T0), [job_id])

    def test_a_valid_lease_keeps_everyone_else_away(self) -> None:
        held = self.hold()
        for now in (T0, T0 + SECOND, held.lease.expires_at - TICK):
            same(self.take(held.job.queue, now=now), [], now)

    def test_an_expired_lease_lets_the_next_one_in_at_exactly_its_end(self) -> None:
        held = self.hold()
        again = self.take_one(held.job.queue, now=held.lease.expires_at)
        same(again.job.id, held.job.id)

    def test_a_blocked_job_is_never_reserved(self) -> None:
        self.put(dependencies_left=1)
        self.put(dependencies_left=1, run_at=T0 + SECOND)
        same(self.take(now=T0 + HOUR, limit=10), [])

    def test_an_ended_job_is_never_reserved_again(self) -> None:
        for kind in (OutcomeKind.ACK, OutcomeKind.FAIL, OutcomeKind.CANCEL):
            held = self.hold()
            self.settle(kind, held)
            ended = self.look(held.job.id)
            for now in (T0, held.lease.expires_at, T0 + 1000 * HOUR):
                same(self.take(held.job.queue, now=now), [], kind)
            same(self.look(held.job.id).state, ended.state, kind)

    def test_a_job_buried_or_cancelled_without_its_worker_is_never_reserved_again(self) -> None:
        buried, taken = self.hold(), self.hold()
        self.lose(buried, max_lease_losses=1)
        self.take_token(self.driver, taken.job.id, T0)
        for held in (buried, taken):
            same(self.take(held.job.queue, now=T0 + HOUR), [])

    def test_a_paused_queue_gives_out_nothing_and_the_others_go_on(self) -> None:
        self.put(queue="paused")
        job_id = self.put(queue="open")
        self.pause_queue(self.driver, "paused")
        same(self.take("paused"), [])
        same(self.take_ids("open"), [job_id])

    def test_jobs_of_a_paused_queue_are_promoted_and_reclaimed_but_not_given_out(self) -> None:
        held = self.hold()
        planned = self.put(queue=held.job.queue, run_at=T0 + SECOND)
        self.pause_queue(self.driver, held.job.queue)
        same(self.take(held.job.queue, now=held.lease.expires_at, limit=10), [])
        same((self.look(planned).state, self.look(held.job.id).state), ("ready", "ready"))

    def test_due_jobs_of_every_queue_are_promoted(self) -> None:
        due, ahead = self.put(run_at=T0 + SECOND), self.put(run_at=T0 + SECOND + TICK)
        before = self.look(due)
        self.turn(T0 + SECOND)
        same(changed(before, self.look(due)), {"state": "ready"})
        same(self.look(ahead).state, "scheduled")

    # -- what a reservation does -----------------------------------------------------------------

    def test_a_reservation_makes_the_job_inflight_and_counts(self) -> None:
        job_id = self.put()
        before = self.look(job_id)
        held = self.take_one(now=T0 + SECOND)
        expected = {
            "state": "inflight",
            "lease": held.lease.token,
            "lease_expires_at": T0 + SECOND + LEASE,
            "lease_version": 1,
            "executions": 1,
        }
        same(changed(before, self.look(job_id)), expected)

    def test_a_reservation_shows_its_lease(self) -> None:
        held = self.hold(take={"now": T0 + TICK, "worker": "worker-7"})
        lease = held.lease
        same((lease.expires_at, lease.version, lease.worker), (T0 + TICK + LEASE, 1, "worker-7"))
        same(type(lease.token), UUID)

    def test_a_planned_job_keeps_its_run_at_when_it_is_reserved(self) -> None:
        job_id = self.put(run_at=T0 + SECOND)
        self.take_one(now=T0 + SECOND)
        same(self.look(job_id).run_at, T0 + SECOND)

    def test_one_call_makes_one_lease_for_its_unblemished_jobs(self) -> None:
        self.put_many(4)
        held = self.take(limit=4)
        same(len({each.lease.token for each in held}), 1)

    def test_two_calls_make_two_leases(self) -> None:
        self.put_many(2)
        different(self.take_one().lease.token, self.take_one().lease.token)

    def test_the_caller_may_make_the_token_of_the_call(self) -> None:
        token = uuid4()
        held = self.hold(take={"token": token})
        same((held.lease.token, self.look(held.job.id).lease), (token, token))

    def test_an_empty_call_leaves_its_token_unused(self) -> None:
        token = uuid4()
        same(self.take(token=token), [])
        self.put()
        same(self.take_one(token=token).lease.token, token)

    def test_every_reservation_of_a_job_has_a_new_token_and_a_higher_version(self) -> None:
        queue = self.new_queue()
        job_id = self.put(queue=queue)
        tokens, versions, now = set(), [], T0
        for round_ in range(12):
            held = self.take_one(queue, now=now)
            tokens.add(held.lease.token)
            versions.append(held.lease.version)
            if round_ % 3 == 0:
                now = held.lease.expires_at
            elif round_ % 3 == 1:
                self.settle(OutcomeKind.RETRY, held, now)
            else:
                self.settle(OutcomeKind.RELEASE, held, now)
        same(len(tokens), 12)
        same(versions, list(range(1, 13)))
        same(self.look(job_id).lease_version, 12)

    def test_tokens_of_different_jobs_never_repeat(self) -> None:
        self.put_many(50)
        tokens = {self.take_one().lease.token for _ in range(50)}
        same(len(tokens), 50)

    def test_a_new_run_starts_without_the_start_of_the_last(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.RETRY, held, T0 + SECOND, started_at=T0 + TICK)
        self.take_one(held.job.queue, now=T0 + SECOND)
        same(self.look(held.job.id).started_at, None)

    def test_every_start_is_counted(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.RETRY, held)
        again = self.take_one(held.job.queue)
        same((again.job.executions, self.look(held.job.id).executions), (2, 2))
        third = self.take_one(held.job.queue, now=again.lease.expires_at)
        same((third.job.executions, third.job.lease_losses, third.job.attempts), (3, 1, 2))
