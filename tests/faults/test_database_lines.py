"""Connections that are reset, half-open, cut before a reply or slow, between worker and server."""

import time

import pytest

from taskharbor_django import chord
from taskharbor_django.models import Job
from tests.process.harness import wait_until
from tests.testapp import fault_tasks as tasks
from tests.testapp.models import Trail
from tests.testapp.workflow_tasks import first, total

from .crew import counts, in_time
from .harbor import pass_by, patient, tell

pytestmark = pytest.mark.postgresql

LONGEST_WAIT = 15.0  # for an answer of a line that is silent, with so short a lease
CUT = r"no answer in \d+ s, the connection was cut"


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_connections_that_are_reset_cost_no_job(harbor, times, record_property):
    workers = harbor.ready(2)
    took = []
    with harbor.load() as load:
        for _ in range(times):
            harbor.goes_on()
            harbor.proxy.cut()
            took.append(harbor.recovers(time.time()))
    harbor.drained()
    assert all(worker.alive for worker in workers)
    tell(record_property, resets=times, jobs=load.accepted, recovery=max(took))
    harbor.finish()


def test_connections_that_are_half_open_are_given_up_and_cost_no_job(harbor, record_property):
    """
    The other side forgot them without a word; new ones go through at once.

    A handler waits for its own connection as long as its timeout lets it.
    """
    lease, timeout = 15.0, 6
    hurried = patient.using(timeout=timeout)
    worker = harbor.start(lease=lease)
    with harbor.load(pace=5, task=hurried) as load:
        harbor.signed("END")
        harbor.proxy.silence()
        harbor.proxy.mend()
        forgotten = time.time()
        worker.line(CUT)
        took = harbor.recovers(forgotten, lease=lease + timeout, task=hurried)
    harbor.drained()
    assert not Job.objects.filter(lease_losses__gt=0).exists()
    tell(record_property, jobs=load.accepted, recovery=took)
    harbor.finish()


def be_silent(proxy):
    proxy.silence()


def lead_nowhere(proxy):
    """Whoever connects is reset, as by a balancer that has no server left."""
    proxy.target = 1
    proxy.cut()


@pytest.mark.parametrize("happens", [be_silent, lead_nowhere])
def test_a_line_that_leads_nowhere_is_tried_seldom(harbor, happens, record_property):
    """The workers hold jobs meanwhile, which they would like to renew and to settle."""
    lease = 15.0
    jobs = [harbor.enqueue(tasks.linger, str(harbor.go)) for _ in range(8)]
    workers = harbor.ready(2, lease=lease)
    # Not only in the file: a handler would wait for the answer to its row for ever.
    wait_until(lambda: Trail.objects.filter(mark="END").count() == len(jobs), what="all handlers")
    there = harbor.proxy.target
    happens(harbor.proxy)
    harbor.open()
    with harbor.counted(len(workers)) as asked:
        pass_by(6)
    harbor.proxy.target = there
    harbor.proxy.mend()
    mended = time.time()
    harbor.ended(*jobs)
    settled = in_time([time.time()], mended, lease)
    took = harbor.recovers(mended, lease=lease)
    assert {counts(job) for job in jobs} == {("done", 1, 0, 0)}
    assert all(worker.alive for worker in workers)
    tell(record_property, asked=asked["per second"], settled=settled, recovery=took)
    harbor.finish()


def test_who_hangs_on_a_silent_line_loses_its_jobs_to_another_in_time(harbor, record_property):
    """It is told nothing, and learns of its loss by its own clock; the other's line is sound."""
    jobs = [harbor.enqueue(tasks.hold, str(harbor.go)) for _ in range(3)]
    (hanging,) = harbor.ready(1)
    harbor.signed("START", times=3)
    harbor.ready(1, DATABASE_URL=harbor.server.url)
    harbor.proxy.silence()
    silenced = time.time()
    took = harbor.recovers(silenced, *jobs)
    hanging.line("is lost: it could not be renewed in time")
    harbor.open()
    harbor.ended(*jobs)
    assert {counts(job) for job in jobs} == {("done", 2, 0, 1)}
    harbor.proxy.mend()
    # What had begun to connect waits for an answer that does not come any more.
    again = harbor.recovers(time.time(), lease=LONGEST_WAIT, task=patient.using(timeout=6))
    tell(record_property, taken_over=took, working_again=again)
    harbor.finish()


# what the server gets and answers in vain -> the job that makes a worker send it, and its counts
LOST_REPLIES = {
    "reserve": ((b"EXECUTE taskharbor_claim",), tasks.touch, ("done", 1, 0, 0)),
    "ack": ((b"EXECUTE taskharbor_ack",), tasks.touch, ("done", 1, 0, 0)),
    "retry": ((b"taskharbor_attempt", b"COMMIT"), tasks.fail_once, ("done", 2, 1, 0)),
    "burial": (
        (b"taskharbor_deadletter", b"COMMIT"),
        tasks.fail_always.using(max_attempts=1),
        ("dead", 1, 1, 0),
    ),
    "ack of an atomic task": (
        (b"WITH g AS MATERIALIZED", b"COMMIT"),
        tasks.book,
        ("done", 1, 0, 0),
    ),
}


QUICK = {"reserve", "retry"}


@pytest.mark.parametrize(
    "verb",
    [pytest.param(it, marks=pytest.mark.quick) if it in QUICK else it for it in LOST_REPLIES],
)
def test_a_verb_that_was_committed_and_whose_reply_is_lost_counts_once(
    harbor, verb, record_property
):
    texts, task, expected = LOST_REPLIES[verb]
    lease, took = 15.0, []
    worker = harbor.start(lease=lease).ready()
    for _ in range(3):
        harbor.proxy.cut_after(*texts)
        job = harbor.enqueue(task)
        wait_until(lambda: harbor.proxy.trapped, what=f"a {verb} without a reply")
        lost = time.time()
        harbor.ended(job)
        took.append(in_time([time.time()], lost, lease))
        assert counts(job) == expected
    if verb == "reserve":
        assert worker.lines("found 1 jobs that a reserve without a reply had taken")
    tell(record_property, recovery=max(took))
    harbor.finish()


def test_a_heartbeat_whose_reply_is_lost_loses_no_lease(harbor, record_property):
    lease, took = 6.0, []
    job = harbor.enqueue(tasks.hold, str(harbor.go))
    worker = harbor.start(lease=lease)
    harbor.signed("START")
    for times in range(1, 4):
        harbor.proxy.cut_after(b"WITH held AS MATERIALIZED")
        wait_until(lambda: harbor.proxy.trapped, what="a heartbeat without a reply")
        lost = time.time()
        worker.line("heartbeat: the database is back", times=times)
        took.append(in_time([time.time()], lost, lease))
    tell(record_property, recovery=max(took))
    harbor.open()
    harbor.ended(job)
    assert counts(job) == ("done", 1, 0, 0)
    harbor.finish()


def test_a_release_of_dependents_whose_reply_is_lost_happens_once(harbor, record_property):
    """The last member of a chord lets its finalizer go, and does not hear that it was committed."""
    lease, took = 15.0, []
    harbor.start(lease=lease).ready()
    for number in range(3):
        harbor.proxy.cut_after(b"dependencies_left", b"COMMIT")
        workflow = chord([first.s(number), first.s(1)], total.s()).enqueue()
        wait_until(lambda: harbor.proxy.trapped, what="a release without a reply")
        lost = time.time()
        wait_until(lambda it=workflow: not it.refresh().open_jobs, what="the end of the workflow")
        took.append(in_time([time.time()], lost, lease))
        assert workflow.results == [number + 1]
        assert set(workflow.jobs.values_list("executions", "lease_losses")) == {(1, 0)}
    tell(record_property, recovery=max(took))
    harbor.finish(signed=False)


@pytest.mark.parametrize("seconds", [15, pytest.param(120, marks=pytest.mark.slow)])
def test_a_slow_line_with_stalls_loses_no_lease(harbor, seconds, record_property):
    """200 ms there and back; now and then everything stands still for more than a second."""
    lease = 10.0
    held = [harbor.enqueue(tasks.hold, str(harbor.go)) for _ in range(2)]
    worker = harbor.start(lease=lease)
    harbor.signed("START", times=2)
    harbor.proxy.delay = 0.1
    until = time.monotonic() + seconds
    with harbor.load(pace=5) as load:
        while time.monotonic() < until:
            pass_by(2.5)
            harbor.proxy.delay = 1.2
            pass_by(0.5)
            harbor.proxy.delay = 0.1
    harbor.proxy.delay = 0.0  # what has gathered would take minutes
    harbor.open()
    harbor.drained()
    assert {counts(job) for job in held} == {("done", 1, 0, 0)}
    assert not Job.objects.exclude(lease_losses=0, executions=1).exists()
    assert not worker.lines("is lost")
    tell(record_property, jobs=load.accepted)
    harbor.finish()


# A beat each third of the lease, and each waits for 5 s before it is sent anew: what is left then
# of the lease is as short as it gets.
NEAR = {"the end of waiting for an answer": 4.5, "the end of the lease": 7.0}


def stand_still(proxy, seconds):
    """Let nothing through for so long, and then all of it at once."""
    usual, until = proxy.delay, time.monotonic() + seconds
    while (left := until - time.monotonic()) > usual:
        proxy.delay = left
        pass_by(0.02)
    proxy.delay = usual


@pytest.mark.parametrize("near", NEAR)
def test_a_line_that_stands_still_until_near_a_deadline_loses_no_lease(
    harbor, near, record_property
):
    lease, took = 15.0, []
    held = [harbor.enqueue(tasks.hold, str(harbor.go)) for _ in range(2)]
    worker = harbor.start(lease=lease)
    harbor.signed("START", times=2)
    with harbor.load(pace=5) as load:
        for _ in range(3):
            harbor.goes_on()
            stand_still(harbor.proxy, NEAR[near])
            took.append(harbor.recovers(time.time(), lease=lease))
            pass_by(lease / 3 + 1)  # until all that is held was renewed
    harbor.open()
    harbor.drained()
    assert {counts(job) for job in held} == {("done", 1, 0, 0)}
    assert not Job.objects.exclude(lease_losses=0, executions=1).exists()
    assert not worker.lines("is lost")
    # Whoever reserves waits for lease/3 and then cuts its line, if it stands still for so long.
    assert worker.lines(CUT) or NEAR[near] < lease / 3
    tell(record_property, cut=len(worker.lines(CUT)), jobs=load.accepted, recovery=took)
    harbor.finish()
