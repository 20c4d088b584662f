"""Idempotency keys: one job per task and key for as long as the key stands."""

from __future__ import annotations

from ...exceptions import DuplicateJob, InvalidJob
from ...lifecycle import OutcomeKind
from .harness import Harness
from .terms import HOUR, T0, TICK, changed, different, refused, same


class IdempotencyRules(Harness):
    def test_a_repeat_returns_the_first_job_and_stores_nothing(self) -> None:
        first = self.put(idempotency_key="k", payload=b"first")
        before = self.look(first)
        repeat = self.record(idempotency_key="k", payload=b"second")
        same(self.driver.enqueue(repeat), first)
        same(self.stored(self.driver, repeat.id), None)
        same(changed(before, self.look(first)), {})
        same(self.take_ids(limit=10), [first])

    def test_the_very_same_record_again_is_a_repeat_and_no_duplicate(self) -> None:
        record = self.record(idempotency_key="k")
        same(self.driver.enqueue_many([record, record]), [record.id] * 2)
        same(self.driver.enqueue(record), record.id)
        same(self.take_ids(limit=10), [record.id])

    def test_a_key_belongs_to_its_task(self) -> None:
        first = self.put(task="a", idempotency_key="k")
        second = self.put(task="b", idempotency_key="k")
        same(self.take_ids(limit=10), [first, second])

    def test_a_key_holds_over_all_queues(self) -> None:
        first = self.put(queue="a", idempotency_key="k")
        same(self.put(queue="b", idempotency_key="k"), first)
        same(self.take_ids("b"), [])

    def test_keys_are_compared_character_by_character(self) -> None:
        keys = ["order-e", "Order-e", "order-e ", "order-é", "order-e\u0301", "%", "_"]
        ids = [self.put(idempotency_key=key) for key in keys]
        same(len(set(ids)), len(keys))
        same([self.put(idempotency_key=key) for key in keys], ids)

    def test_jobs_without_a_key_are_never_the_same(self) -> None:
        same(len(set(self.put_many(5))), 5)

    def test_a_key_twice_in_one_batch_makes_one_job(self) -> None:
        records = [self.record(idempotency_key=key) for key in ("a", "b", "a", None, "b")]
        a, b, none = records[0].id, records[1].id, records[3].id
        same(self.driver.enqueue_many(records), [a, b, a, none, b])
        same(self.take_ids(limit=10), [a, b, none])

    def test_a_batch_mixes_known_and_new_keys_in_order(self) -> None:
        known = self.put(idempotency_key="known")
        records = [self.record(), self.record(idempotency_key="known")]
        records.append(self.record(idempotency_key="new"))
        same(self.driver.enqueue_many(records), [records[0].id, known, records[2].id])
        same(self.take_ids(limit=10), [known, records[0].id, records[2].id])

    def test_a_key_stands_until_its_time_is_over_and_not_a_tick_longer(self) -> None:
        first = self.put(idempotency_key="k", idempotency_ttl=HOUR)
        same(self.put(idempotency_key="k", created_at=T0 + HOUR - TICK), first)
        second = self.record(idempotency_key="k", created_at=T0 + HOUR)
        same(self.driver.enqueue(second), second.id)

    def test_a_day_is_the_time_of_a_key_that_names_none(self) -> None:
        first = self.put(idempotency_key="k")
        same(self.put(idempotency_key="k", created_at=T0 + 24 * HOUR - TICK), first)
        different(self.put(idempotency_key="k", created_at=T0 + 24 * HOUR), first)

    def test_a_repeat_does_not_lengthen_the_time_of_a_key(self) -> None:
        first = self.put(idempotency_key="k", idempotency_ttl=HOUR)
        late = T0 + HOUR - TICK
        same(self.put(idempotency_key="k", created_at=late, idempotency_ttl=9 * HOUR), first)
        different(self.put(idempotency_key="k", created_at=T0 + HOUR), first)

    def test_a_key_taken_over_stands_for_its_new_job(self) -> None:
        first = self.put(idempotency_key="k", idempotency_ttl=HOUR)
        second = self.put(idempotency_key="k", idempotency_ttl=HOUR, created_at=T0 + HOUR)
        same(self.put(idempotency_key="k", created_at=T0 + 2 * HOUR - TICK), second)
        different(self.put(idempotency_key="k", created_at=T0 + 2 * HOUR), first, second)
        same(self.look(first).state, "ready")

    def test_an_expired_key_twice_in_one_batch_is_taken_over_once(self) -> None:
        first = self.put(idempotency_key="k", idempotency_ttl=HOUR)
        late = [self.record(idempotency_key="k", created_at=T0 + HOUR) for _ in range(3)]
        same(self.driver.enqueue_many(late), [late[0].id] * 3)
        same(set(self.take_ids(limit=10, now=T0 + HOUR)), {first, late[0].id})

    def test_a_key_outlives_its_job_however_that_ended(self) -> None:
        for kind in (OutcomeKind.ACK, OutcomeKind.FAIL, OutcomeKind.CANCEL):
            held = self.hold(idempotency_key=kind.value)
            self.settle(kind, held)
            same(self.put(idempotency_key=kind.value), held.job.id, kind)

    def test_a_job_that_keeps_nothing_is_kept_for_its_key(self) -> None:
        held = self.hold(idempotency_key="k")
        self.settle(OutcomeKind.ACK, held, keep=False)
        same(self.look(held.job.id).state, "done")
        same(self.put(idempotency_key="k"), held.job.id)

    def test_a_refused_batch_leaves_no_key_behind(self) -> None:
        known = self.put(queue="known")
        for error, bad in (
            (DuplicateJob, self.record(id=known)),
            (InvalidJob, self.record(task="")),
        ):
            batch = [self.record(idempotency_key="k"), bad]
            refused(error, self.driver.enqueue_many, batch)
        fresh = self.record(idempotency_key="k")
        same(self.driver.enqueue(fresh), fresh.id)

    def test_a_refused_takeover_leaves_the_key_as_it_was(self) -> None:
        first = self.put(idempotency_key="k", idempotency_ttl=HOUR)
        known = self.put(queue="known")
        late = [self.record(idempotency_key="k", created_at=T0 + HOUR), self.record(id=known)]
        refused(DuplicateJob, self.driver.enqueue_many, late)
        same(self.put(idempotency_key="k", created_at=T0 + HOUR - TICK), first)
