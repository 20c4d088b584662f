"""Enqueue: what is stored, in which state, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

from ...exceptions import DuplicateJob, InvalidJob
from ...lifecycle import OutcomeKind
from ..base import Driver
from .harness import Harness
from .terms import HOUR, SECOND, T0, TICK, changed, refused, require, same

# A field, a value that no driver may store there, and what must accompany it.
REFUSED: list[tuple[str, Any, dict[str, Any]]] = [
    ("task", "", {}),
    ("task", "x" * 256, {}),
    ("task", "nul\0", {}),
    ("task", None, {}),
    ("queue", "", {}),
    ("queue", "two words", {}),
    ("queue", "line\n", {}),
    ("queue", "q" * 129, {}),
    ("payload", "text", {}),
    ("timeout", -TICK, {}),
    ("attempts", -1, {}),
    ("attempts", 4, {"max_attempts": 3}),
    ("max_attempts", -1, {}),
    ("priority", -101, {}),
    ("priority", 101, {}),
    ("idempotency_key", "", {}),
    ("idempotency_key", "k" * 257, {}),
    ("run_at", T0.replace(tzinfo=None), {}),
    ("delay", -TICK, {}),
    ("delay", SECOND, {"run_at": T0}),
    ("lifetime", -TICK, {}),
    ("tags", {"a": 1}, {}),
    ("tags", dict.fromkeys(map(str, range(65)), ""), {}),
    ("tags", {"k" * 129: ""}, {}),
    ("tags", {"a": "v" * 1025}, {}),
]

# The widest values that must still be taken.
ACCEPTED: list[dict[str, Any]] = [
    {"task": "x" * 255},
    {"queue": "q" * 128},
    {"queue": "A-z_0.9:x"},
    {"timeout": timedelta(0)},
    {"attempts": 3, "max_attempts": 3},
    {"attempts": 3, "max_attempts": 0},
    {"priority": -100},
    {"priority": 100},
    {"idempotency_key": "k" * 256},
    {"task": "naïve.задача'\"%s;--"},
]


class EnqueueRules(Harness):
    def test_enqueue_returns_the_id_of_the_record(self) -> None:
        record = self.record()
        same(self.driver.enqueue(record), record.id)

    def test_enqueue_many_returns_the_ids_in_the_order_of_the_records(self) -> None:
        records = [self.record() for _ in range(20)]
        same(self.driver.enqueue_many(records), [record.id for record in records])

    def test_enqueue_many_of_nothing_stores_nothing(self) -> None:
        same(self.driver.enqueue_many([]), [])

    def test_a_new_job_starts_from_nothing(self) -> None:
        job = self.look(self.put(queue="mail", priority=7, payload=b"{}", max_attempts=5))
        same((job.queue, job.priority, job.payload, job.max_attempts), ("mail", 7, b"{}", 5))
        same((job.attempts, job.executions, job.handler_misses), (0, 0, 0))
        same((job.lease, job.lease_version, job.lease_losses), (None, 0, 0))
        same((job.last_error, job.failed_at, job.result, job.reason), ("", None, None, ""))
        same((job.started_at, job.finished_at, job.cancel_requested_at), (None, None, None))
        same((job.dead_letters, job.attempt_ends), (0, ()))

    def test_a_job_is_scheduled_only_while_run_at_is_ahead(self) -> None:
        for run_at, state in (
            (None, "ready"),
            (T0 - HOUR, "ready"),
            (T0, "ready"),
            (T0 + TICK, "scheduled"),
            (T0 + HOUR, "scheduled"),
        ):
            job = self.look(self.put(run_at=run_at))
            same((job.state, job.run_at), (state, run_at), f"run_at {run_at}")

    def test_a_job_is_available_at_the_later_of_creation_and_run_at(self) -> None:
        for run_at, available_at in ((None, T0), (T0 - HOUR, T0), (T0 + HOUR, T0 + HOUR)):
            same(self.look(self.put(run_at=run_at)).available_at, available_at, run_at)

    def test_a_delay_becomes_the_run_at_that_it_means(self) -> None:
        for delay, state in ((timedelta(0), "ready"), (HOUR + TICK, "scheduled")):
            job = self.look(self.put(delay=delay))
            same((job.run_at, job.available_at, job.state), (T0 + delay, T0 + delay, state))

    def test_a_job_with_open_dependencies_is_blocked_whenever_it_is_due(self) -> None:
        for run_at in (None, T0 - HOUR, T0 + HOUR):
            job = self.look(self.put(dependencies_left=1, run_at=run_at))
            same((job.state, job.run_at), ("blocked", run_at), run_at)

    def test_a_lifetime_counts_from_the_later_of_creation_and_run_at(self) -> None:
        for fields, expires_at in (
            ({}, None),
            ({"lifetime": HOUR}, T0 + HOUR),
            ({"lifetime": HOUR, "run_at": T0 - HOUR}, T0 + HOUR),
            ({"lifetime": HOUR, "run_at": T0 + HOUR}, T0 + 2 * HOUR),
            ({"lifetime": HOUR, "delay": HOUR + TICK}, T0 + 2 * HOUR + TICK),
        ):
            same(self.look(self.put(**fields)).expires_at, expires_at, fields)

    def test_a_batch_stores_each_job_as_if_it_came_alone(self) -> None:
        asked: list[dict[str, Any]] = [
            {},
            *({"run_at": T0 + ahead} for ahead in (-HOUR, timedelta(0), TICK, HOUR)),
            *({"delay": ahead, "lifetime": HOUR} for ahead in (timedelta(0), TICK, HOUR)),
            *({"dependencies_left": 1, "run_at": T0 + ahead} for ahead in (-HOUR, HOUR)),
        ]
        ids = self.driver.enqueue_many([self.record(**fields) for fields in asked])
        for fields, job_id in zip(asked, ids, strict=True):
            alone = self.look(self.put(**fields))
            same(changed(alone, self.look(job_id)), {}, fields)

    def test_without_created_at_the_clock_of_the_driver_counts(self) -> None:
        job = self.look(self.put(created_at=None, delay=HOUR, lifetime=HOUR))
        same(abs(job.created_at - datetime.now(UTC)) < 24 * HOUR, True, job.created_at)
        same((job.run_at, job.available_at), (job.created_at + HOUR,) * 2)
        same((job.state, job.expires_at), ("scheduled", job.created_at + 2 * HOUR))

    def test_without_created_at_run_at_is_compared_with_the_clock_of_the_driver(self) -> None:
        past = self.look(self.put(created_at=None, run_at=datetime(2001, 1, 1, tzinfo=UTC)))
        future = self.look(self.put(created_at=None, run_at=datetime(2901, 1, 1, tzinfo=UTC)))
        same((past.state, past.available_at), ("ready", past.created_at))
        same((future.state, future.available_at), ("scheduled", future.run_at))

    def test_times_come_back_to_the_microsecond(self) -> None:
        for microsecond in (0, 1, 499_999, 500_000, 999_999):
            moment = T0.replace(microsecond=microsecond)
            job = self.look(self.put(created_at=moment, run_at=moment + HOUR, lifetime=SECOND))
            found = (job.created_at, job.run_at, job.available_at, job.expires_at)
            same(found, (moment, moment + HOUR, moment + HOUR, moment + HOUR + SECOND))

    def test_a_time_in_another_zone_is_the_same_instant(self) -> None:
        zone = timezone(timedelta(hours=5, minutes=45))
        moment = (T0 + HOUR).astimezone(zone)
        job_id = self.put(run_at=moment, created_at=T0.astimezone(zone))
        job = self.look(job_id)
        same((job.created_at, job.run_at, job.state), (T0, moment, "scheduled"))
        same(self.take_ids(now=moment - TICK), [])
        same(self.take_ids(now=moment), [job_id])

    def test_every_byte_of_a_payload_is_kept(self) -> None:
        for payload in (b"", b"\0", bytes(range(256)), bytes(range(256)) * 4096):
            job_id = self.put(payload=payload)
            about = f"{len(payload)} bytes"
            same(self.look(job_id).payload == payload, True, about)
            same(bytes(self.take_one().job.payload) == payload, True, about)

    def test_a_second_job_with_the_same_id_is_refused(self) -> None:
        first = self.record(payload=b"first")
        self.driver.enqueue(first)
        before = self.look(first.id)
        second = self.record(id=first.id, payload=b"second", queue="other")
        refused(DuplicateJob, self.driver.enqueue, second)
        same(changed(before, self.look(first.id)), {})
        same(self.take_ids("other"), [])

    def test_an_id_stays_taken_after_the_job_ended(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.ACK, held)
        refused(DuplicateJob, self.put, id=held.job.id)
        same(self.look(held.job.id).state, "done")

    def test_one_known_id_refuses_the_whole_batch(self) -> None:
        known = self.put(queue="known")
        for place in range(3):
            records = [self.record() for _ in range(2)]
            records.insert(place, self.record(id=known))
            refused(DuplicateJob, self.driver.enqueue_many, records)
            same(self.take_ids(limit=10), [], f"known id at {place}")

    def test_one_id_twice_refuses_the_whole_batch(self) -> None:
        twice = uuid4()
        records = [self.record(), self.record(id=twice), self.record(id=twice)]
        refused(DuplicateJob, self.driver.enqueue_many, records)
        same(self.stored(self.driver, twice), None)
        same(self.take_ids(limit=10), [])

    def test_a_refused_enqueue_leaves_the_driver_usable(self) -> None:
        known = self.put()
        refused(DuplicateJob, self.put, id=known)
        other = self.put()
        same(self.take_ids(limit=10), [known, other])

    def test_what_cannot_be_stored_is_refused_and_the_field_is_named(self) -> None:
        for field, value, others in REFUSED:
            record = self.record(**{field: value}, **others)
            about = f"{field}={value!r}"
            error = refused(InvalidJob, self.driver.enqueue, record, about=about)
            same(getattr(error, "field", None), field, about)
            same(self.stored(self.driver, record.id), None, about)

    def test_one_bad_record_refuses_the_whole_batch(self) -> None:
        records = [self.record(), self.record(task=""), self.record()]
        refused(InvalidJob, self.driver.enqueue_many, records)
        same(self.take_ids(limit=10), [])

    def test_the_widest_values_are_taken(self) -> None:
        for fields in ACCEPTED:
            record = self.record(**fields)
            self.driver.enqueue(record)
            held = self.take_one(record.queue)
            for name, value in fields.items():
                same(getattr(held.job, name), value, name)

    def test_a_reservation_brings_what_a_run_needs(self) -> None:
        record = self.record(
            task="shop.mail",
            queue="mail",
            payload=b"\x00\xff",
            priority=-50,
            timeout=timedelta(minutes=7, microseconds=1),
            attempts=1,
            max_attempts=4,
            lifetime=HOUR,
            correlation_id="order-7",
            idempotency_key="mail-7",
            trace={"traceparent": "00-1-2-01"},
        )
        self.driver.enqueue(record)
        job = self.take_one("mail").job
        for name in ("id", "task", "queue", "priority", "timeout", "attempts", "max_attempts"):
            same(getattr(job, name), getattr(record, name), name)
        for name in ("correlation_id", "idempotency_key", "trace"):
            same(getattr(job, name), getattr(record, name), name)
        same((bytes(job.payload), job.expires_at), (b"\x00\xff", T0 + HOUR))
        same((job.executions, job.lease_losses, job.handler_misses), (1, 0, 0))

    def test_the_driver_is_one(self) -> None:
        require(isinstance(self.driver, Driver), "derive it from taskharbor_django.drivers.Driver")
