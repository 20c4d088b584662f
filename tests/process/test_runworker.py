"""`manage.py runworker` as one process: signals, ends, limits, and what an operator sees."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from taskharbor_django.management import arguments
from taskharbor_django.models import Job, Lease, Worker
from taskharbor_django.worker import banner
from taskharbor_django.worker.options import WorkerOptions
from taskharbor_django.worker.stop_signals import STUCK
from tests.testapp.process_tasks import hold, mark, resist

from .harness import PATIENCE, ROOT, pids_in, wait_until

QUICKLY = 10.0  # far below any grace or lease, far above what a busy machine needs


def states():
    return sorted(Job.objects.values_list("state", flat=True))


def assert_unharmed(job, state="ready"):
    """Given back: neither an attempt nor a loss was charged."""
    job.refresh_from_db()
    assert (job.state, job.attempts, job.lease_losses) == (state, 0, 0)


# -- stopping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_stops_at_once(processes, number):
    worker = processes.start().ready()
    code, took = worker.stop(number)
    assert (code, Lease.objects.count()) == (0, 0)
    assert took < QUICKLY
    assert worker.lines(f"stops: {number.name}")
    assert Worker.objects.get().stopped_at is not None


def test_short_jobs_are_done_or_given_back(processes, files):
    said, _ = files
    for _ in range(400):
        mark.enqueue(str(said))
    worker = processes.start("--threads", "2")
    wait_until(lambda: len(pids_in(said)) > 20, what="some jobs")
    code, took = worker.stop(signal.SIGINT)
    assert code == 0
    assert took < QUICKLY
    done = Job.objects.filter(state="done", executions=1, attempts=0, lease_losses=0).count()
    left = Job.objects.filter(state="ready", executions=0, attempts=0, lease_losses=0).count()
    assert done + left == 400
    assert len(pids_in(said)) == done
    assert not Lease.objects.exists()


def test_a_job_longer_than_the_grace_is_released(processes, files):
    said, go = files
    job = hold.enqueue(str(said), str(go))
    worker = processes.start("--grace", "0.3")
    wait_until(lambda: pids_in(said), what="the job")
    code, took = worker.stop()
    assert code == 0
    assert took < QUICKLY
    assert_unharmed(Job.objects.get(pk=job.id))
    assert not Lease.objects.exists()
    assert worker.lines(r"stopped; runs: 0 \(.*\), given back: 1")


def test_a_job_within_the_grace_is_finished(processes, files):
    said, go = files
    hold.enqueue(str(said), str(go))
    worker = processes.start()
    wait_until(lambda: pids_in(said), what="the job")
    worker.send(signal.SIGTERM)
    worker.line("stops: SIGTERM; jobs held: 1")
    go.touch()
    assert worker.exit_code() == 0
    assert states() == ["done"]


@pytest.mark.slow
def test_a_handler_that_resists_is_released_as_the_last_act(processes, files):
    said, go = files
    job = resist.enqueue(str(said), str(go))
    worker = processes.start("--grace", "0.1")
    wait_until(lambda: pids_in(said), what="the job")
    code, took = worker.stop()
    assert code == 0
    assert took < 25
    assert_unharmed(Job.objects.get(pk=job.id), "scheduled")  # until this process was gone for sure


def test_a_second_signal_ends_the_process_at_once(processes, files):
    said, go = files
    hold.enqueue(str(said), str(go))
    worker = processes.start()
    wait_until(lambda: pids_in(said), what="the job")
    worker.send(signal.SIGTERM)
    worker.line("stops: SIGTERM")
    code, took = worker.stop(signal.SIGINT)
    assert code == 128 + signal.SIGINT
    assert took < 2
    assert states() == ["inflight"]


STUBBORN = """
import time
from taskharbor_django.worker.stop_signals import StopSignals

class Target:
    ready = {ready}

    def stop(self, why):
        print("told", flush=True)

with StopSignals(Target(), patience=0.2):
    print("is ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(("ready", "code"), [(True, STUCK), (False, 0)])
def test_a_process_ends_although_it_does_not_come_to_its_end(processes, ready, code):
    """By force when its time is over; well, and at once, when it had not even begun."""
    script = STUBBORN.format(ready=ready)
    stubborn = processes.start("-c", script, command="shell").ready()
    assert stubborn.stop(timeout=QUICKLY)[0] == code


def test_an_operator_stops_a_worker_through_its_row(processes):
    worker = processes.start("--lease", "1.5").ready()
    Worker.objects.update(request="stop")
    assert worker.exit_code() == 0
    assert worker.lines("stops: an operator asked for it")


# -- ending by itself ----------------------------------------------------------------------------


def test_a_burst_drains_and_exits(processes, files):
    said, _ = files
    for _ in range(30):
        mark.enqueue(str(said))
    worker = processes.start("--burst")
    assert worker.exit_code() == 0
    assert states() == ["done"] * 30
    assert worker.lines(r"stopped; runs: 30 \(done 30, .*\), given back: 0")


def test_max_jobs_goes_on_in_a_new_process_with_the_same_id(processes, files):
    said, _ = files
    for _ in range(12):
        mark.enqueue(str(said))
    worker = processes.start("--max-jobs", "5", "--threads", "1")
    wait_until(lambda: states() == ["done"] * 12, what="all jobs done")
    worker.ready(times=2)
    assert worker.lines(r"stops: jobs finished: \d+ \(--max-jobs\)")
    assert set(pids_in(said)) == {worker.pid}
    assert Worker.objects.count() >= 2
    command = Path(f"/proc/{worker.pid}/cmdline")  # empty while a new program is being started
    started_as = wait_until(command.read_bytes, what="its command line").split(b"\0")
    assert started_as[1:4] == [b"-W", b"error", b"-m"]
    assert worker.stop()[0] == 0


@pytest.mark.parametrize("limit", [("--max-jobs", "3"), ("--max-memory", "1")])
def test_a_burst_with_a_limit_drains_all_the_same(processes, files, limit):
    said, _ = files
    for _ in range(8):
        mark.enqueue(str(said))
    worker = processes.start("--burst", "--threads", "1", *limit)
    assert worker.exit_code() == 0
    assert states() == ["done"] * 8
    assert len(worker.lines("is ready")) > 1


def test_a_signal_while_it_starts_anew_is_not_lost(processes, files):
    """Each process lives for one job only, so that the signal comes at any instant of a restart."""
    said, _ = files
    for _ in range(50):
        mark.enqueue(str(said))
    worker = processes.start("--max-jobs", "1", "--threads", "1", "--poll", "0.05")
    worker.line("--max-jobs")
    assert worker.stop()[0] == 0
    assert not Job.objects.filter(state="inflight").exists()


@pytest.mark.slow
def test_a_thread_that_is_left_behind_makes_the_process_start_anew(processes, files):
    said, go = files
    resist.using(timeout=0.2, max_attempts=1).enqueue(str(said), str(go))
    worker = processes.start().ready(times=2)
    assert worker.lines("stops: a thread was left behind")
    assert states() == ["dead"]
    assert worker.stop()[0] == 0


# -- starting ------------------------------------------------------------------------------------


def test_missing_tables_are_named_with_what_to_do(processes):
    # The database that the test's own one was made beside has no tables.
    worker = processes.start(DATABASE_URL=os.environ["DATABASE_URL"])
    assert worker.exit_code() == 1
    assert worker.lines("CommandError: .* has no table taskharbor_.*manage.py migrate")


@pytest.mark.sqlite
def test_a_database_that_is_away_at_the_start_is_waited_for(processes, tmp_path, settings):
    database = Path(settings.DATABASES["default"]["NAME"])
    away = tmp_path / "away"
    worker = processes.start(DATABASE_URL=f"sqlite:///{away / database.name}")
    worker.line("cannot be used, trying again")
    away.symlink_to(database.parent)
    worker.ready()
    assert len(worker.lines("cannot be used")) == 1
    assert worker.lines("the database is back")
    assert worker.stop()[0] == 0


def test_a_worker_that_waits_for_its_database_can_be_stopped(processes):
    worker = processes.start(DATABASE_URL="postgresql://nobody:x@127.0.0.1:1/nothing")
    worker.line("cannot be used, trying again")
    code, took = worker.stop()
    assert code == 0
    assert took < QUICKLY


def test_a_worker_whose_database_does_not_answer_can_be_stopped(processes):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        port = silent.getsockname()[1]
        worker = processes.start(DATABASE_URL=f"postgresql://nobody:x@127.0.0.1:{port}/nothing")
        with silent.accept()[0]:
            code, took = worker.stop()
    assert code == 0
    assert took < QUICKLY


def test_two_workers_of_one_name_are_two_workers(processes, files):
    said, go = files
    for _ in range(2):
        hold.enqueue(str(said), str(go))
    workers = [processes.start("--name", "twin", "--threads", "1") for _ in range(2)]
    wait_until(lambda: len(pids_in(said)) == 2, what="both jobs")
    assert set(pids_in(said)) == {worker.pid for worker in workers}
    assert Worker.objects.filter(name="twin").count() == 2
    assert Lease.objects.values("worker").distinct().count() == 2
    go.touch()
    assert [worker.stop()[0] for worker in workers] == [0, 0]
    assert states() == ["done", "done"]


def test_the_other_name_is_the_same_command(processes, files):
    said, _ = files
    mark.enqueue(str(said))
    worker = processes.start("--burst", command="taskharbor_worker")
    assert worker.exit_code() == 0
    assert states() == ["done"]


# -- what an operator sees -----------------------------------------------------------------------


def test_a_worker_tells_of_a_queue_that_no_task_has(caplog):
    caplog.set_level(logging.INFO, banner.logger.name)
    banner.started(WorkerOptions(queues=("default", "mial")))
    told = [line for line in caplog.messages if line.startswith("no task of this project")]
    assert [line.split(":")[0] for line in told] == ["no task of this project has the queue mial"]


def test_the_banner_says_what_runs_where(processes, vendor):
    worker = processes.start(
        "--queues", "mail,default", "--threads", "3", "--lease", "12", "--name", "harbor", "--burst"
    )
    assert worker.exit_code() == 0
    said = worker.lines("TaskHarbor ")[0].string
    for fact in (
        f"pid {worker.pid}",
        "harbor ",
        "queues mail,default",
        "threads 3",
        "pool thread",
        f"database default ({vendor})",
        "lease 12 s",
        "polling each 1 s",
    ):
        assert fact in said


@pytest.mark.parametrize("listen", [True, False])
def test_notify_is_named_where_it_is_listened_to(vendor, listen):
    said = banner._wake_up(WorkerOptions(listen=listen, poll=timedelta(seconds=2)))
    notified = listen and vendor == "postgresql"
    assert said == ("NOTIFY and polling each 2 s" if notified else "polling each 2 s")


def test_verbosity_0_is_quiet(processes):
    worker = processes.start("--verbosity", "0", "--burst")
    assert worker.exit_code() == 0
    assert worker.output == ""


def test_the_health_file_is_there_while_the_worker_is(processes, tmp_path):
    path = tmp_path / "health"
    worker = processes.start("--health-file", str(path), "--lease", "0.9").ready()
    first = path.stat()
    assert json.loads(path.read_text())["pid"] == worker.pid
    wait_until(lambda: path.stat().st_mtime_ns > first.st_mtime_ns, what="a beat")
    assert worker.stop()[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_health_file_that_cannot_be_written_stops_no_heartbeat(processes, tmp_path, files):
    directory = tmp_path / "health"
    directory.mkdir()
    worker = processes.start("--health-file", str(directory / "file"), "--lease", "0.9").ready()
    (directory / "file").unlink()
    directory.rmdir()
    worker.line("the health file cannot be written", times=2)
    assert worker.stop()[0] == 0


def package_logger(monkeypatch):
    """A logger without handlers, as in a project without LOGGING: too new for pytest's own."""
    logger = logging.getLogger(f"taskharbor-{uuid4()}")
    logger.propagate = False
    monkeypatch.setattr(banner, "PACKAGE", logger.name)
    return logger


@pytest.mark.parametrize(
    ("verbosity", "level"), [(0, logging.WARNING), (1, logging.INFO), (3, logging.DEBUG)]
)
def test_lines_are_shown_by_default(monkeypatch, verbosity, level):
    logger = package_logger(monkeypatch)
    banner.show_lines(verbosity)
    banner.show_lines(verbosity)
    assert len(logger.handlers) == 1
    assert logger.level == level


def test_the_projects_own_logging_is_left_alone(monkeypatch):
    logger = package_logger(monkeypatch)
    logger.addHandler(logging.NullHandler())
    banner.show_lines(2)
    assert len(logger.handlers) == 1
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("job_id", "shown"), [("", "hello"), ("7", "hello [job 7]"), ("ell", "hello")]
)
def test_a_line_from_inside_a_job_names_it_once(job_id, shown):
    record = logging.LogRecord("n", logging.INFO, "p", 1, "hello", (), None)
    record.job_id = job_id
    assert banner.Line().format(record).endswith(shown)


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("queues", "", "'' is no queue name"),
        ("queues", "a,,b", "'' is no queue name"),
        ("queues", "a,b c", "'b c' is no queue name"),
        ("queues", "*,a", "has them all"),
        ("threads", "0", "a whole number from 1 to 1,000, not '0'"),
        ("threads", "many", "not 'many'"),
        ("threads", "1001", "not '1001'"),
        ("processes", "-1", "a whole number from 1"),
        ("pool", "greenlet", "'thread' or 'process', not 'greenlet'"),
        ("lease", "0", "a number of seconds above 0, not '0'"),
        ("lease", "nan", "not 'nan'"),
        ("lease", "inf", "not 'inf'"),
        ("poll", "-1", "a number of seconds above 0"),
        ("grace", "-1", "a number of seconds, 0 or more"),
        ("max_jobs", "0", "--max-jobs must be a whole number from 1"),
        ("max_memory", "1.5", "--max-memory must be a whole number from 1"),
        ("database", "elsewhere", "DATABASES has default"),
        ("name", "", "1 to 200 printable characters"),
        ("name", "a\nb", "1 to 200 printable characters"),
        ("name", "n" * 201, "1 to 200 printable characters"),
        ("health_file", "/no/such/directory/file", "there is no such directory"),
        ("health_file", "/tmp", "a directory"),  # noqa: S108  nothing is written
    ],
)
def test_a_bad_value_is_refused_with_what_to_do(option, value, complaint):
    with pytest.raises(CommandError) as refused:
        call_command("runworker", **{option: value})
    name = option.replace("_", "-")
    assert str(refused.value).startswith(f"--{name} must be ")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"autoreload": True, "processes": 2}, "leave out --processes"),
        ({"autoreload": True, "burst": True}, "leave out one of them"),
        ({"processes": 2}, "not in call_command"),
        ({"autoreload": True}, "not in call_command"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, complaint):
    with pytest.raises(CommandError, match=complaint):
        call_command("runworker", **options)


def test_a_bad_value_on_the_command_line_ends_with_1(processes):
    worker = processes.start("--lease", "soon")
    assert worker.exit_code() == 1
    assert worker.lines("CommandError: --lease must be a number of seconds above 0, not 'soon'")


def test_broken_settings_are_named(settings):
    settings.TASKHARBOR = {"LEASE": "long"}
    with pytest.raises(CommandError, match="LEASE"):
        call_command("runworker", skip_checks=True)


def test_queues_of_two_databases_need_two_workers(settings, monkeypatch):
    monkeypatch.setattr(arguments, "alias_of", {"a": "one", "b": "two"}.get)
    with pytest.raises(CommandError, match="one worker serves one database; there is a in one"):
        call_command("runworker", queues="a,b")


def test_defaults_come_from_the_settings(settings):
    settings.TASKHARBOR = {
        "LEASE": 12,
        "HEARTBEAT": 3,
        "POLL": 7,
        "SHUTDOWN_GRACE": 8,
        "NOTIFY": False,
        "PREFETCH": 5,
        "MAX_LEASE_LOSSES": None,
    }
    options = arguments.read({}, None).worker
    assert (options.lease, options.heartbeat) == (timedelta(seconds=12), timedelta(seconds=3))
    assert (options.poll, options.grace) == (timedelta(seconds=7), timedelta(seconds=8))
    assert (options.listen, options.prefetch, options.max_lease_losses) == (False, 5, None)
    assert (options.queues, options.using, options.scheduler) == (("*",), "default", True)


def test_options_win_over_the_settings():
    given = {
        "queues": " a , b,a",
        "lease": "6",
        "poll": timedelta(seconds=2),
        "grace": 0,
        "pool": "process",
        "max_memory": "100",
        "no_scheduler": True,
    }
    options = arguments.read(given, None).worker
    assert options.queues == ("a", "b")
    assert (options.lease, options.heartbeat) == (timedelta(seconds=6), timedelta(seconds=2))
    assert (options.poll, options.grace) == (timedelta(seconds=2), timedelta(0))
    assert options.max_memory == 100 * 1024 * 1024
    assert (options.isolate_all, options.scheduler) == (True, False)


# -- from code -----------------------------------------------------------------------------------


def test_call_command_works_and_leaves_the_process_as_it_was(transactional_db, files):
    said, _ = files
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    mark.enqueue(str(said))
    mark.enqueue(str(said))
    call_command("runworker", burst=True, max_jobs=1, threads=1)
    assert pids_in(said)[0] == os.getpid()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert not Job.objects.filter(state="inflight").exists()


def test_the_page_tells_of_every_option():
    page = (ROOT / "docs" / "reference" / "runworker.md").read_text("utf-8")
    told = re.findall(r"^\| `--([a-z-]+)", page, re.M)
    assert told == [*arguments.VALUES, *arguments.FLAGS]


# -- called from code ----------------------------------------------------------------------------


@pytest.mark.django_db
def test_inside_a_transaction_it_refuses_to_run():
    with transaction.atomic(), pytest.raises(CommandError, match="outside of atomic"):
        call_command("runworker", burst=True)


def test_a_database_in_memory_is_refused():
    settings = {"DATABASE_URL": "sqlite://:memory:", "DJANGO_SETTINGS_MODULE": "tests.settings"}
    refused = subprocess.run(
        [sys.executable, "-m", "django", "runworker", "--burst"],
        env=os.environ | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "is kept in memory" in refused.stderr
    assert "Traceback" not in refused.stderr
