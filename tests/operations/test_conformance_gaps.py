"""What the five documents say and no other test holds; see docs/reference/conformance.md."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError

from taskharbor_django import Priority
from taskharbor_django.context import JobContext, current
from taskharbor_django.drivers import JobRecord, MemoryDriver
from taskharbor_django.exceptions import TemporaryError
from taskharbor_django.lifecycle import FailureCategory, OutcomeKind
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.values import FailureUpdate
from taskharbor_django.worker import trouble
from taskharbor_django.worker.trouble import Pause, Trouble
from tests.testapp import worker_tasks
from tests.testapp.tasks import add
from tests.worker.conftest import eventually, reservation, working  # noqa: F401  a fixture
from tests.worker.test_decide import decided, make_task

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)
LEASE, SECOND, TICK = timedelta(seconds=30), timedelta(seconds=1), timedelta(microseconds=1)


def put(**fields):
    return driver_for("default").enqueue(JobRecord(task="t", created_at=NOON, **fields))


def take(now):
    return driver_for("default").reserve("default", now=now, lease_for=LEASE)


# -- delivery -----------------------------------------------------------------------------------


def test_a_key_does_not_stop_a_second_run(db):
    """It dedupes enqueue: the one job runs again after a failure and after a lost lease."""
    driver, job_id = driver_for("default"), put(idempotency_key="k")
    (first,) = take(NOON)
    driver.retry(job_id, first.lease.token, now=NOON, update=FailureUpdate(attempts=1))
    (second,) = take(NOON)
    (third,) = take(second.lease.expires_at)
    assert [held.job.id for held in (first, second, third)] == [job_id] * 3
    assert third.job.executions == 3


def test_a_job_in_memory_is_gone_with_its_driver():
    driver = MemoryDriver(clock=lambda: NOON)
    job_id = driver.enqueue(JobRecord(task="t"))
    assert driver.read(job_id) is not None
    again = MemoryDriver(clock=lambda: NOON)
    assert again.read(job_id) is None
    assert again.reserve("default", now=NOON, lease_for=LEASE) == []


def test_a_failed_job_can_be_reserved_at_exactly_its_retry_time(db):
    driver, job_id, later = driver_for("default"), put(), NOON + SECOND
    (held,) = take(NOON)
    update = FailureUpdate(attempts=1, run_at=later)
    driver.retry(job_id, held.lease.token, now=NOON, update=update)
    assert take(later - TICK) == []
    assert [again.job.id for again in take(later)] == [job_id]


@pytest.mark.django_db(transaction=True)
def test_a_running_job_is_not_interrupted_for_a_more_urgent_one(eventually):  # noqa: F811
    worker_tasks.reset()
    running = worker_tasks.hold.using(priority=Priority.BULK).enqueue("gate")
    with working(threads=1):
        eventually(lambda: worker_tasks.seen["gate"])
        urgent = add.using(priority=Priority.CRITICAL).enqueue(1)
        with pytest.raises(TimeoutError):
            urgent.wait(0.3)
        assert not worker_tasks.seen["gate"][0].cancelled
        worker_tasks.gates["gate"].set()
        assert urgent.wait(20).state == "done"
    job = running.refresh()
    assert (job.state, job.executions, job.attempts) == ("done", 1, 0)


# -- states and times ---------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_job_that_runs_longer_than_a_beat_is_seen_to_run(eventually):  # noqa: F811
    worker_tasks.reset()
    handle = worker_tasks.hold.enqueue("gate")
    with working(lease=1.2 * SECOND, heartbeat=0.3 * SECOND):
        eventually(lambda: handle.refresh().state_in("contracts") == "running")
        assert handle.refresh().started_at >= handle.refresh().created_at
        worker_tasks.gates["gate"].set()
        handle.wait(20)


def test_the_time_of_the_last_change_follows_each_move(db):
    driver, handle = driver_for("default"), add.enqueue(1)
    created_at = handle.refresh().created_at
    later = [created_at + SECOND * number for number in range(1, 6)]
    seen = []

    def look():
        seen.append(handle.refresh().updated_at)

    (held,) = take(later[0])
    look()
    update = FailureUpdate(attempts=1, run_at=later[2])
    driver.retry(handle.id, held.lease.token, now=later[1], update=update)
    look()
    driver.reserve("elsewhere", now=later[2], lease_for=LEASE)  # promotes what is due
    look()
    (held,) = take(later[3])
    look()
    driver.ack(handle.id, held.lease.token, now=later[4])
    look()
    assert seen == later


# -- failures -----------------------------------------------------------------------------------


def test_the_cause_of_an_error_is_in_its_traceback():
    error = TemporaryError("the shop did not answer", retry_after=5)
    error.__cause__ = ConnectionResetError("by the peer")
    update = decided(error).update
    assert "ConnectionResetError: by the peer" in update.traceback
    assert update.last_error.endswith("TemporaryError: the shop did not answer")


def test_a_task_says_whether_system_failures_are_tried_again():
    assert decided(MemoryError()).kind == OutcomeKind.RETRY
    task = make_task(bury_on=(FailureCategory.SYSTEM,))
    assert decided(MemoryError(), task).kind == OutcomeKind.FAIL


def test_the_pause_for_a_database_that_is_away_grows_up_to_a_limit(monkeypatch):
    away = Trouble("reserve")
    away.pause = Pause(jitter=0)
    pauses = [away.began(OperationalError("gone")) for _ in range(8)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    away.ended()
    monkeypatch.setattr(trouble, "WELL_FOR", 0.0)
    assert away.began(OperationalError("gone")) == 0.5


# -- what a handler is told ---------------------------------------------------------------------


def context_of(**fields):
    return JobContext(reservation(**fields), runtime=None)


def test_a_handler_is_told_the_key_of_its_job():
    assert context_of(idempotency_key="order-7").idempotency_key == "order-7"


def test_a_job_enqueued_inside_another_names_its_parent_and_shares_the_correlation_id(db):
    context = context_of(correlation_id="order-7")
    token = current.set(context)
    try:
        inside = add.enqueue(1).refresh()
        own = add.using(correlation_id="other").enqueue(1).refresh()
    finally:
        current.reset(token)
    assert (inside.parent_id, inside.correlation_id) == (context.job_id, "order-7")
    assert (own.parent_id, own.correlation_id) == (context.job_id, "other")
    assert add.enqueue(1).refresh().parent_id is None
