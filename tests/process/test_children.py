"""Isolated jobs on a real database: what is stored, and what is left when processes are killed."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import transaction
from django.db.models.functions import Now

from taskharbor_django import cancel
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Worker
from tests.testapp import isolated_tasks as tasks
from tests.testapp.models import Ledger
from tests.worker.conftest import drain, working

from . import harness
from .harness import database_url, kill, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

QUICK_BEAT = {"lease": timedelta(seconds=10), "heartbeat": timedelta(seconds=0.1)}


@pytest.fixture
def here(monkeypatch):
    """Children of a worker in this process find the database of the test."""
    monkeypatch.setenv("DATABASE_URL", database_url())


@pytest.fixture
def place(tmp_path):
    """A directory for a handler's files, with a way to wait for them."""

    def wait(name="begun"):
        path = tmp_path / name
        wait_until(path.exists, what=name)
        return path.read_text()

    wait.path = str(tmp_path)
    return wait


@pytest.fixture
def worker(processes, place):
    """Start `runworker` with everything it starts marked; `left()` are those that are alive."""
    mark = uuid4().hex

    def start(*arguments, **environment):
        options = {"TASKHARBOR_TEST_MARK": mark, **environment}
        return processes.start(*arguments, expect_trouble=True, **options)

    start.left = lambda: marked(mark)
    yield start
    for pid in marked(mark):
        kill(pid)


def marked(mark):
    """The processes that have the mark in their environment; a zombie has none any more."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:  # it has just ended
            continue
    return found


def facts(handle):
    job = handle.refresh()
    return job.state, job.executions, job.attempts, job.lease_losses


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


def lives(pid):
    """Zombies do not: who has inherited one may leave it like that for long."""
    return harness.processes().get(pid, ("Z", 0))[0] != "Z"


# -- a worker in this process --------------------------------------------------------------------


def test_results_are_stored_and_one_child_serves_many_jobs(here):
    handles = [tasks.give_pid.enqueue(number) for number in range(20)]
    drain(threads=1)
    pids = {handle.result for handle in handles}
    assert len(pids) == 1
    assert os.getpid() not in pids
    assert is_gone(pids.pop())
    assert {facts(handle) for handle in handles} == {("done", 1, 0, 0)}
    assert not Lease.objects.exists()


def test_with_the_pool_of_processes_every_job_is_isolated(here):
    handles = [task.enqueue() for task in (tasks.give_pid_anywhere, tasks.agive_pid_anywhere)]
    drain(isolate_all=True)
    assert all(handle.result != os.getpid() for handle in handles)


def test_a_job_in_quarantine_is_isolated_and_its_neighbours_are_not(here):
    suspects = [task.enqueue() for task in (tasks.give_pid_anywhere, tasks.agive_pid_anywhere)]
    Job.objects.update(lease_losses=1)
    neighbours = [tasks.give_pid_anywhere.enqueue() for _ in range(3)]
    drain()
    assert all(handle.result != os.getpid() for handle in suspects)
    assert {handle.result for handle in neighbours} == {os.getpid()}


def test_an_exception_leaves_an_attempt_with_its_traceback(here):
    handle = tasks.fail.using(max_attempts=1).enqueue("oh no")
    drain()
    assert facts(handle) == ("dead", 1, 1, 0)
    attempt = Attempt.objects.get()
    assert (attempt.category, attempt.error_class) == ("temporary", "ValueError")
    assert "in fail" in attempt.traceback


@pytest.mark.parametrize(
    ("how", "code"),
    [("exit", "exit:3"), ("kill", "signal:SIGKILL"), ("segfault", "signal:SIGSEGV")],
)
def test_a_poisonous_job_is_buried_within_its_attempts_and_harms_nobody(here, how, code):
    poison = tasks.die.using(max_attempts=2).enqueue(how)
    neighbours = [tasks.give_pid_anywhere.enqueue() for _ in range(5)]
    isolated = [tasks.give_pid.enqueue() for _ in range(5)]
    with working(threads=2):
        poison.wait(60)
        assert all(handle.wait(60).state == "done" for handle in neighbours + isolated)
    assert facts(poison) == ("dead", 2, 2, 0)
    assert DeadLetter.objects.get().category == "system"
    assert set(Attempt.objects.values_list("code", flat=True)) == {code}
    assert {facts(handle) for handle in neighbours + isolated} == {("done", 1, 0, 0)}


@pytest.mark.parametrize("task", [tasks.loop, tasks.sleep, tasks.hold_the_interpreter])
def test_a_job_that_never_ends_is_killed_when_its_time_is_up(here, place, task):
    handle = task.using(timeout=1, max_attempts=1).enqueue(place.path)
    with working() as worker:
        pid = int(place())
        before = time.monotonic()
        assert handle.wait(60).state == "dead"
        assert time.monotonic() - before < 10
        assert not worker.replace  # no thread was lost with it
        assert tasks.give_pid.enqueue().wait(60).state == "done"
    assert is_gone(pid)
    assert Attempt.objects.get().category == "timeout"


def test_progress_and_checkpoint_are_stored_while_it_runs(here, place):
    handle = tasks.progress.enqueue(place.path)
    with working(**QUICK_BEAT):
        place()
        wait_until(lambda: handle.refresh().progress == 40, what="the progress")
        assert handle.refresh().progress_message == "on the way"
        tasks.note(place.path, "seen")
        handle.wait(60)
    saved = tasks.save.enqueue({"at": 1})
    drain()
    assert saved.result == [None, {"at": 1}]
    assert bytes(saved.refresh().checkpoint) == b'{"at":1}'


def test_the_previous_attempt_and_the_checkpoint_reach_the_next_child(here):
    handle = tasks.save_and_die_once.using(max_attempts=2).enqueue()
    with working():
        handle.wait(60)
    assert handle.result == [Attempt.objects.get().pk, "saved"]


@pytest.mark.parametrize("task", [tasks.wait_for_cancel, tasks.sleep_async])
def test_a_running_job_is_cancelled_when_it_is_asked(here, place, task):
    handle = task.enqueue(place.path)
    with working(**QUICK_BEAT):
        place()
        cancel([handle.id])
        assert handle.wait(60).state == "cancelled"
    assert facts(handle) == ("cancelled", 1, 0, 0)


def test_a_forced_cancel_kills_the_child(here, place):
    handle = tasks.loop.enqueue(place.path)
    with working(**QUICK_BEAT):
        pid = int(place())
        cancel([handle.id], force=True)
        wait_until(lambda: is_gone(pid), what="the end of the child")
    assert facts(handle) == ("cancelled", 1, 0, 0)


def test_what_a_handler_leaves_open_is_closed_behind_it(here):
    tasks.write_and_stumble.enqueue("lost")
    tasks.awrite.enqueue("async")
    kept = tasks.write_atomically.enqueue("kept")
    drain(threads=1)
    assert facts(kept) == ("done", 1, 0, 0)
    assert set(Ledger.objects.values_list("name", flat=True)) == {"async", "kept"}


# -- atomic tasks ---------------------------------------------------------------------------------


def test_an_atomic_handler_that_dies_leaves_nothing_behind(here):
    handle = tasks.write_atomically.using(max_attempts=1).enqueue("row", "kill")
    drain()
    assert facts(handle) == ("dead", 1, 1, 0)
    assert not Ledger.objects.exists()


@pytest.mark.parametrize("point", ["atomic.called", "atomic.settled"])
def test_a_child_killed_before_the_commit_has_done_nothing(here, monkeypatch, point):
    monkeypatch.setenv("TASKHARBOR_FAILPOINTS", f"{point}=kill")
    handle = tasks.write_atomically.using(max_attempts=1).enqueue("row")
    drain()
    assert facts(handle) == ("dead", 1, 1, 0)
    assert not Ledger.objects.exists()


def test_a_child_killed_after_the_commit_has_done_all_of_it(here, monkeypatch):
    monkeypatch.setenv("TASKHARBOR_FAILPOINTS", "child.ran=kill")
    handle = tasks.write_atomically.enqueue("row")
    drain()
    assert facts(handle) == ("done", 1, 0, 0)
    assert Ledger.objects.get().name == "row"


# -- a worker that is a process of its own ---------------------------------------------------------

HANDLERS = [
    tasks.loop,
    tasks.sleep_and_clean_up,
    tasks.sleep_async,
    tasks.wait_for_cancel,
    tasks.swallow_everything,
    tasks.start_another,
]


@pytest.mark.parametrize("task", HANDLERS)
def test_a_child_whose_worker_was_killed_gives_its_job_back_and_ends(worker, place, task):
    handle = task.enqueue(place.path)
    process = worker("--threads", "1").ready()
    place()
    process.send(signal.SIGKILL)
    process.exit_code()
    wait_until(lambda: facts(handle) == ("ready", 1, 0, 0), timeout=10, what="the release")
    wait_until(lambda: not worker.left(), timeout=10, what="the end of all")
    if task in (tasks.sleep_and_clean_up, tasks.sleep_async):
        place("cleaned")


def kill_supervised_worker_of(handle, worker, place):
    """Kill the worker whose child has the job, and wait for the next run; return both pids."""
    process = worker("--processes", "2", "--threads", "1", "--lease", "60").ready(times=2)
    first = int(place())
    lease = Lease.objects.get(token=handle.refresh().lease)
    kill(Worker.objects.get(pk=lease.worker).pid)
    second = int(wait_until(lambda: (text := place()) != str(first) and text, what="the next run"))
    process.line("leases ended of the dead worker")
    return first, second


def test_a_child_of_a_supervised_worker_that_was_killed_gives_its_job_back(worker, place):
    handle = tasks.swallow_everything.enqueue(place.path)
    kill_supervised_worker_of(handle, worker, place)
    assert facts(handle) == ("inflight", 2, 0, 0)
    assert not Attempt.objects.exists()


def test_a_job_of_a_supervised_worker_runs_anew_only_when_the_child_that_had_it_is_gone(
    worker, place
):
    handle = tasks.hold_the_interpreter.enqueue(place.path)
    first, second = kill_supervised_worker_of(handle, worker, place)
    assert not lives(first)
    assert lives(second)
    assert facts(handle) == ("inflight", 2, 0, 1)


def test_a_child_that_cannot_notice_is_ended_by_the_guard(worker, place):
    handle = tasks.hold_the_interpreter.enqueue(place.path)
    process = worker("--threads", "1").ready()
    place()
    process.send(signal.SIGKILL)
    process.exit_code()
    wait_until(lambda: not worker.left(), timeout=15, what="the end of all")
    assert facts(handle)[0] == "inflight"  # the lease will expire


def test_what_an_atomic_handler_wrote_is_undone_when_its_worker_was_killed(worker, place):
    handle = tasks.write_and_wait.enqueue("row", place.path)
    process = worker("--threads", "1").ready()
    place()
    process.send(signal.SIGKILL)
    process.exit_code()
    wait_until(lambda: facts(handle) == ("ready", 1, 0, 0), timeout=10, what="the release")
    wait_until(lambda: not worker.left(), timeout=10, what="the end of all")
    assert not Ledger.objects.exists()


def test_idle_and_starting_children_end_with_a_worker_that_was_killed(worker, place):
    done = [tasks.give_pid.enqueue() for _ in range(4)]
    process = worker("--threads", "2").ready()
    for handle in done:
        handle.wait(60)
    tasks.loop.enqueue(place.path)
    tasks.loop.enqueue(place.path)
    assert worker.left() - {process.pid}
    process.send(signal.SIGKILL)
    wait_until(lambda: not worker.left(), timeout=15, what="the end of all")


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_an_outcome_that_the_worker_could_not_settle_is_settled_by_the_child(worker, place):
    handle = tasks.progress.enqueue(place.path)
    tasks.leave_note.enqueue(place.path, "next")
    process = worker("--threads", "1").ready()
    place()
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=handle.id)
        tasks.note(place.path, "seen")
        place("next")  # the one thread is free again: the worker has the outcome
        process.send(signal.SIGKILL)
    wait_until(lambda: not worker.left(), timeout=10, what="the end of all")
    assert facts(handle) == ("done", 1, 0, 0)


def test_a_signal_to_the_whole_group_lets_isolated_jobs_finish(worker, place):
    """What Ctrl-C in a terminal does, and a supervisor of services that tells everybody."""
    handle = tasks.progress.enqueue(place.path)
    process = worker("--threads", "1").ready()
    place()
    for pid in worker.left() - {process.pid}:
        os.kill(pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGINT)
    process.line("stops: SIGINT")
    tasks.note(place.path, "seen")
    assert process.exit_code() == 0
    assert facts(handle) == ("done", 1, 0, 0)
    assert not worker.left()


def test_a_job_longer_than_the_grace_is_killed_and_given_back(worker, place):
    handle = tasks.loop.enqueue(place.path)
    process = worker("--threads", "1", "--grace", "0.3").ready()
    place()
    code, took = process.stop()
    assert (code, facts(handle)) == (0, ("ready", 1, 0, 0))
    assert took < 10
    assert not worker.left()
    assert not Lease.objects.exists()


def test_a_second_signal_ends_the_worker_and_the_child_gives_the_job_back(worker, place):
    handle = tasks.sleep_and_clean_up.enqueue(place.path)
    process = worker("--threads", "1").ready()
    place()
    process.send(signal.SIGTERM)
    process.line("stops: SIGTERM")
    assert process.stop()[0] != 0
    wait_until(lambda: facts(handle) == ("ready", 1, 0, 0), timeout=10, what="the release")
    wait_until(lambda: not worker.left(), timeout=10, what="the end of all")


def test_a_worker_that_lost_its_lease_while_it_was_stopped_kills_the_child(worker, here, place):
    handle = tasks.wait_for_cancel.using(max_attempts=1).enqueue(place.path)
    process = worker("--threads", "1", "--lease", "2").ready()
    pid = int(place())
    process.send(signal.SIGSTOP)
    valid = Lease.objects.filter(expires_at__gt=Now())
    wait_until(lambda: not valid.exists(), what="the end of the lease")
    cancel([handle.id], force=True)
    process.send(signal.SIGCONT)
    wait_until(lambda: is_gone(pid), timeout=10, what="the end of the child")
    assert process.stop()[0] == 0
    assert facts(handle)[0] == "cancelled"
    assert not worker.left()
