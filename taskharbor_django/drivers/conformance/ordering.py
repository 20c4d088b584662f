"""The line: priority, then the time since which a job is available, then the order of enqueue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...lifecycle import OutcomeKind, Priority
from ...values import Reservation
from .harness import Harness
from .terms import FAILURE, HOUR, LEASE, SECOND, T0, TICK, same


class OrderingRules(Harness):
    def test_the_lower_rank_goes_first(self) -> None:
        ranks = [100, -100, 0, 1, -1, 50, -50, 99, -99]
        by_rank = {rank: self.put(priority=rank) for rank in ranks}
        same(self.take_ids(limit=20), [by_rank[rank] for rank in sorted(ranks)])

    def test_the_five_levels_go_from_critical_to_bulk(self) -> None:
        ids = {level: self.put(priority=level) for level in reversed(Priority)}
        names = (Priority.CRITICAL, Priority.HIGH, Priority.NORMAL, Priority.LOW, Priority.BULK)
        same(self.take_ids(limit=10), [ids[name] for name in names])

    def test_priority_counts_more_than_waiting(self) -> None:
        old = self.put(priority=1, created_at=T0 - HOUR)
        new = self.put(priority=0)
        same(self.take_ids(limit=2), [new, old])

    def test_whoever_waits_longer_goes_first(self) -> None:
        new = self.put(created_at=T0 + TICK)
        old = self.put(created_at=T0)
        same(self.take_ids(limit=2, now=T0 + SECOND), [old, new])

    def test_jobs_of_the_same_microsecond_keep_the_order_of_enqueue(self) -> None:
        ids = [self.put() for _ in range(30)]
        same(self.take_ids(limit=30), ids)

    def test_jobs_of_one_batch_keep_their_order(self) -> None:
        ids = self.put_many(200)
        same(self.take_ids(limit=200), ids)

    def test_jobs_of_one_batch_keep_their_order_whatever_their_fields(self) -> None:
        shapes: list[dict[str, Any]] = [{}, {"timeout": HOUR}, {"correlation_id": "c"}]
        records = [self.record(**shapes[number % 3]) for number in range(40)]
        self.driver.enqueue_many(records)
        same(self.take_ids(limit=50), [record.id for record in records])

    def test_small_reservations_follow_the_same_line(self) -> None:
        ids = self.put_many(9)
        taken = [job_id for _ in range(3) for job_id in self.take_ids(limit=3)]
        same(taken, ids)

    def test_a_job_that_becomes_due_does_not_starve_behind_newer_ones(self) -> None:
        before = self.put(created_at=T0 + 4 * SECOND)
        after = self.put(created_at=T0 + 6 * SECOND)
        planned = self.put(run_at=T0 + 5 * SECOND)
        same(self.take_ids(limit=3, now=T0 + HOUR), [before, planned, after])

    def test_an_earlier_run_at_gives_no_advantage_over_those_who_waited(self) -> None:
        first = self.put()
        backdated = self.put(run_at=T0 - HOUR)
        same(self.take_ids(limit=2), [first, backdated])

    def test_a_release_keeps_the_place(self) -> None:
        held = self.take_first_of_three()
        self.settle(OutcomeKind.RELEASE, held, T0 + SECOND)
        same(self.take_ids(now=T0 + SECOND), [held.job.id])

    def test_a_reclaimed_job_keeps_its_place(self) -> None:
        held = self.take_first_of_three()
        same(self.take_ids(now=held.lease.expires_at), [held.job.id])

    def test_a_reclaimed_job_that_was_planned_keeps_its_place(self) -> None:
        planned = self.put(run_at=T0 + 2 * SECOND)
        held = self.take_one(now=T0 + 2 * SECOND)
        older, newer = self.put(created_at=T0 + SECOND), self.put(created_at=T0 + 3 * SECOND)
        same(self.take_ids(limit=3, now=held.lease.expires_at), [older, planned, newer])

    def test_a_retry_at_once_goes_to_the_end_of_the_line(self) -> None:
        for run_at in (None, T0 - HOUR, T0 + SECOND):
            queue = self.new_queue()
            held = self.hold(queue=queue)
            waiting = self.put(queue=queue, created_at=T0 + SECOND - TICK)
            update = replace(FAILURE, run_at=run_at)
            self.settle(OutcomeKind.RETRY, held, T0 + SECOND, update=update)
            newer = self.put(queue=queue, created_at=T0 + SECOND + TICK)
            line = [waiting, held.job.id, newer]
            same(self.take_ids(queue, limit=3, now=T0 + HOUR), line, run_at)

    def test_a_later_retry_or_release_is_in_line_from_its_new_time(self) -> None:
        later = T0 + 10 * SECOND
        for kind, facts in (
            (OutcomeKind.RETRY, {"update": replace(FAILURE, run_at=later)}),
            (OutcomeKind.RELEASE, {"run_at": later}),
        ):
            queue = self.new_queue()
            held = self.hold(queue=queue)
            newer = self.put(queue=queue, created_at=later + TICK)
            self.settle(kind, held, T0 + SECOND, **facts)
            older = self.put(queue=queue, created_at=later - TICK)
            line = [older, held.job.id, newer]
            same(self.take_ids(queue, limit=3, now=T0 + HOUR), line, kind)

    def test_a_floor_leaves_out_what_became_available_before_it(self) -> None:
        self.put(created_at=T0 - TICK)
        at_floor, above = self.put(created_at=T0), self.put(created_at=T0 + TICK)
        same(self.take_ids(limit=9, now=T0 + HOUR, floor=(0, T0)), [at_floor, above])

    def test_a_floor_says_nothing_about_other_priorities(self) -> None:
        early = T0 - HOUR
        urgent = self.put(priority=-1, created_at=early)
        bulk = self.put(priority=1, created_at=early)
        self.put(created_at=early)
        same(self.take_ids(limit=9, floor=(0, T0)), [urgent, bulk])

    def test_what_a_floor_left_out_is_found_without_it(self) -> None:
        job_id = self.put(created_at=T0 - TICK)
        same(self.take_ids(floor=(0, T0)), [])
        same(self.take_ids(), [job_id])

    def test_neighbours_reserved_together_come_back_in_line(self) -> None:
        ids = self.put_many(20)
        held = self.take(limit=20)
        same([each.job.id for each in held], ids)
        same(self.take_ids(limit=20, now=T0 + LEASE), ids)

    def test_neighbours_given_back_in_any_order_stand_in_line_as_before(self) -> None:
        ids = self.put_many(20)
        for held in reversed(self.take(limit=20)):
            self.settle(OutcomeKind.RELEASE, held)
        same(self.take_ids(limit=20), ids)

    def take_first_of_three(self) -> Reservation:
        self.put()
        held = self.take_one()
        self.put_many(2)
        return held
