"""What an operator reads of jobs that fail, die or are not known."""

import logging
import threading

import pytest

from taskharbor_django import task
from taskharbor_django.drivers import JobRecord
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.worker import failures
from tests.testapp import worker_tasks as tasks

from .conftest import drain, working

pytestmark = pytest.mark.django_db(transaction=True)


@task(name="tests.failing", max_attempts=2, backoff={"strategy": "constant", "initial": 0.01})
def failing():
    raise ValueError("no such parcel\nsecond line")


def told(caplog, level):
    return [record for record in caplog.records if record.levelno == level]


def test_each_failed_attempt_is_a_warning_and_a_dead_job_an_error_with_its_traceback(caplog):
    handle = failing.enqueue()
    while handle.state in ("ready", "scheduled"):
        drain()
    (warning,) = told(caplog, logging.WARNING)
    assert f"job {handle.id}: tests.failing failed (temporary, attempt 1 of 2)" in warning.message
    assert warning.message.endswith("ValueError: no such parcel")
    (error,) = told(caplog, logging.ERROR)
    first, *trace = logging.Formatter().format(error).splitlines()
    assert first.endswith("tests.failing is dead (exhausted): ValueError: no such parcel")
    assert trace[0].startswith("Traceback")
    assert trace.count(trace[0]) == 1
    assert isinstance(error.exc_info[1], ValueError)  # what error trackers look for
    assert (error.job_id, error.task, error.queue) == (str(handle.id), "tests.failing", "default")


@task(name="tests.telling", max_attempts=1)
def telling():
    raise ValueError("password=hunter2")


def test_secrets_are_masked_in_what_is_written(caplog):
    telling.enqueue()
    drain()
    (error,) = told(caplog, logging.ERROR)
    assert "hunter2" not in logging.Formatter().format(error)


def test_a_death_in_a_child_is_told_with_the_stored_traceback(caplog):
    tasks.bury.enqueue()
    drain(isolate_all=True)
    (error,) = told(caplog, logging.ERROR)
    assert "Traceback" in logging.Formatter().format(error)


def test_an_unknown_task_is_a_warning(caplog):
    driver_for("default").enqueue(JobRecord(task="gone.away"))
    drain()
    (warning,) = told(caplog, logging.WARNING)
    assert "no task 'gone.away' is known here; given back until" in warning.message


def test_a_log_that_does_not_return_keeps_no_outcome_waiting(eventually):
    """A handler that sends mails, and a mail server that says nothing."""
    gate, log = threading.Event(), logging.getLogger(failures.__name__)
    silent = logging.Handler(logging.ERROR)
    silent.emit = lambda _record: gate.wait(60)
    log.addHandler(silent)
    try:
        with working():
            telling.enqueue()
            dead = telling.enqueue()
            eventually(lambda: dead.refresh().state == "dead")
            done = tasks.session.enqueue()
            eventually(lambda: done.refresh().state == "done")
            gate.set()
    finally:
        gate.set()
        log.removeHandler(silent)


def test_jobs_that_are_done_leave_no_line_above_debug(caplog):
    caplog.set_level(logging.INFO)
    tasks.session.enqueue()
    drain()
    assert [r.name for r in caplog.records if "job" in r.message and "jobs" not in r.message] == []


def test_a_result_that_cannot_be_stored_is_a_warning_with_its_reason(caplog):
    tasks.unstorable.enqueue()
    drain()
    (warning,) = told(caplog, logging.WARNING)
    assert "unstorable returned what cannot be stored" in warning.message
