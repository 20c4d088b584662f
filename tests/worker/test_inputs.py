"""The results that jobs take: read when a job is about to run, and nobody else's trouble."""

import threading
from concurrent.futures import Future
from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from taskharbor_django import chain, chord
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.failpoints import armed
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import DeadLetter, Job
from taskharbor_django.operations import JobHandle
from taskharbor_django.operations.inputs import attach
from taskharbor_django.worker import inputs as inputs_module
from taskharbor_django.worker.async_pool import AsyncPool
from taskharbor_django.worker.holdings import CANCEL
from taskharbor_django.worker.inputs import Inputs
from taskharbor_django.worker.lines import Lines
from tests.testapp.workflow_tasks import aplus, collect, first, plus, plus_apart
from tests.workflows import finish, run, take

from .conftest import drain, reservation, working

GONE = OperationalError("the server is gone")


def facts(job_id):
    job = Job.objects.get(pk=job_id)
    return job.state, job.executions, job.attempts, job.lease_losses


def until(job_id, state):
    assert JobHandle.of(job_id, using="default").wait(20).state == state


def ready_taker(step, value=1):
    """The second step of a chain whose first is done."""
    chain(first.s(value), step.s()).enqueue()
    (held,) = take()
    finish([run(held)])
    return Job.objects.get(task=step.name, state="ready")


# -- in a worker -------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", [plus, aplus, plus_apart])
def test_a_job_takes_its_input_wherever_it_runs(step):
    workflow = chain(first.s(3), step.s(4)).enqueue()
    drain()
    assert workflow.results == [7]


@pytest.mark.django_db(transaction=True)
def test_a_job_in_quarantine_takes_its_input():
    taker, driver = ready_taker(plus), DatabaseDriver()
    driver.reserve("default", now=driver.now(), lease_for=timedelta(microseconds=1))
    drain()
    assert facts(taker.pk) == ("done", 2, 0, 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", [plus, aplus])
def test_an_input_that_cannot_be_read_is_the_failure_of_its_job_alone(step, monkeypatch):
    """All of them are held at once, so that no lease is lost meanwhile."""
    taker = ready_taker(step)
    Job.objects.filter(pk=taker.pk).update(max_attempts=1)
    others = [first.enqueue(number) for number in range(3)]

    def too_large(*_):
        raise MemoryError

    monkeypatch.setattr(inputs_module, "attach", too_large)
    with working(lease=timedelta(seconds=2), heartbeat=timedelta(seconds=0.3)):
        until(taker.pk, "dead")
        for other in others:
            other.wait(20)
    assert {facts(other.id) for other in others} == {("done", 1, 0, 0)}
    assert facts(taker.pk) == ("dead", 1, 1, 0)
    letter = DeadLetter.objects.get(open_for=taker.pk)
    assert (letter.category, letter.error_class) == ("system", "MemoryError")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", [plus, aplus])
def test_a_database_that_is_away_costs_a_job_neither_attempt_nor_loss(step, monkeypatch):
    monkeypatch.setattr(inputs_module, "AWAY_FOR", timedelta(seconds=0.1))
    taker, tries = ready_taker(step), []

    def away():
        tries.append(True)
        if len(tries) <= 4:  # each turn of the worker tries twice
            raise GONE

    with armed("inputs.reading", away), working():
        until(taker.pk, "done")
    assert facts(taker.pk) == ("done", 1, 0, 0)
    assert len(tries) == 5


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_died_meanwhile_is_replaced_at_once():
    taker, tries = ready_taker(plus), []

    def dead_once():
        tries.append(True)
        if len(tries) == 1:
            connection.close()
            raise GONE

    with armed("inputs.reading", dead_once):
        drain()
    assert facts(taker.pk) == ("done", 1, 0, 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("result", [b"\xff", b""])
def test_an_input_that_is_no_result_buries_its_job(result):
    taker = ready_taker(plus)
    Job.objects.filter(task=first.name).update(result=result)
    drain()
    assert facts(taker.pk) == ("dead", 1, 1, 0)
    assert DeadLetter.objects.get(open_for=taker.pk).reason == "permanent"


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_reserve_had_no_reply_takes_its_input(monkeypatch):
    taker, reserve, lost = ready_taker(plus), DatabaseDriver.reserve, []

    def losing(self, queue, **options):
        reserved = reserve(self, queue, **options)
        if reserved and not lost:
            lost.append(reserved)
            raise GONE
        return reserved

    monkeypatch.setattr(DatabaseDriver, "reserve", losing)
    with working(lease=timedelta(seconds=60), heartbeat=timedelta(seconds=0.2)):
        until(taker.pk, "done")
    assert facts(taker.pk) == ("done", 1, 0, 0)


@pytest.mark.django_db(transaction=True)
def test_jobs_without_input_are_not_read_for(monkeypatch):
    asked = []
    monkeypatch.setattr(Inputs, "read", asked.append)
    handle = first.enqueue(1)
    drain()
    assert (facts(handle.id), asked) == (("done", 1, 0, 0), [])


# -- together ----------------------------------------------------------------------------------


@pytest.fixture
def one_by_one():
    """Work that waits until the test lets it be done, in this thread."""
    return []


@pytest.fixture
def inputs(one_by_one):
    driver = DatabaseDriver()
    return Inputs(driver, Lines(driver.using), one_by_one.append)


def do_all(work):
    for each in work:
        each()


@pytest.mark.django_db(transaction=True)
def test_what_is_asked_for_meanwhile_is_read_together(
    inputs, one_by_one, django_assert_num_queries
):
    for number in range(5):
        chord([first.s(number), first.s(number)], collect.s()).enqueue()
    finish([run(held) for held in take(100)])
    takers = DatabaseDriver().reserve(
        "default", now=DatabaseDriver().now(), lease_for=timedelta(seconds=30), limit=5
    )
    reading = [inputs.read(taker) for taker in takers]
    with django_assert_num_queries(2):
        do_all(one_by_one)
    assert [it.result() for it in reading] == attach(DatabaseDriver(), takers)


@pytest.fixture
def read(inputs, monkeypatch):
    """What was read in one go; a reservation that has an exception for its payload raises it."""
    turns = []

    def scripted(_driver, reserved):
        turns.append(list(reserved))
        for each in reserved:
            if isinstance(each.job.payload, BaseException):
                raise each.job.payload
        return reserved

    monkeypatch.setattr(inputs_module, "attach", scripted)
    monkeypatch.setattr(inputs_module, "disconnect", lambda _: None)
    return turns


@pytest.mark.django_db
def test_what_cannot_be_read_with_others_is_read_alone(inputs, one_by_one, read):
    good, bad, last = reservation(), reservation(payload=MemoryError()), reservation()
    reading = [inputs.read(each) for each in (good, bad, last)]
    do_all(one_by_one)
    assert read == [[good, bad, last], [good], [bad], [last]]
    assert reading[0].result() is good
    assert isinstance(reading[1].exception(), MemoryError)
    assert reading[2].result() is last


@pytest.mark.django_db
def test_a_database_that_is_away_is_waited_for_once_and_not_for_each(inputs, one_by_one, read):
    asked = [reservation(payload=GONE) for _ in range(3)]
    reading = [inputs.read(each) for each in asked]
    do_all(one_by_one)
    assert read == [asked, asked[:1]]
    assert [it.exception() for it in reading] == [GONE] * 3


@pytest.mark.django_db
def test_nothing_is_read_for_who_does_not_wait_any_more(inputs, one_by_one, read):
    asked = [reservation(), reservation()]
    reading = [inputs.read(each) for each in asked]
    reading[0].cancel()
    do_all(one_by_one)
    assert read == [asked[1:]]
    assert reading[1].result() is asked[1]


# -- coroutines --------------------------------------------------------------------------------


class Unanswered:
    """Inputs that are never read; says when they were asked for."""

    def __init__(self):
        self.asked = threading.Event()

    def read(self, _reservation):
        self.asked.set()
        return Future()


@pytest.mark.parametrize(
    ("stop", "kind"),
    [
        (lambda running: running.cancel(CANCEL, force=False), OutcomeKind.CANCEL),
        (lambda running: running.stop("", True), OutcomeKind.RELEASE),
    ],
)
def test_a_coroutine_that_is_stopped_before_its_input_is_there_has_not_begun(
    clock, hold, stop, kind
):
    unanswered, finished, ended = Unanswered(), [], threading.Event()

    def note(*end):
        finished.append(end)
        ended.set()

    pool = AsyncPool(1, runtime=None, clock=clock, on_finished=note, inputs=unanswered)
    pool.start()
    (running,) = hold(reservation(input="one"))
    pool.put([running])
    assert unanswered.asked.wait(20)
    stop(running)
    assert ended.wait(20)
    assert pool.close(10)
    ((who, outcome),) = finished
    assert (who, outcome.kind, outcome.started_at) == (running, kind, None)
