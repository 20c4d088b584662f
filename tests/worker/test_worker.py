"""A worker in this process, on a real database."""

import contextlib
import logging
import os
import sqlite3
import threading
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, connections, transaction

from taskharbor_django import cancel
from taskharbor_django.clock import steady
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.exceptions import JobLocked, LeaseExpired
from taskharbor_django.failpoints import FailpointReached, armed
from taskharbor_django.lifecycle import AttemptEnd, DeadReason, JobState
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, QueueMinute, Worker
from taskharbor_django.operations.workers import ask_workers
from taskharbor_django.values import JobRecord, Rejection
from taskharbor_django.worker import async_pool, last_acts, loop, pools
from taskharbor_django.worker import completer as completer_module
from taskharbor_django.worker import connections as worker_connections
from taskharbor_django.worker import worker as worker_module
from taskharbor_django.worker.options import WorkerOptions
from tests.factories import job_in, utcnow
from tests.testapp import worker_tasks as tasks
from tests.testapp.models import Ledger
from tests.testapp.tasks import add

from .conftest import drain, working

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh():
    tasks.reset()
    yield
    for gate in tasks.gates.values():
        gate.set()


def facts(handle):
    job = handle.refresh()
    return job.state, job.executions, job.attempts, job.lease_losses


def test_jobs_are_run_and_their_results_kept():
    handles = [add.enqueue(number, 1) for number in range(25)]
    drain()
    assert [handle.result for handle in handles] == list(range(1, 26))
    assert Lease.objects.count() == 0


def test_a_failing_job_uses_its_attempts_and_is_buried_with_a_trace_of_each():
    handle = tasks.stepwise.using(max_attempts=2).enqueue(9)
    with working():
        assert handle.wait(20).state == JobState.DEAD
    assert facts(handle) == ("dead", 2, 2, 0)
    letter = DeadLetter.objects.get(open_for=handle.id)
    assert (letter.reason, letter.error_class) == (DeadReason.EXHAUSTED, "ValueError")
    assert "another step to go" in letter.traceback
    first, second = Attempt.objects.filter(job=handle.id).order_by("lease_version")
    assert (first.number, second.number, second.previous_id) == (1, 2, first.pk)


def test_a_permanent_error_is_buried_at_once():
    handle = tasks.bury.enqueue()
    drain()
    assert facts(handle) == ("dead", 1, 1, 0)
    assert DeadLetter.objects.get().reason == DeadReason.PERMANENT


def test_checkpoints_progress_and_the_previous_attempt_survive_retries():
    handle = tasks.stepwise.enqueue(3)
    with working():
        handle.wait(20)
    assert handle.result == (3, True)


def test_a_snooze_costs_no_attempt():
    handle = tasks.snooze_once.enqueue()
    with working():
        handle.wait(20)
    assert (facts(handle), handle.result) == (("done", 2, 0, 0), 2)


def test_a_result_that_cannot_be_stored_does_not_stop_the_ack():
    from taskharbor_django.exceptions import ResultNotStored

    handle = tasks.unstorable.enqueue()
    drain()
    assert handle.refresh().state == JobState.DONE
    with pytest.raises(ResultNotStored):
        _ = handle.result


def test_coroutines_run_side_by_side():
    handles = [tasks.meet.enqueue(number) for number in range(20)]
    with working():
        assert {handle.wait(20).state for handle in handles} == {JobState.DONE}


def test_a_coroutine_is_cancelled_at_its_timeout():
    handle = tasks.sleepy.using(max_attempts=1).enqueue()
    with working():
        handle.wait(20)
    assert Attempt.objects.get(job=handle.id).category == "timeout"


def test_an_endless_loop_in_a_thread_is_stopped_at_its_timeout_and_the_thread_goes_on():
    handle = tasks.endless.using(max_attempts=1).enqueue()
    with working(threads=1) as worker:
        handle.wait(20)
        after = add.enqueue(1, 1)
        assert after.wait(20).state == JobState.DONE
        assert not worker.replace
    assert Attempt.objects.get(job=handle.id).category == "timeout"


def test_a_thread_that_will_not_stop_is_left_behind_and_the_process_makes_way(eventually):
    handle = tasks.stuck.using(max_attempts=1).enqueue("stuck")
    with working(threads=2, stubborn_after=0.2) as worker:
        assert handle.wait(20).state == JobState.DEAD
        assert eventually(lambda: worker.replace)
        assert eventually(lambda: worker.stopping)
    assert Attempt.objects.get(job=handle.id).category == "timeout"


def test_the_connection_of_a_timed_out_thread_is_not_used_again(monkeypatch):
    # By default Django closes a connection after each job anyway.
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    handle = tasks.stuck_in_query.using(max_attempts=1).enqueue()
    with working(threads=1):
        assert handle.wait(30).state == JobState.DEAD
        after = tasks.session.enqueue()
        after.wait(20)
    assert after.result["atomic"] is False
    assert after.result["id"] != id(tasks.seen["session"][0])
    assert not Ledger.objects.filter(name="half").exists()


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_the_session_of_a_thread_that_was_left_behind_is_cut(eventually):
    """Its job has failed: its locks go at once, and it can commit nothing later."""
    Ledger.objects.create(name="account", amount=1)
    handle = tasks.stuck_in_transaction.using(max_attempts=1).enqueue("stuck")
    with working(threads=2, stubborn_after=0.2) as worker:
        eventually(lambda: tasks.seen["stuck"])
        assert not is_unlocked("account")
        thread = thread_of(worker, tasks.seen["stuck"][0])
        assert handle.wait(20).state == JobState.DEAD
        eventually(lambda: is_unlocked("account"))
        tasks.gates["stuck"].set()
        thread.join(20)
        assert not thread.is_alive()
    assert Ledger.objects.get().amount == 1


@pytest.mark.sqlite
def test_the_query_of_a_thread_that_was_left_behind_is_ended(eventually):
    """There is no server there whose session could be cut: what takes the time is the query."""
    handle = tasks.stuck_in_a_long_query.using(max_attempts=1).enqueue()
    try:
        with working(threads=2, stubborn_after=0.2) as worker:
            eventually(lambda: tasks.seen["stuck"])
            thread = thread_of(worker, tasks.seen["stuck"][0])
            assert handle.wait(20).state == JobState.DEAD
            thread.join(20)
            assert not thread.is_alive()
    finally:
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed, as it should be
            tasks.seen["session"][0].interrupt()
    assert Attempt.objects.get(job=handle.id).category == "timeout"


def thread_of(worker, ident):
    (thread,) = [it for it in worker.slots.threads._threads if it.ident == ident]
    return thread


def is_unlocked(name):
    """Whether no session holds this line of the ledger."""
    with transaction.atomic():
        return Ledger.objects.select_for_update(skip_locked=True).filter(name=name).exists()


def test_a_transaction_that_a_handler_left_open_is_not_inherited():
    tasks.leak.enqueue()
    after = tasks.session.enqueue()
    drain(threads=1)
    assert after.result["atomic"] is False
    assert not Ledger.objects.filter(name="leaked").exists()


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_transaction_that_a_handler_left_open_holds_no_lock_while_the_thread_idles(eventually):
    Ledger.objects.create(name="account", amount=1)
    handle = tasks.leak_lock.enqueue("account")
    with working(threads=1):
        assert handle.wait(20).state == JobState.DONE
        eventually(lambda: is_unlocked("account"))
    assert Ledger.objects.get().amount == 1


# -- atomic tasks ------------------------------------------------------------------------------


def test_an_atomic_task_commits_its_writes_with_its_ack():
    handle = tasks.book.enqueue("a", 1)
    drain()
    assert facts(handle) == ("done", 1, 0, 0)
    assert Ledger.objects.get().name == "a"


def test_what_an_atomic_task_wrote_before_it_failed_is_gone():
    handle = tasks.book_and_fail.using(max_attempts=1).enqueue("a")
    drain()
    assert facts(handle) == ("dead", 1, 1, 0)
    assert not Ledger.objects.exists()


@pytest.mark.parametrize("point", ["atomic.called", "atomic.settled"])
def test_an_atomic_task_that_is_cut_off_leaves_nothing_and_its_retry_writes_once(point):
    def fail_once():
        if not tasks.seen["failed"]:
            tasks.seen["failed"].append(True)
            raise FailpointReached

    handle = tasks.book.using(max_attempts=2).enqueue("a", 1)
    with armed(point, fail_once), working():
        assert handle.wait(20).state == JobState.DONE
    assert facts(handle)[:3] == ("done", 2, 1)
    assert Ledger.objects.count() == 1


# SQLite has one writer: there nobody can cancel inside another's transaction.
@pytest.mark.postgresql
@pytest.mark.mariadb
def test_an_atomic_task_whose_token_was_taken_away_writes_nothing(eventually):
    def take_away():
        cancel([handle.id], force=True)

    handle = tasks.book.enqueue("a", 1)
    with armed("atomic.called", lambda: in_other_thread(take_away)), working() as worker:
        eventually(lambda: handle.refresh().state == JobState.CANCELLED)
        eventually(lambda: not worker.slots.threads.busy)
    assert not Ledger.objects.exists()
    assert handle.refresh().state == JobState.CANCELLED


def in_other_thread(function):
    """With a connection of its own: the handler's is in a transaction."""
    error = []

    def run():
        try:
            function()
        except BaseException as raised:  # noqa: BLE001  raised again in the caller
            error.append(raised)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    if error:
        raise error[0]


# -- leases ------------------------------------------------------------------------------------

SHORT = {"lease": timedelta(seconds=1.2), "heartbeat": timedelta(seconds=0.3)}


def nothing_to_reserve():
    """Whether another worker, at this moment, would get nothing."""
    driver = DatabaseDriver()
    return driver.reserve("default", now=driver.now(), lease_for=timedelta(seconds=5)) == []


def test_a_job_that_runs_longer_than_its_lease_keeps_it(eventually):
    handle = tasks.hold.enqueue("gate")
    with working(**SHORT):
        eventually(lambda: tasks.seen["gate"])
        first = Lease.objects.get().expires_at
        eventually(lambda: Lease.objects.get().expires_at > first + timedelta(seconds=1.5))
        assert nothing_to_reserve()
        tasks.gates["gate"].set()
        handle.wait(20)
    assert facts(handle) == ("done", 1, 0, 0)


def test_jobs_that_wait_for_a_slot_are_heartbeated_too(eventually):
    """One slot, held; what was reserved beside it must keep its lease while it waits."""
    handles = [tasks.hold.enqueue("gate") for _ in range(3)]
    with working(threads=3, **SHORT) as worker:
        eventually(lambda: len(tasks.seen["gate"]) == 3)
        extra = add.enqueue(1, 1)
        now = worker.clock.now()
        from taskharbor_django.clock import steady

        reserved = worker.driver.reserve("default", now=now, lease_for=SHORT["lease"])
        waiting = worker.holdings.add(reserved, steady() + 1.2)
        first = Lease.objects.get(token=reserved[0].lease.token).expires_at
        eventually(
            lambda: (
                Lease.objects.get(token=reserved[0].lease.token).expires_at
                > first + timedelta(seconds=1.5)
            )
        )
        worker.slots.threads.put(waiting)
        tasks.gates["gate"].set()
        assert extra.wait(20).state == JobState.DONE
        for handle in handles:
            handle.wait(20)
    assert facts(extra) == ("done", 1, 0, 0)


def test_the_lease_of_a_job_in_the_line_is_renewed(eventually, monkeypatch):
    """No thread has looked at it yet, and until one does it is held all the same."""
    monkeypatch.setattr(loop, "WAITED_TOO_LONG", 60.0)
    running = tasks.hold.enqueue("gate")
    with working(threads=1, heartbeat=timedelta(seconds=0.2)) as worker:
        eventually(lambda: tasks.seen["gate"])
        waiting = add.enqueue(1, 1)
        now, valid_until = worker.clock.now(), steady() + 30
        (reserved,) = worker.driver.reserve("default", now=now, lease_for=timedelta(seconds=30))
        worker._take_on([reserved], valid_until)
        lease = reserved.lease
        eventually(lambda: Lease.objects.get(pk=lease.token).expires_at > lease.expires_at)
        assert len(worker.slots.threads.line) == 1
        tasks.gates["gate"].set()
        assert waiting.wait(20).state == JobState.DONE
    assert facts(waiting) == facts(running) == ("done", 1, 0, 0)


def test_a_beat_calls_for_what_looked_expired(monkeypatch):
    """It was renewed just now: nothing has to sit out its pause."""
    monkeypatch.setattr(completer_module, "EXPIRED_PAUSE", 60.0)
    settle = DatabaseDriver.settle
    refused = []

    def refusing(self, outcomes, *, now):
        if not refused:
            refused.extend(outcomes)
            return [Rejection(outcome, LeaseExpired()) for outcome in outcomes]
        return settle(self, outcomes, now=now)

    monkeypatch.setattr(DatabaseDriver, "settle", refusing)
    handle = add.enqueue(1, 1)
    with working(heartbeat=timedelta(seconds=0.2)):
        assert handle.wait(20).state == JobState.DONE
    assert [outcome.job_id for outcome in refused] == [handle.id]
    assert facts(handle) == ("done", 1, 0, 0)


def test_who_starts_without_a_database_looks_for_it_as_often_as_a_heartbeat(monkeypatch):
    """Ever later up to that, and not up to half a minute: nothing else would call it."""
    worker, waited = worker_module.Worker(WorkerOptions(heartbeat=timedelta(seconds=2))), []

    def fail():
        raise OperationalError("away")

    def wait(pause):
        waited.append(pause)
        if len(waited) == 20:
            worker.stop()

    monkeypatch.setattr(worker.clock, "measure", fail)
    monkeypatch.setattr(worker._wakeup, "wait", wait)
    assert not worker._wait_for_database()
    assert waited[0] <= 0.5 * 1.25
    assert 1.5 <= max(waited) <= 2.0 * 1.25


def test_a_lease_that_a_settle_without_a_reply_has_emptied_is_not_lost(
    eventually, monkeypatch, caplog
):
    """Beats come before it is sent again: they find the lease gone, and its job has ended."""
    settle, renew = DatabaseDriver.settle, DatabaseDriver.extend_leases
    sent, beats = [], threading.Semaphore(0)

    def unheard(self, outcomes, *, now):
        rejections = settle(self, outcomes, now=now)
        sent.append(rejections)
        if len(sent) == 1:
            for _ in range(2):
                beats.acquire(timeout=20)
            raise OperationalError("the line was cut")
        return rejections

    def counted(self, *args, **kwargs):
        renewed = renew(self, *args, **kwargs)
        if sent:
            beats.release()
        return renewed

    monkeypatch.setattr(DatabaseDriver, "settle", unheard)
    monkeypatch.setattr(DatabaseDriver, "extend_leases", counted)
    handle = add.enqueue(1, 1)
    with working(heartbeat=timedelta(seconds=0.2)) as worker:
        eventually(lambda: len(sent) == 2)
        eventually(lambda: not worker.holdings)
        assert (worker._presence.tally["ack"], worker._presence.too_late) == (1, 0)
    assert [it.repeated for it in sent[1]] == [True]
    assert facts(handle) == ("done", 1, 0, 0)
    assert "is lost" not in caplog.text


def test_while_outcomes_cannot_be_settled_no_more_is_reserved_than_a_few(eventually, monkeypatch):
    monkeypatch.setattr("taskharbor_django.worker.worker.MOST_UNSETTLED", 20)
    settle, goes_on = DatabaseDriver.settle, threading.Event()

    def late(self, outcomes, *, now):
        goes_on.wait(20)
        return settle(self, outcomes, now=now)

    monkeypatch.setattr(DatabaseDriver, "settle", late)
    add.enqueue_many((number,) for number in range(300))
    with working(prefetch=0) as worker:
        eventually(lambda: worker._unsettled() > 20)
        eventually(lambda: worker._loop.hungry and worker.slots.threads.at_rest)
        assert len(worker.holdings) <= 20 + worker.slots.threads.size
        assert Job.objects.filter(state="ready").count() >= 200
        goes_on.set()
        eventually(lambda: not Job.objects.exclude(state="done").exists())


def test_while_the_server_can_settle_nothing_no_more_is_reserved(eventually, monkeypatch):
    """It would run, and wait with the others; its lease may not last so long."""
    settle, refused = DatabaseDriver.settle, []

    def full(self, outcomes, *, now):
        if len(refused) >= 3:
            return settle(self, outcomes, now=now)
        refused.append(len(outcomes))
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(DatabaseDriver, "settle", full)
    add.enqueue_many((number,) for number in range(100))
    with working(prefetch=0) as worker:
        eventually(lambda: len(refused) == 2)
        assert len(worker.holdings) <= 4 * worker.slots.threads.size
        eventually(lambda: not Job.objects.exclude(state="done").exists())


def test_outcomes_that_can_never_be_settled_do_not_keep_others_from_running(
    eventually, monkeypatch
):
    """Whether it is they or the database is seen only when others come."""
    settle, cursed = DatabaseDriver.settle, {add.enqueue(1, 1).id for _ in range(3)}

    def picky(self, outcomes, *, now):
        if any(outcome.job_id in cursed for outcome in outcomes):
            raise OperationalError("a trigger says no")
        return settle(self, outcomes, now=now)

    monkeypatch.setattr(DatabaseDriver, "settle", picky)
    monkeypatch.setattr("taskharbor_django.worker.trouble.FIRST_PAUSE", 0.001)
    with working(prefetch=0, threads=1) as worker:
        eventually(lambda: worker._unsettled() == len(cursed))
        assert worker._completer.trouble.lasts
        assert add.enqueue(1, 1).wait(20).state == JobState.DONE
        monkeypatch.setattr(DatabaseDriver, "settle", settle)
        worker._completer._aside_until = 0.0
        worker._completer.hurry()


def test_a_lost_lease_stops_the_job_and_its_outcome_does_not_count(eventually):
    handle = tasks.hold.enqueue("gate")
    with working(**SHORT) as worker:
        eventually(lambda: tasks.seen["gate"])
        taken = uuid4()
        Job.objects.filter(pk=handle.id).update(lease=taken, lease_version=2)
        Lease.objects.all().delete()
        Lease.objects.create(
            token=taken,
            call=taken,
            acquired_at=worker.clock.now(),
            expires_at=worker.clock.now() + timedelta(hours=1),
        )
        eventually(lambda: tasks.seen["gate"][0].cancelled)
        eventually(lambda: not worker.slots.threads.busy)
    job = handle.refresh()
    assert (job.state, job.lease) == (JobState.INFLIGHT, taken)


def test_a_reserve_whose_reply_was_lost_is_asked_for(eventually, monkeypatch):
    handle = add.enqueue(1, 1)
    reserve = DatabaseDriver.reserve
    lost = []

    def losing(self, queue, **options):
        reserved = reserve(self, queue, **options)
        if reserved and not lost:
            lost.append(reserved)
            raise OperationalError("the connection was cut after COMMIT was sent")
        return reserved

    monkeypatch.setattr(DatabaseDriver, "reserve", losing)
    with working(lease=timedelta(seconds=60), heartbeat=timedelta(seconds=0.2)):
        assert handle.wait(20).state == JobState.DONE
    assert facts(handle) == ("done", 1, 0, 0)


def test_what_was_reserved_runs_although_it_could_not_be_announced(monkeypatch):
    """Held and in no pool it would be renewed for ever."""

    def fail(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("taskharbor_django.worker.announcer.Announcer.reserved", fail)
    handle = add.enqueue(1, 1)
    with working():
        assert handle.wait(20).state == JobState.DONE
    assert facts(handle) == ("done", 1, 0, 0)


def test_a_failure_that_cannot_be_logged_is_settled_and_told_of(broken_log, monkeypatch):
    told = []
    monkeypatch.setattr(
        "taskharbor_django.worker.announcer.Announcer.settled",
        lambda _, finished, **__: told.extend(running.job_id for running, _ in finished),
    )
    handles = [tasks.bury.enqueue(), tasks.book_and_fail.using(max_attempts=1).enqueue("a")]
    with broken_log("failures"):
        drain(threads=1)
    assert {facts(handle) for handle in handles} == {("dead", 1, 1, 0)}
    assert sum(QueueMinute.objects.values_list("dead", flat=True)) == 2
    assert set(told) == {handle.id for handle in handles}


@pytest.mark.parametrize("task", [add, tasks.anothing])
def test_the_job_of_a_dead_worker_runs_in_quarantine_and_its_loss_is_written_down(task):
    handle = task.enqueue(1, 1)
    driver = DatabaseDriver()
    driver.reserve("default", now=driver.now(), lease_for=timedelta(microseconds=1))
    ran = []
    with working(max_lease_losses=3) as worker:
        isolated = worker.slots.threads._isolated
        worker.slots.threads._isolated = lambda *run: ran.append(run[0]) or isolated(*run)
        assert handle.wait(60).state == JobState.DONE
    assert facts(handle) == ("done", 2, 0, 1)
    assert [each.job_id for each in ran] == [handle.id]
    assert Attempt.objects.get(job=handle.id).end == AttemptEnd.LOST


# -- cancel ------------------------------------------------------------------------------------


def test_a_running_job_learns_of_a_request_within_a_heartbeat(eventually):
    handle = tasks.hold.enqueue("gate")
    with working(**SHORT):
        eventually(lambda: tasks.seen["gate"])
        assert handle.cancel()
        assert handle.wait(10).state == JobState.CANCELLED
    assert facts(handle) == ("cancelled", 1, 0, 0)
    assert not DeadLetter.objects.exists()


def test_a_normal_return_wins_over_a_request(eventually):
    handle = tasks.hold.enqueue("gate")
    with working():
        eventually(lambda: tasks.seen["gate"])
        tasks.seen["gate"][0].check_cancelled = lambda: None
        handle.cancel()
        tasks.gates["gate"].set()
        assert handle.wait(10).state == JobState.DONE


def test_a_forced_cancel_ends_at_once_and_stops_the_handler(eventually):
    handle = tasks.hold.enqueue("gate")
    with working(**SHORT) as worker:
        eventually(lambda: tasks.seen["gate"])
        handle.cancel(force=True)
        assert handle.refresh().state == JobState.CANCELLED
        eventually(lambda: not worker.slots.threads.busy)
    assert facts(handle) == ("cancelled", 1, 0, 0)


def test_a_worker_says_at_its_end_how_many_outcomes_came_too_late(eventually, caplog):
    caplog.set_level(logging.INFO, "taskharbor_django")
    handles = [tasks.hold.enqueue("gate"), tasks.hold.enqueue("gate")]
    with working():
        eventually(lambda: len(tasks.seen["gate"]) == 2)
        handles[0].cancel(force=True)
        tasks.gates["gate"].set()
        handles[1].wait(10)
    (record,) = [it for it in caplog.records if hasattr(it, "too_late")]
    assert (record.too_late, record.finished) == (1, 1)
    assert record.getMessage().endswith("given back: 0, too late: 1")


# -- shutdown, statistics ----------------------------------------------------------------------


def test_a_shutdown_gives_running_jobs_back_without_charge(eventually):
    handle = tasks.hold.enqueue("gate")
    with working(grace=timedelta(0)):
        eventually(lambda: tasks.seen["gate"])
    assert facts(handle) == ("ready", 1, 0, 0)
    assert Lease.objects.count() == 0


def test_a_shutdown_gives_back_what_had_not_started_as_if_it_had_never_been_reserved(eventually):
    handles = [tasks.hold.enqueue("gate") for _ in range(2)]
    with working(threads=1, grace=timedelta(0)) as worker:
        eventually(lambda: tasks.seen["gate"])
        from taskharbor_django.clock import steady

        reserved = worker.driver.reserve(
            "default", now=worker.clock.now(), lease_for=timedelta(seconds=30)
        )
        worker.slots.threads.put(worker.holdings.add(reserved, steady() + 30))
    assert sorted(facts(handle) for handle in handles) == [("ready", 0, 0, 0), ("ready", 1, 0, 0)]


def test_leases_are_released_after_the_last_handler_has_stopped(eventually):
    """While a handler still runs, nobody else may get its job."""
    handle = tasks.hold.enqueue("gate")
    with working(grace=timedelta(seconds=30)) as worker:
        eventually(lambda: tasks.seen["gate"])
        worker.stop()
        eventually(worker._wakeup._stopping.is_set)
        assert handle.refresh().state == JobState.INFLIGHT
        assert nothing_to_reserve()
        tasks.gates["gate"].set()
    assert facts(handle) == ("done", 1, 0, 0)


def test_leases_are_renewed_while_a_shutdown_waits(eventually):
    handle = tasks.hold.enqueue("gate")
    with working(grace=timedelta(seconds=30), heartbeat=timedelta(seconds=0.2)) as worker:
        eventually(lambda: tasks.seen["gate"])
        worker.stop()
        eventually(worker._wakeup._stopping.is_set)
        before = Lease.objects.get().expires_at
        eventually(lambda: Lease.objects.get().expires_at > before)
        tasks.gates["gate"].set()
    assert facts(handle) == ("done", 1, 0, 0)


def test_the_job_of_a_handler_that_will_not_stop_is_released_as_the_last_act(
    eventually, monkeypatch
):
    monkeypatch.setattr(worker_module, "UNWILLING", 0.2)
    handle = tasks.stuck.using(timeout=120).enqueue("stuck")
    seen = {}

    def note(part, name, verb="close"):
        close = getattr(part, verb)

        def closing(*args, **kwargs):
            before = handle.refresh().state
            ended = close(*args, **kwargs)
            seen[name] = before, handle.refresh().state
            return ended

        monkeypatch.setattr(part, verb, closing)

    with working(grace=timedelta(0)) as worker:
        eventually(lambda: tasks.seen["stuck"])
        note(worker.slots.threads, "threads")
        note(worker._heartbeat, "heartbeat")
        note(worker._presence, "its row and its last line", "stop")
    held = (JobState.INFLIGHT, JobState.INFLIGHT)
    assert seen == dict.fromkeys(("threads", "heartbeat", "its row and its last line"), held)
    assert facts(handle) == ("scheduled", 1, 0, 0)
    job = Job.objects.get(pk=handle.id)
    head_start = (job.available_at - job.updated_at).total_seconds()
    assert head_start == pytest.approx(last_acts.HEAD_START, abs=0.5)


def test_logs_that_raise_when_a_worker_ends_keep_nothing_held(
    eventually, monkeypatch, broken_log, caplog
):
    caplog.set_level(logging.INFO, "taskharbor_django")
    monkeypatch.setattr(worker_module, "UNWILLING", 0.2)
    handle = tasks.stuck.using(timeout=120).enqueue("stuck")
    with contextlib.ExitStack() as logs, working(grace=timedelta(0)):
        eventually(lambda: tasks.seen["stuck"])
        logs.enter_context(broken_log("banner"))
    assert facts(handle) == ("scheduled", 1, 0, 0)
    assert Lease.objects.count() == 0


def test_the_worker_row_and_the_statistics_say_what_happened():
    for number in range(3):
        add.enqueue(number)
    tasks.bury.enqueue()
    worker = drain(name="alpha")
    row = Worker.objects.get(pk=worker.options.id)
    assert row.name == "alpha"
    assert row.stopped_at is not None
    totals = QueueMinute.objects.filter(worker=row.pk).values_list("done", "dead")
    assert [sum(column) for column in zip(*totals, strict=True)] == [3, 1]


def test_the_worker_row_says_how_busy_a_worker_is_and_what_memory_it_takes(eventually):
    handle = tasks.hold.enqueue("gate")
    with working(threads=3, **SHORT) as worker:
        row = Worker.objects.filter(pk=worker.options.id)
        (memory, pid) = eventually(lambda: row.filter(busy=1).values_list("memory_bytes", "pid"))[0]
        assert pid == os.getpid()
        assert memory > 1_000_000
        tasks.gates["gate"].set()
        handle.wait(20)
        eventually(lambda: row.filter(busy=0).exists())


def test_coroutines_keep_no_thread_busy(eventually):
    Ledger.objects.create(name="read by all", amount=1)
    waiting = [tasks.iterate.enqueue() for _ in range(3)]
    with working(threads=1, **SHORT) as worker:
        eventually(lambda: len(worker.slots.coroutines.busy) == 3)
        rows = Worker.objects.filter(pk=worker.options.id)
        beat = rows.get().last_beat_at
        assert eventually(lambda: rows.filter(last_beat_at__gt=beat))[0].busy == 0
        tasks.gates["iterate"].set()
        assert [handle.wait(20).state for handle in waiting] == ["done"] * 3


def test_a_worker_can_be_asked_to_be_quiet_and_called_back(eventually):
    with working(**SHORT) as worker:
        eventually(lambda: ask_workers([worker.options.id], "quiet"))
        # Quiet may be heard while a reserve is on its way, which would take the job: hungry is
        # what the loop is once it has looked and wants none.
        eventually(lambda: worker.quiet and worker._loop.hungry)
        handle = add.enqueue(1, 1)
        beats = Worker.objects.filter(pk=worker.options.id, last_beat_at__gt=utcnow())
        eventually(beats.exists)
        assert handle.refresh().state == JobState.READY
        ask_workers([worker.options.id], "")
        assert handle.wait(20).state == JobState.DONE


def test_a_worker_can_be_asked_to_stop_through_its_row(eventually):
    with working(**SHORT) as worker:
        eventually(lambda: Worker.objects.filter(pk=worker.options.id).update(request="stop"))
        eventually(lambda: worker.stopping)


def test_a_paused_queue_is_left_alone(eventually):
    from taskharbor_django.models import Queue

    Queue.objects.create(name="later", paused_at=DatabaseDriver().now())
    paused = add.using(queue="later").enqueue(1, 1)
    running = add.using(queue="now").enqueue(1, 1)
    drain()
    assert (paused.refresh().state, running.refresh().state) == (JobState.READY, JobState.DONE)


def test_named_queues_are_emptied_in_their_order():
    order = []
    for queue in ("low", "high"):
        for _ in range(3):
            add.using(queue=queue).enqueue(1, 1)
    drain(queues=("high", "low"), threads=1, prefetch=0)
    ended = Job.objects.order_by("finished_at", "seq").values_list("queue", flat=True)
    order = list(ended)
    assert order == ["high"] * 3 + ["low"] * 3


def test_a_task_nobody_knows_is_given_back_for_later():
    job_id = DatabaseDriver().enqueue(JobRecord(task="nobody.knows.this"))
    drain()
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.handler_misses, job.attempts) == (JobState.SCHEDULED, 1, 0)


def test_a_worker_asks_the_database_for_the_time_or_this_machine_if_told_so(settings, monkeypatch):
    from datetime import UTC, datetime

    from taskharbor_django.worker.options import WorkerOptions
    from taskharbor_django.worker.worker import Worker as WorkerProcess

    far = datetime(2050, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(DatabaseDriver, "now", lambda _: far)
    assert WorkerProcess(WorkerOptions()).clock.now() >= far
    settings.TASKHARBOR = {"CLOCK": "local", "CLOCK_SKEW": 1}
    assert WorkerProcess(WorkerOptions()).clock.now() < far


@pytest.mark.postgresql
@pytest.mark.parametrize("task", [tasks.backend, tasks.abackend])
def test_a_connection_that_died_while_nothing_ran_is_replaced(monkeypatch, task):
    monkeypatch.setattr(pools, "DOUBT_AFTER", 0.0)
    with working(threads=1):
        before = task.enqueue()
        before.wait(20)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [before.result])
        after = task.enqueue()
        after.wait(20)
    assert facts(after) == ("done", 1, 0, 0)
    assert after.result != before.result


def test_coroutines_that_use_no_database_are_not_cleaned_up_after(monkeypatch):
    """It takes two changes of thread, half of what a short one costs."""
    called = []

    def counted(function):
        called.append(function)
        return sync_to_async(function)

    monkeypatch.setattr(async_pool, "sync_to_async", counted)
    with working():
        tasks.anothing.enqueue().wait(20)
        assert called == []
        tasks.acount.enqueue().wait(20)
    assert called


@pytest.mark.parametrize(("failed", "closed"), [(True, 1), (False, 0)])
def test_a_connection_that_failed_is_looked_at_although_other_coroutines_run(
    monkeypatch, failed, closed
):
    """While the line is full there is always another one."""
    looked = []
    kept = SimpleNamespace(
        connection=object(),
        in_atomic_block=False,
        get_autocommit=lambda: True,
        errors_occurred=failed,
        close_if_unusable_or_obsolete=lambda: looked.append(1),
    )
    monkeypatch.setattr(worker_connections, "_all", lambda: [kept])
    worker_connections.undo()
    assert len(looked) == closed


def test_the_end_of_a_coroutine_leaves_the_connection_to_the_others():
    """All share one; by default Django closes it after each use that has an end."""
    Ledger.objects.bulk_create(Ledger(name=f"row {number}", amount=1) for number in range(30))
    long = tasks.iterate.using(max_attempts=1).enqueue()
    with working():
        for _ in range(5):
            tasks.acount.enqueue().wait(20)
        tasks.gates["iterate"].set()
        assert long.wait(20).state == JobState.DONE
    assert long.result == 30


@pytest.mark.postgresql
def test_a_connection_that_died_is_replaced_for_all_coroutines_of_a_batch():
    settings = connections["default"].settings_dict
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(settings, "CONN_MAX_AGE", None)
        with working() as worker:
            before = tasks.abackend.enqueue()
            before.wait(20)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", [before.result])
            with transaction.atomic():
                after = [tasks.abackend.enqueue() for _ in range(4)]
            assert [handle.wait(20).state for handle in after] == ["done"] * 4
            assert worker.slots.coroutines.busy == set()
    assert {facts(handle) for handle in after} == {("done", 1, 0, 0)}


def test_a_worker_says_how_many_jobs_it_took_back(caplog, monkeypatch, eventually):
    caplog.set_level(logging.INFO, "taskharbor_django.worker.reserving")
    monkeypatch.setattr("taskharbor_django.worker.reserving.SWEEP_EACH", 0.0)
    expired, orphan = job_in("inflight", queue="a"), job_in("inflight", queue="b")
    Lease.objects.filter(pk=expired.lease).update(expires_at=utcnow() - timedelta(seconds=1))
    Lease.objects.filter(pk=orphan.lease).delete()
    with working():
        eventually(lambda: Job.objects.filter(state="done").count() == 2)
    told = [record for record in caplog.records if "jobs taken back" in record.getMessage()]
    assert [record.jobs for record in told] == [1, 1]
    assert {record.levelname for record in told} == {"INFO"}


# -- rows that somebody has locked ---------------------------------------------------------------


@contextlib.contextmanager
def locked(*handles):
    """Rows that somebody else holds, in a transaction that is forgotten open."""
    other = connection.copy()
    other.inc_thread_sharing()  # the worker's thread may end it
    jobs = Job.objects.filter(pk__in=[handle.id for handle in handles])
    sql, parameters = jobs.values("pk").query.sql_with_params()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"{sql} FOR UPDATE", parameters)
        yield other
    finally:
        other.close()


@pytest.mark.postgresql
def test_a_process_that_is_to_be_replaced_does_not_wait_for_a_locked_row_for_ever(eventually):
    handle = tasks.hold.enqueue("gate")
    with working(max_jobs=1, grace=timedelta(seconds=0.2)) as worker:
        eventually(lambda: tasks.seen["gate"])
        with locked(handle):
            tasks.gates["gate"].set()
            eventually(lambda: worker.stopping)
            assert worker.why.endswith("(--max-jobs)")
    assert worker.replace


@pytest.mark.postgresql
def test_what_is_locked_for_a_moment_when_the_worker_ends_costs_no_lease(eventually, monkeypatch):
    monkeypatch.setattr(worker_module, "UNWILLING", 0.2)
    monkeypatch.setattr(last_acts, "LOCKED_FOR", 30.0)
    handle = tasks.stuck.using(timeout=120).enqueue("stuck")
    settle, refused = last_acts.settle, []

    def settle_and_unlock(*args, **kwargs):
        rejections = settle(*args, **kwargs)
        refused.extend(type(it.error) for it in rejections)
        other.close()
        return rejections

    monkeypatch.setattr(last_acts, "settle", settle_and_unlock)
    with working(grace=timedelta(0)):
        eventually(lambda: tasks.seen["stuck"])
        lock = contextlib.ExitStack()
        other = lock.enter_context(locked(handle))
    lock.close()
    assert refused == [JobLocked]
    assert facts(handle) == ("scheduled", 1, 0, 0)
    assert Lease.objects.count() == 0
