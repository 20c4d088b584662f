"""MemoryDriver against the contract, and the suite itself against drivers that break it."""

import unittest
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from taskharbor_django.drivers import JobRecord, MemoryDriver, moves
from taskharbor_django.drivers.conformance import DriverConformance, Stored
from taskharbor_django.drivers.conformance.terms import persist, refused
from taskharbor_django.drivers.memory_store import MemoryJob, MemoryStore
from taskharbor_django.exceptions import DriverClosed, JobLocked, LeaseExpired, LeaseMismatch
from taskharbor_django.lifecycle import JobState, OutcomeKind
from taskharbor_django.values import Lease, Outcome, Rejection

NOW = datetime(2031, 5, 17, 9, 30, tzinfo=UTC)
LEASE = timedelta(seconds=30)


class MemoryHooks:
    def make_driver(self):
        return MemoryDriver()

    def stored(self, driver, job_id):
        job = driver.read(job_id)
        if job is None:
            return None
        lease = driver.read_lease(job.lease)
        return Stored.of(
            job,
            state=job.state.value,
            queue=job.record.queue,
            priority=job.record.priority,
            payload=job.record.payload,
            max_attempts=job.record.max_attempts,
            lease_expires_at=lease and lease.expires_at,
            dead_letters=1 if job.reason else 0,
            attempt_ends=tuple(sorted(job.attempt_ends.items())),
        )

    def request_cancel(self, driver, job_id, now):
        driver.cancel(job_id, now=now)

    def take_token(self, driver, job_id, now):
        driver.cancel(job_id, now=now, force=True)

    def pause_queue(self, driver, queue):
        driver.pause(queue)

    def drop_lease(self, driver, token):
        driver.drop_lease(token)


class TestMemoryDriver(MemoryHooks, DriverConformance):
    pass


class TestBeyondTheContract:
    def test_the_clock_is_asked_when_a_record_brings_no_time(self):
        driver = MemoryDriver(clock=lambda: NOW)
        job_id = driver.enqueue(JobRecord(task="t", delay=LEASE))
        job = driver.read(job_id)
        assert (job.created_at, job.run_at) == (NOW, NOW + LEASE)

    def test_a_pause_can_end_by_itself_or_by_hand(self):
        driver = MemoryDriver(clock=lambda: NOW)
        driver.enqueue_many([JobRecord(task="t"), JobRecord(task="t")])
        driver.pause("default", until=NOW + LEASE)
        assert driver.reserve("default", now=NOW, lease_for=LEASE) == []
        assert len(driver.reserve("default", now=NOW + LEASE, lease_for=LEASE)) == 1
        driver.pause("default")
        assert driver.reserve("default", now=NOW + LEASE, lease_for=LEASE) == []
        driver.resume("default")
        assert len(driver.reserve("default", now=NOW + LEASE, lease_for=LEASE)) == 1

    def test_a_token_names_one_call_only(self):
        driver, token = MemoryDriver(clock=lambda: NOW), uuid4()
        driver.enqueue_many([JobRecord(task="t"), JobRecord(task="t")])
        driver.reserve("default", now=NOW, lease_for=LEASE, token=token)
        with pytest.raises(ValueError, match="has named a reserve call before"):
            driver.reserve("default", now=NOW, lease_for=LEASE, token=token)

    @pytest.mark.parametrize("fields", [{}, {"delay": LEASE}, {"dependencies_left": 1}])
    def test_a_waiting_job_is_cancelled_at_once(self, fields):
        driver = MemoryDriver()
        job_id = driver.enqueue(JobRecord(task="t", **fields))
        driver.cancel(job_id, now=NOW)
        job = driver.read(job_id)
        assert (job.state, job.finished_at, job.cancel_requested_at) == ("cancelled", NOW, None)

    def test_an_ended_job_is_not_cancelled(self):
        driver = MemoryDriver(clock=lambda: NOW)
        driver.enqueue(JobRecord(task="t"))
        (held,) = driver.reserve("default", now=NOW, lease_for=LEASE)
        driver.ack(held.job.id, held.lease.token, now=NOW)
        driver.cancel(held.job.id, now=NOW, force=True)
        assert driver.read(held.job.id).state == "done"

    def test_what_is_read_is_a_copy(self):
        driver = MemoryDriver()
        job_id = driver.enqueue(JobRecord(task="t"))
        driver.read(job_id).attempts = 7
        assert driver.read(job_id).attempts == 0

    def test_a_closed_driver_refuses_also_what_is_beyond_the_contract(self):
        driver = MemoryDriver()
        job_id = driver.enqueue(JobRecord(task="t"))
        driver.close()
        for call in (
            lambda: driver.pause("default"),
            lambda: driver.resume("default"),
            lambda: driver.cancel(job_id, now=NOW),
        ):
            with pytest.raises(DriverClosed):
                call()


def forgives(error):
    """Make a fence that lets one kind of error through."""
    refusal = moves.refusal

    def forgiving(*args):
        found = refusal(*args)
        return None if type(found) is error else found

    return forgiving


def reclaims(**changes):
    """Make a reclaim that changes something it should leave alone, or the other way round."""
    reclaim = MemoryJob.reclaim

    def changed(job, now, max_lease_losses):
        before = replace(job)
        reclaim(job, now, max_lease_losses)
        for name, value in changes.items():
            setattr(job, name, value(before, now))

    return changed


def is_held_too_long(store, job, now):
    lease = store.lease_of(job)
    return lease is not None and lease.expires_at >= now


def shortened(driver, token, jobs, expires_at):
    driver._store.leases[token].expires_at = expires_at
    return Lease(token, expires_at)


def cancel_keeping_the_token(job, now):
    job.state, job.finished_at = JobState.CANCELLED, now


# What is broken, where, how, and a rule that must notice.
BROKEN = [
    (
        (MemoryJob, "is_due", lambda job, now: job.run_at is None or job.run_at < now),
        "test_a_job_is_due_at_exactly_run_at_and_not_a_tick_before",
    ),
    (
        (MemoryJob, "place", property(lambda job: (job.record.priority, job.available_at))),
        "test_a_release_keeps_the_place",
    ),
    (
        (MemoryStore, "is_held", is_held_too_long),
        "test_a_lease_is_reclaimed_at_exactly_its_end_and_not_a_tick_before",
    ),
    ((moves, "refusal", forgives(LeaseMismatch)), "test_a_wrong_token_does_not_match"),
    ((moves, "refusal", forgives(LeaseExpired)), "test_a_lease_is_expired_long_after_its_end"),
    (
        (MemoryJob, "reclaim", reclaims(run_at=lambda before, _: before.run_at)),
        "test_a_lost_lease_makes_the_job_runnable_at_once",
    ),
    (
        (MemoryJob, "reclaim", reclaims(available_at=lambda _, now: now)),
        "test_a_reclaimed_job_keeps_its_place",
    ),
    (
        (MemoryJob, "reclaim", reclaims(lease_losses=lambda *_: 0)),
        "test_a_job_that_lost_a_lease_is_alone_in_its_next",
    ),
    (
        (MemoryJob, "cancel", cancel_keeping_the_token),
        "test_a_reclaim_carries_out_the_request_and_charges_nobody",
    ),
    (
        (MemoryDriver, "_renew", shortened),
        "test_a_lease_of_several_jobs_never_ends_earlier_than_it_stood",
    ),
    ((moves, "was_applied", lambda *_: True), "test_after_a_reclaim_nothing_is_a_repeat"),
    (
        (MemoryDriver, "_check", lambda *_: None),
        "test_a_closed_driver_refuses_every_call",
    ),
]


class TestTheSuite:
    """A rule that cannot fail says nothing."""

    @pytest.mark.parametrize(("damage", "rule"), BROKEN, ids=[rule for _, rule in BROKEN])
    def test_a_broken_driver_is_found_out(self, monkeypatch, damage, rule):
        getattr(TestMemoryDriver(), rule)()
        monkeypatch.setattr(*damage)
        with pytest.raises(AssertionError):
            getattr(TestMemoryDriver(), rule)()

    def test_every_rule_has_a_name_of_its_own(self):
        names = Counter(
            name
            for group in DriverConformance.__mro__[1:-1]
            for name in vars(group)
            if not name.startswith("__")
        )
        assert [name for name, times in names.items() if times > 1] == []

    def test_it_runs_under_unittest_too(self):
        class Case(MemoryHooks, DriverConformance, unittest.TestCase):
            rounds = 1
            racers = 4

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
        assert result.wasSuccessful(), result.errors + result.failures
        assert result.testsRun > 200

    def test_an_error_in_a_thread_is_the_error_of_the_test(self):
        def stumble(driver, number):
            if number == 1:
                raise LookupError("in a thread")

        with pytest.raises(LookupError, match="in a thread"):
            TestMemoryDriver().crowd(stumble, count=3)

    def test_an_error_before_the_start_leaves_nobody_waiting(self):
        class Unreachable(TestMemoryDriver):
            def connect(self, driver):
                raise LookupError("no connection")

        with pytest.raises(LookupError, match="no connection"):
            Unreachable().crowd(lambda *_: None, count=3)

    def test_a_job_that_stays_locked_is_not_waited_for_for_ever(self):
        class Locked(MemoryDriver):
            def settle(self, outcomes, *, now):
                return [Rejection(outcome, JobLocked()) for outcome in outcomes]

        outcome = Outcome(job_id=uuid4(), token=uuid4(), kind=OutcomeKind.ACK)
        with pytest.raises(AssertionError, match="stayed locked"):
            persist(Locked(), [outcome], NOW)

    def test_a_missing_error_is_noticed(self):
        with pytest.raises(AssertionError, match="did not raise LookupError"):
            refused(LookupError, lambda: None)

    def test_a_more_special_error_is_another_error(self):
        with pytest.raises(AssertionError, match="not LookupError"):
            refused(LookupError, {}.__getitem__, "missing")

    def test_a_missing_job_is_noticed(self):
        with pytest.raises(AssertionError, match="is not stored"):
            TestMemoryDriver().look(uuid4())
