"""Isolated handlers, with real child processes; no database is needed for these."""

import contextlib
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import OperationalError

from taskharbor_django.clock import FixedClock, steady
from taskharbor_django.exceptions import JobLocked, LeaseMismatch
from taskharbor_django.lifecycle import DeadReason, FailureCategory, OutcomeKind, Priority
from taskharbor_django.payload import decode_value, encode_call
from taskharbor_django.values import FailureUpdate, Outcome
from taskharbor_django.worker import executor, guard, isolation, processes, reports, trouble
from taskharbor_django.worker.holdings import LEASE_LOST, Holdings
from taskharbor_django.worker.isolation import Children
from taskharbor_django.worker.messages import (
    Channel,
    ChannelClosed,
    outcome_facts,
    read_error,
    read_outcome,
    read_reservation,
    reservation_facts,
)
from taskharbor_django.worker.options import WorkerOptions
from taskharbor_django.worker.pools import SHUTDOWN, TIME_IS_UP, begin
from tests.testapp import isolated_tasks as tasks

from .conftest import NOW, reservation

MEBIBYTE = 1024 * 1024


class Told:
    """A runtime that only remembers."""

    def __init__(self):
        self.progress, self.stored, self.error = [], [], None

    def progressed(self, context):
        self.progress.append(context.progress)

    def store_checkpoint(self, context, data):
        if self.error is not None:
            raise self.error
        self.stored.append(data)
        reports.keep_checkpoint(context, data)

    def previous_attempt_id(self, context):
        return 41


class Home:
    """Children, and jobs for them."""

    def __init__(self, **options):
        self.told = Told()
        self.clock = FixedClock(NOW)
        self._holdings = Holdings()
        self.children = Children(self.told, self.clock, WorkerOptions(), **options)
        self._threads = ThreadPoolExecutor(8)

    def job(self, task, *args, **fields):
        payload = encode_call(args, {}, max_bytes=40 * MEBIBYTE)
        reserved = reservation(task=task.name, payload=payload, **fields)
        (running,) = self._holdings.add([reserved], steady() + 300)
        prepared = executor.prepare(reserved, NOW)
        begin(running, prepared, self.told)
        return running, prepared

    def run(self, task, *args, **fields):
        return self.children.run(*self.job(task, *args, **fields))

    def start(self, task, *args, **fields):
        """Run in another thread, as the pool does; return the job and what becomes of it."""
        running, prepared = self.job(task, *args, **fields)
        return running, self._threads.submit(self.children.run, running, prepared)

    def close(self):
        self.children.close()
        self._threads.shutdown()


@pytest.fixture(scope="module")
def shared():
    """A home for tests that do not look at the processes; one child serves most of them."""
    home = Home()
    yield home
    home.close()


@pytest.fixture
def home():
    home = Home()
    yield home
    home.close()


@pytest.fixture
def place(tmp_path, eventually):
    """A directory for a handler's files, with a way to wait for them."""

    def wait(name="begun"):
        path = tmp_path / name
        eventually(path.exists)
        return path.read_text()

    wait.path = str(tmp_path)
    return wait


def value(outcome):
    assert outcome.kind == OutcomeKind.ACK, outcome
    return decode_value(outcome.result)


def lives(pid):
    """Whether there is such a process, and be it a zombie."""
    return Path(f"/proc/{pid}").exists()


def children_of_this():
    """All children of this process, dead or alive, by the kernel's word."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


# -- what a handler returns, raises and prints ----------------------------------------------------


def test_a_result_comes_back_and_the_parent_says_whose_it_is(shared):
    running, prepared = shared.job(tasks.give_back, {"a": (1, b"\xff", NOW)}, correlation_id="c")
    outcome = shared.children.run(running, prepared)
    assert value(outcome) == {"a": (1, b"\xff", NOW)}
    lease = running.reservation.lease
    assert (outcome.job_id, outcome.token) == (running.job_id, lease.token)
    assert outcome.version == lease.version
    assert outcome.started_at == NOW
    assert not running.settled


def test_sixteen_mebibytes_go_there_and_back(shared, settings):
    text = "x" * (15 * MEBIBYTE)
    outcome = shared.run(tasks.give_back, text)
    assert outcome.result == b""  # more than RESULT_MAX_BYTES of the child's settings
    assert value(shared.run(tasks.give_back, text[: MEBIBYTE - 2])) == text[: MEBIBYTE - 2]


def test_what_a_handler_prints_goes_where_the_worker_prints(home, capfd):
    home.run(tasks.say, "spoken in a child")
    out, err = capfd.readouterr()
    assert (out, err) == ("spoken in a child\n", "spoken in a child\n")


def test_an_exception_is_a_failure_with_its_traceback(shared):
    outcome = shared.run(tasks.fail, "oh no")
    assert (outcome.kind, outcome.update.category) == (OutcomeKind.RETRY, "temporary")
    assert outcome.update.last_error == "ValueError: oh no"
    assert "in fail\n    raise ValueError(text)" in outcome.update.traceback
    assert outcome.update.attempts == 1


def test_a_permanent_error_keeps_its_code(shared):
    outcome = shared.run(tasks.refuse)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAIL, DeadReason.PERMANENT)
    assert outcome.update.code == "never"


@pytest.mark.parametrize(
    ("task", "error"), [(tasks.leave, "SystemExit"), (tasks.use_memory, "MemoryError")]
)
def test_what_is_no_ordinary_exception_is_a_system_failure_and_costs_the_child(home, task, error):
    before = value(home.run(tasks.give_pid))
    outcome = home.run(task)
    assert (outcome.update.category, outcome.update.error_class) == ("system", error)
    assert value(home.run(tasks.give_pid)) != before


def test_an_async_handler_runs_to_its_end_with_its_context(shared):
    running, prepared = shared.job(tasks.describe_async)
    assert value(shared.children.run(running, prepared)) == [str(running.job_id)] * 2


def test_a_task_that_the_child_does_not_know_is_given_back_as_in_every_pool(shared):
    running, prepared = shared.job(tasks.give_pid)
    unknown = reservation(task="nobody.knows", token=running.token)
    running.reservation = unknown
    outcome = shared.children.run(running, prepared)
    assert (outcome.kind, outcome.missed) == (OutcomeKind.RELEASE, True)


# -- the context ----------------------------------------------------------------------------------


def test_the_context_is_the_same_as_anywhere(shared):
    fields = {"timeout": timedelta(seconds=90), "correlation_id": "c-1", "checkpoint": b"[1]"}
    running, prepared = shared.job(tasks.describe, executions=3, **fields)
    assert value(shared.children.run(running, prepared)) == {
        "job_id": running.job_id,
        "attempt": 3,
        "fencing_token": 1,
        "correlation_id": "c-1",
        "deadline": NOW + timedelta(seconds=90),
        "previous_attempt_id": 41,
        "checkpoint": [1],
    }


def test_progress_is_told_while_it_runs_and_at_its_end(shared, place, eventually):
    running, outcome = shared.start(tasks.progress, place.path)
    place()
    eventually(lambda: running.context.progress == (40, "on the way"))
    tasks.note(place.path, "seen")
    outcome.result()
    percent, text = running.context.progress
    assert percent == 90
    assert "\0" not in text


def test_a_checkpoint_is_stored_by_the_parent_and_seen_by_the_handler(shared):
    assert value(shared.run(tasks.save, {"at": 7}, checkpoint=b"6")) == [6, {"at": 7}]
    assert shared.told.stored[-1] == b'{"at":7}'


@pytest.mark.parametrize(
    "error", [LeaseMismatch(), JobLocked(), OperationalError("away"), OSError("else")]
)
def test_a_checkpoint_that_is_refused_raises_what_it_raises_in_a_thread(shared, error):
    shared.told.error = error
    try:
        name = value(shared.run(tasks.save, 1))
    finally:
        shared.told.error = None
    assert name == (type(error).__name__ if type(error) is not OSError else "TaskHarborError")


def test_a_checkpoint_that_cannot_be_stored_names_what_is_wrong(shared):
    outcome = shared.run(tasks.save_unstorable)
    assert "InvalidPayload: checkpoint" in outcome.update.last_error


def test_a_thread_that_a_handler_left_behind_cannot_speak_for_the_next_job(shared, place):
    first = shared.run(tasks.speak_later, place.path)
    assert first.kind == OutcomeKind.ACK
    stored = list(shared.told.stored)
    running, outcome = shared.start(tasks.progress, place.path)
    tasks.note(place.path, "over")
    assert place("refused") == "LeaseMismatch"
    tasks.note(place.path, "seen")
    outcome.result()
    assert running.context.progress[0] == 90
    assert shared.told.stored == stored


# -- stopping -------------------------------------------------------------------------------------


def test_an_asked_cancel_reaches_the_handler(shared, place):
    running, outcome = shared.start(tasks.wait_for_cancel, place.path)
    pid = int(place())
    running.cancel("cancel was asked for", force=False)
    assert outcome.result(10).kind == OutcomeKind.CANCEL
    assert lives(pid)


def test_an_asked_cancel_cancels_a_coroutine(shared, place):
    running, outcome = shared.start(tasks.sleep_async, place.path)
    place()
    running.cancel("cancel was asked for", force=False)
    assert outcome.result(10).kind == OutcomeKind.CANCEL
    place("cleaned")


def test_a_cancel_that_came_before_the_child_was_there_is_passed_on(home, place):
    running, prepared = home.job(tasks.wait_for_cancel, place.path)
    home.run(tasks.give_pid)
    running.cancel("cancel was asked for", force=False)
    assert home.children.run(running, prepared).kind == OutcomeKind.CANCEL


def test_a_lease_that_was_lost_before_the_child_was_there_kills_it(home, place):
    running, prepared = home.job(tasks.loop, place.path)
    home.run(tasks.give_pid)
    running.cancel(LEASE_LOST, force=True)
    assert home.children.run(running, prepared).kind == OutcomeKind.CANCEL


ENDS = {
    TIME_IS_UP: (OutcomeKind.RETRY, FailureCategory.TIMEOUT),
    LEASE_LOST: (OutcomeKind.CANCEL, None),
    "revoked was asked for": (OutcomeKind.CANCEL, None),
    SHUTDOWN: (OutcomeKind.RELEASE, None),
}


@pytest.mark.parametrize("why", ENDS)
@pytest.mark.parametrize("task", [tasks.loop, tasks.sleep, tasks.hold_the_interpreter])
def test_a_forced_stop_kills_whatever_the_handler_does(home, place, task, why):
    running, outcome = home.start(task, place.path)
    pid = int(place())
    before = steady()
    running.cancel(why, force=True)
    ended = outcome.result(10)
    assert steady() - before < 5
    assert (ended.kind, ended.update and ended.update.category) == ENDS[why]
    assert ended.started_at is not None
    assert not lives(pid)


def test_what_a_handler_had_started_is_killed_with_it(home, place, eventually):
    running, outcome = home.start(tasks.start_another, place.path)
    place()
    other = int(place("other"))
    running.cancel(TIME_IS_UP, force=True)
    outcome.result(10)
    eventually(lambda: not is_running(other))


def is_running(pid):
    """Not a zombie: whom those belong to is up to the machine."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stop_that_comes_late_does_not_hit_the_next_job(home, place):
    running, prepared = home.job(tasks.give_pid)
    pid = value(home.children.run(running, prepared))
    other, outcome = home.start(tasks.wait_for_cancel, place.path)
    assert int(place()) == pid
    running.cancel(TIME_IS_UP, force=True)
    other.cancel("cancel was asked for", force=False)
    assert outcome.result(10).kind == OutcomeKind.CANCEL
    assert lives(pid)


def test_a_child_that_was_killed_with_its_last_words_is_not_used_again(home, monkeypatch):
    running, prepared = home.job(tasks.give_pid)

    def read_and_be_late(*args):
        running.cancel(TIME_IS_UP, force=True)
        return read_outcome(*args)

    with monkeypatch.context() as patch:
        patch.setattr(isolation, "read_outcome", read_and_be_late)
        pid = value(home.children.run(running, prepared))
    assert not lives(pid)
    assert value(home.run(tasks.give_pid)) != pid


def test_a_child_that_speaks_nonsense_is_ended(home, monkeypatch):
    pid = value(home.run(tasks.give_pid))
    with monkeypatch.context() as patch:
        patch.setattr(isolation, "read_outcome", lambda *_: OutcomeKind("nonsense"))
        with pytest.raises(ValueError, match="nonsense"):
            home.run(tasks.give_pid)
    assert not lives(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_meant_for_the_worker_does_not_stop_a_child(shared, place, number):
    _, outcome = shared.start(tasks.sleep, place.path, 0.5)
    pid = int(place())
    os.kill(pid, number)
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert outcome.result(10).kind == OutcomeKind.ACK


def test_the_time_of_a_job_begins_when_its_child_is_ready(home, place):
    running, outcome = home.start(tasks.sleep, place.path, timeout=timedelta(seconds=50))
    begun = running.deadline  # none: there is no child yet
    place()
    assert begun is None or begun > steady() + 40
    assert 49 < running.deadline - steady() < 50.1
    running.cancel(TIME_IS_UP, force=True)
    assert outcome.result(10).update.category == "timeout"


# -- deaths ---------------------------------------------------------------------------------------

DEATHS = {"exit": "exit:3", "kill": "signal:SIGKILL", "segfault": "signal:SIGSEGV"}


@pytest.mark.parametrize("how", DEATHS)
def test_a_child_that_dies_fails_its_job_and_no_other(home, how):
    before = value(home.run(tasks.give_pid))
    outcome = home.run(tasks.die, how, attempts=1)
    assert (outcome.kind, outcome.update.category) == (OutcomeKind.RETRY, FailureCategory.SYSTEM)
    assert (outcome.update.code, outcome.update.attempts) == (DEATHS[how], 2)
    assert outcome.update.last_error.endswith(f"The child process died: {DEATHS[how]}.")
    assert not lives(before)
    assert value(home.run(tasks.give_pid)) != before


def test_the_last_attempt_of_a_poisonous_job_buries_it(home):
    outcome = home.run(tasks.die, "exit", attempts=2)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAIL, DeadReason.EXHAUSTED)


def test_a_death_is_noticed_although_a_fork_holds_the_line(home, place, eventually):
    outcome = home.run(tasks.fork_and_die, place.path)
    assert outcome.update.code == "exit:3"
    other = int(place("other"))
    eventually(lambda: not is_running(other))


def test_an_idle_child_that_was_killed_is_replaced(home):
    pid = value(home.run(tasks.give_pid))
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert value(home.run(tasks.give_pid)) != pid
    assert not lives(pid)


def pause_after_failed_starts(home, seconds, monkeypatch):
    monkeypatch.setattr(trouble, "FIRST_PAUSE", seconds)
    monkeypatch.setattr(home.children._nursery, "_pause", trouble.Pause(longest=1000))


def test_a_project_that_cannot_be_loaded_fails_the_job_and_says_why(home, monkeypatch):
    pause_after_failed_starts(home, 0.01, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setenv("DJANGO_SETTINGS_MODULE", "no.such_settings")
        for _ in range(2):
            outcome = home.run(tasks.give_pid)
            assert outcome.update.category == "system"
            assert outcome.update.code == "exit:1"
            assert "could not be started" in outcome.update.last_error
            assert "ModuleNotFoundError: No module named 'no'" in outcome.update.last_error
    assert value(home.run(tasks.give_pid))


def test_an_interpreter_that_is_not_there_fails_the_job_and_says_why(home, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    outcome = home.run(tasks.give_pid)
    assert (outcome.update.category, outcome.update.code) == ("system", "start")
    assert "/nowhere/python" in outcome.update.last_error


def test_after_a_failed_start_the_next_waits_but_not_for_a_job_that_is_to_stop(home, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    pause_after_failed_starts(home, 1000, monkeypatch)
    home.run(tasks.give_pid)
    waiting = [home.start(tasks.give_pid) for _ in range(2)]
    assert not any(outcome.done() for _, outcome in waiting)
    waiting[0][0].cancel("cancel was asked for", force=False)
    assert waiting[0][1].result(10).kind == OutcomeKind.CANCEL
    home.children.close()
    released = waiting[1][1].result(10)
    assert (released.kind, released.started_at) == (OutcomeKind.RELEASE, None)


def test_a_child_that_never_gets_ready_is_given_up(home, monkeypatch):
    monkeypatch.setattr(processes, "PROGRAM", "timeit")
    monkeypatch.setattr(processes, "START_TIMEOUT", 0.1)
    outcome = home.run(tasks.give_pid)
    assert outcome.update.category == "system"
    assert "could not be started" in outcome.update.last_error


# -- the processes --------------------------------------------------------------------------------


def test_one_child_serves_jobs_one_after_another_and_two_at_the_same_time(home, place):
    pids = {value(home.run(tasks.give_pid)) for _ in range(3)}
    running, outcome = home.start(tasks.wait_for_cancel, place.path)
    assert {int(place())} == pids
    other = value(home.run(tasks.give_pid))
    assert {other} != pids
    running.cancel("cancel was asked for", force=False)
    outcome.result(10)
    assert {value(home.run(tasks.give_pid)) for _ in range(3)} == pids


def test_a_child_is_what_its_worker_is_and_inherits_only_the_line(home, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setattr(sys, "argv", ["manage.py", "runworker", "caf\udce9"])
    monkeypatch.syspath_prepend("/elsewhere")
    with open(os.devnull) as file:  # noqa: PTH123
        os.set_inheritable(file.fileno(), True)
        running, prepared = home.job(tasks.look_around)
        seen = value(home.children.run(running, prepared))
    # Standard streams, both descriptors of the line, and the directory that is being looked at.
    assert len(seen.pop("descriptors")) == 6
    assert seen == {
        "path": sys.path,
        "argv": ascii(sys.argv),
        "pythonpath": "/somewhere",
        "cwd": str(Path.cwd()),
        "warnoptions": sys.warnoptions,
        "job": str(running.job_id),
        "thread": True,
    }


def test_nothing_is_left_after_the_end_neither_processes_nor_descriptors(place):
    descriptors, before = open_descriptors(), children_of_this()
    home = Home()
    home.run(tasks.give_pid)
    _, outcome = home.start(tasks.loop, place.path)
    place()
    home.run(tasks.die, "exit")
    assert len(children_of_this() - before) >= 2  # the busy one and the guard
    home.close()
    assert outcome.result(10).kind == OutcomeKind.RELEASE
    assert children_of_this() == before
    assert open_descriptors() <= descriptors  # what others left may have been closed meanwhile
    assert home.run(tasks.give_pid).kind == OutcomeKind.RELEASE


def test_an_idle_child_ends_after_a_while_and_is_reaped(eventually):
    before = children_of_this()
    home = Home(idle_for=0.2)
    try:
        pid = value(home.run(tasks.give_pid))
        eventually(lambda: not lives(pid))
        assert value(home.run(tasks.give_pid)) != pid
    finally:
        home.close()
    assert children_of_this() == before


def test_an_idle_child_that_dies_is_reaped(eventually):
    home = Home(idle_for=10)
    try:
        pid = value(home.run(tasks.give_pid))
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not lives(pid))
    finally:
        home.close()


def test_a_guard_that_was_killed_is_replaced(home):
    before = children_of_this()
    pid = value(home.run(tasks.give_pid))
    (guard_pid,) = children_of_this() - before - {pid}
    os.kill(guard_pid, signal.SIGKILL)
    os.waitid(os.P_PID, guard_pid, os.WEXITED | os.WNOWAIT)
    home.run(tasks.die, "exit")
    pid = value(home.run(tasks.give_pid))
    assert len(children_of_this() - before - {pid, guard_pid}) == 1


def test_the_guard_kills_what_outlives_the_worker(monkeypatch):
    """In this process, so that it is measured; test_children.py has it at work."""
    groups = [subprocess.Popen(["sleep", str(time)], start_new_session=True) for time in (0, 1000)]
    before = {number: signal.getsignal(number) for number in (1, 2, 15)}
    line = " ".join(str(group.pid) for group in groups)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"\n{line}\n"))
    monkeypatch.setattr(guard, "PATIENCE", 0.2)
    groups[0].wait()
    try:
        guard.main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert groups[1].wait(10) == -signal.SIGKILL


# -- messages -------------------------------------------------------------------------------------


@pytest.fixture
def line():
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield Channel(mine), Channel(theirs), theirs


def test_a_message_comes_as_it_was_sent(line):
    mine, theirs, _ = line
    message = {
        "text": "\udce9\0☕",
        "data": bytes(range(256)),
        "at": NOW,
        "id": uuid4(),
        "!": {"!": 1},
    }
    mine.send(message)
    mine.send({"large": "x" * 100_000})
    assert theirs.receive(1) == message
    assert theirs.receive(1) == {"large": "x" * 100_000}
    assert theirs.receive(0.01) is None


def test_a_message_in_pieces_is_waited_for(line):
    mine, _, theirs = line
    theirs.sendall(struct.pack("!I", 9) + b'{"a"')
    assert mine.receive(0.01) is None
    theirs.sendall(b": 1} ")
    assert mine.receive(1) == {"a": 1}


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.0", b"\0\0\0\2xx", b"\0\0\0\1" + b"1", b'\0\0\0\x09{"!x": 1}']
)
def test_what_is_no_message_ends_the_talk(line, data):
    mine, _, theirs = line
    theirs.sendall(data)
    with pytest.raises(ChannelClosed):
        mine.receive(1)


def test_the_end_of_the_line_is_seen_after_the_last_message(line):
    mine, theirs, _ = line
    theirs.send({"last": True})
    theirs.hang_up()
    assert mine.receive(1) == {"last": True}
    with pytest.raises(ChannelClosed):
        mine.receive(1)
    with pytest.raises(ChannelClosed):
        mine.send({})


def test_an_exception_in_the_midst_of_a_message_ends_the_line(line):
    mine, theirs, end = line
    main = threading.get_ident()

    def interrupt(*_):
        raise TimeoutError

    def interrupt_when_half_is_sent():
        end.recv(1, socket.MSG_PEEK)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        other = threading.Thread(target=interrupt_when_half_is_sent)
        other.start()
        with pytest.raises(TimeoutError):
            mine.send({"too": "x" * 10_000_000})
        other.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ChannelClosed):
        theirs.receive(10)


def test_a_reservation_and_an_outcome_survive_the_way(line):
    mine, theirs, _ = line
    reserved = reservation(
        payload=memoryview(b"[[],{}]"), priority=Priority.HIGH, trace={"a": "b"}, tags={"!x": "y"}
    )
    update = FailureUpdate(attempts=2, failed_at=NOW, category=FailureCategory.TIMEOUT, code="c")
    outcome = Outcome(
        job_id=reserved.job.id,
        token=reserved.lease.token,
        version=1,
        kind=OutcomeKind.FAIL,
        reason=DeadReason.EXHAUSTED,
        update=update,
        result=b"\0",
        started_at=NOW,
    )
    mine.send({"reservation": reservation_facts(reserved), "outcome": outcome_facts(outcome)})
    message = theirs.receive(1)
    came = read_reservation(message["reservation"])
    assert (came.lease, came.job.payload) == (reserved.lease, b"[[],{}]")
    assert came.job.priority == Priority.HIGH
    assert read_outcome(message["outcome"], reserved) == outcome


@pytest.mark.parametrize("name", ["SystemExit", "Any", "annotations", "connections"])
def test_no_other_name_becomes_an_exception(name):
    assert type(read_error({"class": name, "text": "x"})).__name__ == "TaskHarborError"
