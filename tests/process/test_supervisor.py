"""`manage.py runworker` with children: how they share, die, stop, make way, and are reloaded."""

import os
import queue
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from django.db import OperationalError, connection, transaction

from taskharbor_django.models import Job, Lease, Worker
from taskharbor_django.worker import farewell, guard, lease_ender
from taskharbor_django.worker import supervisor as module
from taskharbor_django.worker.farewell import FINISHED, GUARDED, MAKES_WAY, Farewell, say
from taskharbor_django.worker.guard import CHILDREN_GONE
from taskharbor_django.worker.lease_ender import LeaseEnder
from taskharbor_django.worker.supervisor import (
    ENVIRONMENT,
    Child,
    Supervised,
    Supervisor,
    describe,
)
from tests.testapp.process_tasks import exit_once, hold, kill_process_once, mark

from .harness import kill, pids_in, wait_until

LEASE = 300.0  # which no test here waits for
SOON = 3.0  # what takes a moment, on a busy machine
STARTING = 10.0  # a worker and the process of a job that has lost a lease, there


def states():
    return sorted(Job.objects.values_list("state", flat=True))


def hold_two(files, processes, *arguments):
    """Start two children with one thread each, and a job that runs in each of them."""
    said, go = files
    for _ in range(2):
        hold.enqueue(str(said), str(go))
    options = "--processes", "2", "--threads", "1", "--lease", str(LEASE)
    supervisor = processes.start(*options, *arguments)
    wait_until(lambda: len(pids_in(said)) == 2, what="both jobs")
    return supervisor


def settings_of(tmp_path, *lines):
    """A settings module of the test's own; what a process needs in its environment for it."""
    module = tmp_path / "own_settings.py"
    module.write_text("\n".join(["from tests.settings import *", *lines, ""]))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return module, {"DJANGO_SETTINGS_MODULE": module.stem, "PYTHONPATH": path}


# -- sharing and stopping ------------------------------------------------------------------------


def test_children_share_the_work_and_stop_together(processes, files):
    supervisor = hold_two(files, processes, "--name", "crew")
    said, go = files
    assert set(pids_in(said)) == supervisor.children()
    assert supervisor.pid not in pids_in(said)
    names = Worker.objects.values_list("name", flat=True)
    assert sorted(names) == ["crew-1", "crew-2"]
    go.touch()
    wait_until(lambda: states() == ["done", "done"], what="both done")
    assert supervisor.stop()[0] == 0
    assert supervisor.session() == set()
    assert not Lease.objects.exists()
    assert not Worker.objects.filter(stopped_at=None).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_all_children_give_their_jobs_back(processes, files, number):
    supervisor = hold_two(files, processes, "--grace", "0.3")
    code, took = supervisor.stop(number)
    assert code == 0
    assert took < 15
    assert Job.objects.filter(state="ready", attempts=0, lease_losses=0).count() == 2
    assert supervisor.session() == set()


def test_a_signal_to_every_process_at_once_is_no_second_one(processes, files):
    """As systemd does by default: the children have one from it, and none from the supervisor."""
    supervisor = hold_two(files, processes, "--grace", "1")
    for pid in supervisor.session():
        kill(pid, signal.SIGTERM)
    assert supervisor.exit_code() == 0
    assert Job.objects.filter(state="ready", attempts=0, lease_losses=0).count() == 2
    assert not Lease.objects.exists()


def test_ctrl_c_in_a_terminal_reaches_the_children_once(processes, files):
    supervisor = hold_two(files, processes, "--grace", "0.3")
    os.killpg(supervisor.pid, signal.SIGINT)  # as a terminal does, to the whole group
    assert supervisor.exit_code() == 0
    assert Job.objects.filter(state="ready", attempts=0, lease_losses=0).count() == 2


def test_a_second_signal_kills_the_children(processes, files):
    supervisor = hold_two(files, processes)
    supervisor.send(signal.SIGTERM)
    supervisor.line("stops: SIGTERM; processes told: 2")
    code, took = supervisor.stop()
    assert code == 128 + signal.SIGTERM
    assert took < 2
    wait_until(lambda: not supervisor.session(), timeout=5, what="the end of the children")


def test_children_outlive_a_killed_supervisor_only_to_give_back(processes, files):
    supervisor = hold_two(files, processes, "--grace", "0.3")
    assert supervisor.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    wait_until(lambda: not supervisor.session(), timeout=15, what="the end of the orphans")
    assert Job.objects.filter(state="ready", attempts=0, lease_losses=0).count() == 2
    assert not Lease.objects.exists()
    assert len(supervisor.lines("stops: its supervisor stops, or is gone")) == 2


def test_children_of_a_supervisor_killed_while_they_start_end_too(processes, files):
    mark.enqueue(str(files[0]))
    supervisor = processes.start("--processes", "2")
    supervisor.line("process 2 .* started")
    supervisor.stop(signal.SIGKILL)
    wait_until(lambda: not supervisor.session(), what="the end of the orphans")
    assert states() in (["ready"], ["done"])
    assert not Lease.objects.exists()


def test_a_child_that_was_asked_to_stop_is_not_restarted(processes):
    supervisor = processes.start("--processes", "2", "--lease", "1.5").ready(times=2)
    Worker.objects.update(request="stop")
    assert supervisor.exit_code() == 0
    assert len(supervisor.lines("has finished")) == 2


@pytest.mark.postgresql
def test_a_child_told_to_stop_while_it_starts_is_not_restarted(processes):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {Worker._meta.db_table}")  # so that none gets ready
        supervisor = processes.start("--processes", "2")
        supervisor.line("TaskHarbor .*: worker-", times=2)
        for pid in supervisor.children():
            kill(pid, signal.SIGTERM)
        assert supervisor.exit_code() == 0
    assert len(supervisor.lines("has finished")) == 2


# -- children that die ---------------------------------------------------------------------------


def test_a_killed_child_is_replaced_and_its_job_runs_long_before_its_lease_ends(
    processes, files, record_property
):
    said, go = files
    supervisor = hold_two(files, processes)
    victim = pids_in(said)[0]
    killed = time.monotonic()
    kill(victim)
    supervisor.line("died: killed by SIGKILL; the next starts in 0.5 s")
    supervisor.line("leases ended of the dead worker .*: 1")
    freed = time.monotonic()
    wait_until(lambda: len(pids_in(said)) == 3, what="the second run")
    ran = time.monotonic()
    record_property("free after", round(freed - killed, 2))
    record_property("again after", round(ran - killed, 2))
    assert freed - killed < SOON
    assert ran - killed < SOON + STARTING
    go.touch()
    wait_until(lambda: states() == ["done", "done"], what="both done")
    assert sorted(Job.objects.values_list("lease_losses", flat=True)) == [0, 1]
    assert not Job.objects.exclude(attempts=0).exists()
    assert Worker.objects.count() == 3
    assert supervisor.stop()[0] == 0


@pytest.mark.parametrize("code", [0, 3])
def test_a_handler_that_ends_its_process_has_not_ended_the_worker_whatever_the_code(
    processes, files, code
):
    said, _ = files
    for number in range(2):
        exit_once.enqueue(f"{said}-{number}", code)
    supervisor = processes.start("--processes", "2", "--threads", "1", "--lease", str(LEASE))
    wait_until(lambda: states() == ["done", "done"], what="both done")
    assert len(supervisor.lines(f"died: exit code {code}; the next starts in")) == 2
    assert set(Job.objects.values_list("attempts", "lease_losses")) == {(0, 1)}
    assert supervisor.stop()[0] == 0


def test_a_child_that_dies_at_every_start_is_tried_again_ever_later(processes, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    _, environment = settings_of(
        tmp_path,
        "import os",
        f"if {ENVIRONMENT!r} in os.environ and os.path.exists({str(broken)!r}):",
        "    os._exit(9)",
    )
    supervisor = processes.start("--processes", "2", **environment)
    for pause in ("0.5", "1", "2"):
        supervisor.line(f"died: exit code 9; the next starts in {pause} s", times=2)
    assert supervisor.alive
    broken.unlink()
    supervisor.ready(times=2)
    assert supervisor.stop()[0] == 0


@pytest.mark.parametrize(
    ("deadly", "arguments", "how"),
    [(kill_process_once, [], "killed by SIGKILL"), (exit_once, [0], "exit code 0")],
)
def test_a_burst_drains_although_a_child_dies(processes, files, deadly, arguments, how):
    said, _ = files
    for _ in range(20):
        mark.enqueue(str(said))
    deadly.enqueue(str(said) + "-died", *arguments)
    supervisor = processes.start("--processes", "2", "--burst", "--threads", "2")
    assert supervisor.exit_code() == 0
    assert states() == ["done"] * 21
    assert supervisor.lines(f"died: {how}")
    assert len(supervisor.lines("has finished")) == 2


def test_a_child_past_its_limit_makes_way(processes, files):
    said, _ = files
    for _ in range(12):
        mark.enqueue(str(said))
    supervisor = processes.start("--processes", "2", "--threads", "1", "--max-jobs", "2")
    wait_until(lambda: states() == ["done"] * 12, what="all jobs done")
    wait_until(lambda: supervisor.lines("makes way for a new one"), what="a child made way")
    assert not supervisor.lines("died")
    assert len(set(pids_in(said))) > 2
    assert supervisor.stop()[0] == 0


def test_missing_tables_end_the_supervisor_too(processes):
    supervisor = processes.start("--processes", "2", DATABASE_URL=os.environ["DATABASE_URL"])
    assert supervisor.exit_code() == 1
    assert supervisor.lines("CommandError: .* has no table")


def test_each_child_has_a_health_file(processes, tmp_path):
    path = tmp_path / "health"
    supervisor = processes.start("--processes", "2", "--health-file", str(path)).ready(times=2)
    assert {file.name for file in tmp_path.iterdir()} == {"health.1", "health.2"}
    assert supervisor.stop()[0] == 0
    assert list(tmp_path.iterdir()) == []


# -- autoreload ----------------------------------------------------------------------------------


def touch_until(path, condition):
    """Make the file ever newer, for the reloader sees only what changes after its first look."""
    newer = iter(range(int(time.time()) + 1, int(time.time()) + 1_000))

    def look():
        os.utime(path, (0, next(newer)))
        return condition()

    wait_until(look, what="the reload")


def test_autoreload_restarts_when_code_changes_and_gives_jobs_back(processes, files, tmp_path):
    said, go = files
    code, environment = settings_of(tmp_path)
    hold.enqueue(str(said), str(go))
    reloader = processes.start("--autoreload", **environment)
    wait_until(lambda: pids_in(said), what="the job")
    touch_until(code, lambda: reloader.lines("stops: code has changed"))
    wait_until(lambda: len(pids_in(said)) >= 2, what="the job in the new process")
    assert len(set(pids_in(said))) >= 2
    go.touch()
    wait_until(lambda: states() == ["done"], what="the job done")
    job = Job.objects.get()
    assert (job.attempts, job.lease_losses) == (0, 0)
    assert reloader.stop(signal.SIGINT)[0] == 0


def test_autoreload_survives_code_that_cannot_be_loaded(processes, tmp_path):
    code, environment = settings_of(tmp_path)
    good = code.read_text()
    reloader = processes.start("--autoreload", expect_trouble=True, **environment).ready()
    code.write_text("this is no Python\n")
    touch_until(code, lambda: reloader.lines("died: exit code 1"))
    code.write_text(good)
    reloader.ready(times=2)
    assert reloader.stop()[0] == 0


# -- the parts -----------------------------------------------------------------------------------


class Driver:
    """A driver whose database is away for the first calls."""

    def __init__(self, failures):
        self.failures = failures
        self.ended = queue.SimpleQueue()

    def now(self):
        return datetime.now(UTC)

    def expire_leases(self, worker, *, now):
        if self.failures:
            self.failures -= 1
            raise OperationalError("away")
        self.ended.put(worker)
        return 1


@pytest.fixture
def driver(monkeypatch):
    driver = Driver(failures=2)
    monkeypatch.setattr(lease_ender, "driver_for", Mock(return_value=driver))
    monkeypatch.setattr(lease_ender, "stop_worker", Mock())
    monkeypatch.setattr(lease_ender, "disconnect", Mock())
    return driver


def test_leases_are_ended_as_soon_as_the_database_is_back(driver):
    ender = LeaseEnder("default")
    ender.end("a")
    ender.end("b")
    ender.start()
    assert [driver.ended.get(timeout=30) for _ in range(2)] == ["a", "b"]
    ender.close()
    assert not ender.busy


def test_a_database_that_stays_away_does_not_keep_the_supervisor(driver, caplog):
    driver.failures = 1_000
    ender = LeaseEnder("default")
    ender.end("a")
    ender.start()
    ender.close()
    assert not ender.is_alive()
    assert "dead workers whose leases are left to expire: 1" in caplog.text


def test_the_pause_before_a_restart_doubles_and_starts_again_after_a_good_life(monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(module, "steady", lambda: now)
    child = Child(1, longest_pause=3.0)
    child._started = now
    assert [child.died() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    now += module.GOOD_LIFE
    assert child.died() == 0.5
    assert child.due == now + 0.5


def test_a_burst_goes_on_only_when_the_jobs_of_the_dead_are_free(driver):
    supervisor = Supervisor(1, using="default", grace=0.0, burst=True)
    supervisor._lease_ender.end("dead")
    supervisor._turn()
    assert supervisor._children[0].process is None


@pytest.fixture
def line():
    """The pipe of one process: what the supervisor hears of it, and where the process writes."""
    reading, writing = os.pipe()
    hears = Farewell(reading)
    yield hears, writing
    hears.close()
    os.close(writing)


@pytest.mark.parametrize(
    ("said", "goodbye"),
    [
        (b"", b""),
        (FINISHED, FINISHED),
        (MAKES_WAY, MAKES_WAY),
        (GUARDED, b""),
        (GUARDED + CHILDREN_GONE + MAKES_WAY + FINISHED, FINISHED),
    ],
)
def test_only_a_goodbye_is_a_good_end_and_the_last_one_counts(line, said, goodbye):
    hears, writing = line
    say(said, writing)
    assert hears.goodbye() == goodbye


def test_a_process_without_isolated_children_is_not_waited_for(line):
    """Although the pipe is open: what a handler had forked may hold it."""
    hears, _ = line
    assert hears.is_over()


def test_isolated_children_are_waited_for_until_their_guard_says_that_they_are_gone(
    line, monkeypatch
):
    hears, writing = line
    say(GUARDED + CHILDREN_GONE + GUARDED, writing)
    assert not hears.is_over()
    monkeypatch.setattr(guard.sys, "stdin", iter(["\n"]))
    monkeypatch.setattr(guard.signal, "signal", Mock())
    guard.main(writing)
    assert hears.is_over()


def test_isolated_children_without_a_guard_are_not_waited_for_for_ever(line, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(farewell, "steady", lambda: now)
    hears, writing = line
    say(GUARDED, writing)
    assert not hears.is_over()
    now += guard.PATIENCE
    assert not hears.is_over()  # it is only now that the guard kills
    now += 1.0
    assert hears.is_over()


def test_the_end_of_worker_and_guard_is_the_end_of_waiting():
    reading, writing = os.pipe()
    hears = Farewell(reading)
    say(GUARDED, writing)
    assert not hears.is_over()
    os.close(writing)
    assert hears.is_over()
    hears.close()


def test_nobody_minds_that_there_is_no_supervisor():
    reading, writing = os.pipe()
    os.close(reading)
    say(FINISHED, writing)
    say(FINISHED, None)
    os.close(writing)


def test_the_supervisor_goes_on_while_isolated_children_of_a_dead_one_give_back(driver):
    driver.failures = 0
    reading, writing = os.pipe()
    supervisor = Supervisor(1, using="default", grace=0.0)
    supervisor._command = [module.sys.executable, "-c", "import signal; signal.pause()"]
    supervisor._dead["dead"] = Farewell(reading)
    say(GUARDED, writing)
    with ThreadPoolExecutor(1) as threads:
        code = threads.submit(supervisor.run)
        child = supervisor._children[0]
        wait_until(lambda: child.process, what="the next child")
        supervisor.stop("enough")
        child.kill()
        assert driver.ended.get(timeout=30) == child.worker
        assert not code.done()
        say(CHILDREN_GONE, writing)
        assert driver.ended.get(timeout=30) == "dead"
        assert code.result(60) == 0
    os.close(writing)


def test_a_burst_goes_on_only_when_isolated_children_of_the_dead_have_given_back(driver, line):
    supervisor = Supervisor(1, using="default", grace=0.0, burst=True)
    hears, writing = line
    say(GUARDED, writing)
    supervisor._dead["dead"] = hears
    supervisor._turn()
    assert supervisor._children[0].process is None
    assert not supervisor._lease_ender.busy


def test_a_program_that_cannot_be_started_is_tried_again(monkeypatch, driver, caplog, tmp_path):
    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "nothing"))
    supervisor = Supervisor(1, using="default", grace=0.0)
    supervisor._pipe, supervisor._held_end = os.pipe()
    supervisor._turn()
    assert "cannot start, trying again in 0.5 s" in caplog.text
    supervisor.stop("enough")
    assert supervisor.run() == 0


def test_a_child_that_never_stops_is_killed(monkeypatch, driver, tmp_path):
    started = tmp_path / "started"
    script = (
        "import pathlib, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(started)!r}).touch(); signal.pause()"
    )
    supervisor = Supervisor(1, using="default", grace=0.0)
    supervisor._command = [module.sys.executable, "-c", script]
    supervisor._patience = 0.2
    with ThreadPoolExecutor(1) as threads:
        code = threads.submit(supervisor.run)
        wait_until(started.exists, what="the child")
        supervisor.stop("enough")
        assert code.result(60) == module.STUCK


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "exit code 9"), (-9, "killed by SIGKILL"), (-200, "killed by signal 200")],
)
def test_ends_are_told_in_words(code, words):
    assert describe(code) == words


def test_what_a_child_is_told_is_read_once(monkeypatch):
    assert Supervised.take() is None
    ends = os.pipe()
    told = Supervised(*ends, 2, "w")
    for end in ends:
        os.set_inheritable(end, True)
    monkeypatch.setenv(ENVIRONMENT, str(told))
    assert Supervised.take() == told
    assert Supervised.take() is None
    for end in ends:
        assert not os.get_inheritable(end)
        os.close(end)
