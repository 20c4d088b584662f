"""Races: real threads, started together at a barrier; who wins is open, how many is not."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from ...exceptions import DuplicateJob, JobNotInflight
from ...lifecycle import OutcomeKind
from ...values import Rejection, Reservation
from .harness import Harness
from .terms import HOUR, LEASE, T0, TICK, outcome, persist, same

JOBS = 2_000


class ConcurrencyRules(Harness):
    def test_no_job_is_leased_twice_however_many_reserve(self) -> None:
        ids = self.put_many(JOBS)
        taken = [each for part in self.crowd(_drain) for each in part]
        same(Counter(each.job.id for each in taken), Counter(ids))
        same({each.lease.version for each in taken}, {1})
        # A lease belongs to one call: nobody else can hold a job under the same token.
        owners = {(each.lease.token, each.lease.worker) for each in taken}
        same(len(owners), len({token for token, _ in owners}))

    def test_every_job_is_acked_once_while_many_reserve_and_settle(self) -> None:
        ids = self.put_many(JOBS // 4)

        def work(driver: Any, number: int) -> list[UUID]:
            done = []
            while held := _reserve(driver, number):
                acks = [outcome(OutcomeKind.ACK, each) for each in held]
                same(persist(driver, acks, T0), [], "rejections")
                done += [each.job.id for each in held]
            return done

        done = [job_id for part in self.crowd(work) for job_id in part]
        same(Counter(done), Counter(ids))
        same({self.look(job_id).state for job_id in ids[::37]}, {"done"})

    def test_one_expired_lease_has_one_new_holder(self) -> None:
        for _ in range(3):
            held = self.hold()
            queue, now = held.job.queue, held.lease.expires_at
            taken = self.crowd(lambda driver, n: _reserve(driver, n, queue, now))  # noqa: B023  called within the turn
            same(sum(map(len, taken)), 1, "winners")
            job = self.look(held.job.id)
            same((job.lease_losses, job.lease_version, job.executions), (1, 2, 2))
            same(job.attempt_ends, ((1, "lost"),))

    def test_one_due_job_has_one_holder(self) -> None:
        self.put(run_at=T0 + TICK)
        taken = self.crowd(lambda driver, n: _reserve(driver, n, "default", T0 + TICK))
        same(sum(map(len, taken)), 1, "winners")

    def test_one_key_makes_one_job_however_many_enqueue(self) -> None:
        ids = self.crowd(lambda driver, _: driver.enqueue(self.record(idempotency_key="k")))
        same(len(set(ids)), 1, "jobs")
        same(self.take_ids(limit=100), ids[:1])

    def test_an_expired_key_is_taken_over_once(self) -> None:
        first = self.put(idempotency_key="k", idempotency_ttl=HOUR)
        late = T0 + HOUR
        ids = self.crowd(
            lambda driver, _: driver.enqueue(self.record(idempotency_key="k", created_at=late))
        )
        same(len({first, *ids}), 2, "jobs")
        same(sorted(self.take_ids(limit=100, now=late)), sorted({first, *ids}))

    def test_keys_enqueued_in_crossing_batches_make_one_job_each(self) -> None:
        keys = [f"key-{number}" for number in range(20)]

        def work(driver: Any, number: int) -> dict[str, UUID]:
            order = keys if number % 2 else keys[::-1]
            ids = driver.enqueue_many([self.record(idempotency_key=key) for key in order])
            return dict(zip(order, ids, strict=True))

        answers = self.crowd(work, count=min(8, self.racers))
        same([answer for answer in answers if answer != answers[0]], [])
        same(len(self.take(limit=1000)), len(keys))

    def test_one_id_is_enqueued_once(self) -> None:
        record = self.record()

        def work(driver: Any, _: int) -> bool:
            try:
                driver.enqueue(record)
            except DuplicateJob:
                return False
            return True

        same(sum(self.crowd(work)), 1, "accepted")

    def test_one_outcome_sent_by_many_is_applied_once(self) -> None:
        for kind in OutcomeKind:
            sent = outcome(kind, self.hold())
            before = self.look(sent.job_id)
            answers = self.crowd(lambda driver, _: persist(driver, [sent], T0), count=8)  # noqa: B023  called within the turn
            same(sum(not answer for answer in answers), 1, f"{kind} applied")
            late: list[Rejection] = [each for answer in answers for each in answer]
            same({(type(each.error), each.repeated) for each in late}, {(JobNotInflight, True)})
            job = self.look(sent.job_id)
            same((job.lease_version, job.lease_losses), (before.lease_version, 0))
            same(job.dead_letters, 1 if kind == OutcomeKind.FAIL else 0)

    def test_two_settles_over_the_same_jobs_apply_each_outcome_once(self) -> None:
        for _ in range(self.rounds):
            acks = [outcome(OutcomeKind.ACK, each) for each in self.hold_many(20)]
            orders = [acks, acks[::-1]]
            answers = self.crowd(lambda driver, n: persist(driver, orders[n], T0), count=2)  # noqa: B023  called within the turn
            late = [each for answer in answers for each in answer]
            same(Counter(each.outcome for each in late), Counter(acks))
            same({self.look(ack.job_id).state for ack in acks}, {"done"})

    def test_a_heartbeat_and_a_reclaim_never_both_win(self) -> None:
        for _ in range(self.rounds):
            held = self.hold()
            token, end = held.lease.token, held.lease.expires_at

            def work(driver: Any, number: int) -> Any:
                if number:
                    return _reserve(driver, number, held.job.queue, end)  # noqa: B023  called within the turn
                return driver.extend_leases([token], now=end - TICK, lease_for=HOUR)  # noqa: B023  called within the turn

            renewed, taken = self.crowd(work, count=2)
            job = self.look(held.job.id)
            found = len(taken), job.lease_losses, job.lease == token
            same(found, (0, 0, True) if renewed else (1, 1, False), f"renewed: {renewed}")

    def test_a_settle_and_a_reclaim_never_both_win(self) -> None:
        for kind in OutcomeKind:
            for _ in range(self.rounds // 5 or 1):
                self.race_settle_against_reclaim(kind)

    def race_settle_against_reclaim(self, kind: OutcomeKind) -> None:
        held = self.hold()
        end = held.lease.expires_at
        sent = outcome(kind, held)

        def work(driver: Any, number: int) -> list[Any]:
            if number:
                return list(driver.reserve("elsewhere", now=end, lease_for=LEASE))
            return persist(driver, [sent], end - TICK)

        rejected, _ = self.crowd(work, count=2)
        # A reclaim may have skipped the row that settle held; a second one has nothing to skip.
        self.turn(end)
        job = self.look(held.job.id)
        same([each.repeated for each in rejected], [False] * len(rejected), kind)
        found = job.lease_losses, (1, "lost") in job.attempt_ends
        same(found, (1, True) if rejected else (0, False), f"{kind}: rejected {rejected}")


def _reserve(driver: Any, number: int, queue: str = "default", now: Any = T0) -> list[Reservation]:
    worker = f"worker-{number}"
    taken: list[Reservation] = driver.reserve(
        queue, now=now, lease_for=LEASE, limit=7, worker=worker
    )
    return taken


def _drain(driver: Any, number: int) -> list[Reservation]:
    taken: list[Reservation] = []
    while held := _reserve(driver, number):
        taken += held
    return taken
