"""Transactions of callers: long, large, undone, nested, of a request, on other databases."""

import time
from contextlib import contextmanager, suppress

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path

from taskharbor_django import enqueue_many
from taskharbor_django.models import Job
from tests.process.harbor import admin, caught_up
from tests.process.harness import wait_until
from tests.servers import Standby
from tests.testapp import fault_tasks as tasks

from .crew import MARGIN, POLL, counts
from .harbor import SESSIONS, pass_by, patient, tell
from .history import violations

pytestmark = pytest.mark.postgresql

slow = pytest.mark.slow
# A worker that looks for new jobs overlooks older ones that were committed late; not for longer.
LATE_FOR = 1.0


class Undo(Exception):
    pass


def large(harbor, number):
    ids = []
    enqueue_many((patient.call() for _ in range(number)), on_batch=ids.extend)
    return ids


def ends_of(harbor, ids):
    among = set(ids)
    return [line for line in harbor.history.lines("END") if line.job in among]


@pytest.mark.parametrize(("number", "seconds"), [(500, 3), pytest.param(10_000, 60, marks=slow)])
def test_jobs_of_a_long_transaction_run_after_its_commit_and_hold_nobody_up(
    harbor, number, seconds, record_property
):
    harbor.start(lease=30.0, threads=8).ready()
    with harbor.load(pace=5) as load:
        with transaction.atomic():
            ids = large(harbor, number)
            pass_by(seconds)
            assert not {line.job for line in harbor.history.lines()} & set(ids)
            others = harbor.goes_on()
        committed = time.time()
        harbor.history.enqueued.update(ids)
        first = wait_until(lambda: ends_of(harbor, ids), what="one of them")[0]
        took = round(first.at - committed, 2)
    assert others <= POLL + MARGIN
    assert took <= LATE_FOR + POLL + MARGIN
    harbor.drained(timeout=900)
    tell(record_property, jobs=number, first_after_commit=took, others=others, load=load.accepted)
    harbor.finish()


@pytest.mark.parametrize(("number", "seconds"), [(10_000, 2), pytest.param(10_000, 60, marks=slow)])
def test_jobs_of_a_transaction_that_is_rolled_back_never_run(
    harbor, number, seconds, record_property
):
    harbor.start().ready()
    ids = []
    with harbor.load(pace=5):
        with suppress(Undo), transaction.atomic():
            ids += large(harbor, number)
            pass_by(seconds)
            raise Undo
        harbor.history.rolled_back.update(ids)
        others = harbor.recovers(time.time(), lease=0.0)  # nobody has a lease to wait for
    harbor.drained()
    assert len(ids) == number
    assert set(Job.objects.values_list("pk", flat=True)) == harbor.history.enqueued
    tell(record_property, jobs=number, others=others)
    harbor.finish()


@pytest.mark.quick
def test_a_job_goes_with_the_savepoint_that_it_was_enqueued_in(harbor):
    harbor.start()
    with transaction.atomic():
        kept = [harbor.enqueue(tasks.touch)]
        with suppress(Undo), transaction.atomic():
            gone = [tasks.touch.enqueue()]
            with transaction.atomic():
                gone.append(tasks.touch.enqueue())
            raise Undo
        with transaction.atomic():
            kept.append(harbor.enqueue(tasks.touch))
    harbor.ended(*kept)
    assert {counts(job) for job in kept} == {("done", 1, 0, 0)}
    harbor.history.rolled_back.update(job.id for job in gone)
    harbor.finish()


# -- a request -----------------------------------------------------------------------------------

enqueued = []


def view(request, end):
    enqueued.append(tasks.touch.enqueue())
    if end == "crash":
        raise Undo
    return HttpResponse("stored")


urlpatterns = [path("<str:end>/", view)]


def test_a_job_of_a_request_runs_if_the_request_succeeds(harbor, monkeypatch):
    enqueued.clear()
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    harbor.start().ready()
    with override_settings(ROOT_URLCONF=__name__):
        client = Client(raise_request_exception=False)
        told = [client.get(f"/{end}/").status_code for end in ("return", "crash", "return")]
    assert told == [200, 500, 200]
    first, crashed, last = enqueued
    harbor.history.enqueued.update({first.id, last.id})
    harbor.ended(first, last)
    harbor.history.rolled_back.add(crashed.id)
    harbor.finish()


# -- other databases -----------------------------------------------------------------------------


def start_with(harbor, *arguments, other, settings=None, **options):
    """A worker that knows a second database; see tests.faults.far_settings."""
    far = {"DJANGO_SETTINGS_MODULE": "tests.faults.far_settings", "FAR_URL": f"{other}?{SESSIONS}"}
    return harbor.start(*arguments, settings=settings, **far, **options)


@pytest.fixture
def replica(harbor):
    """A copy that has fallen behind: it shows tables as they were, and answers reads only."""
    with Standby(harbor.server) as standby:
        caught_up(harbor.server, standby)
        with admin(standby) as session:
            session.execute("SELECT pg_wal_replay_pause()")
        yield standby


def test_a_replica_that_the_router_reads_from_decides_nothing(harbor, replica):
    """The copy stands still, empty: whatever asked it would find no job at all."""
    worker = start_with(harbor, other=replica.url, FAR_ROUTER="reads")
    jobs = [harbor.enqueue(task) for task in (tasks.touch, tasks.atouch, tasks.touch_apart)]
    jobs += [harbor.enqueue(tasks.fail_once), harbor.enqueue(tasks.snooze_once)]
    jobs.append(harbor.enqueue(tasks.have_children, 2))
    harbor.ended(*jobs)
    wait_until(lambda: Job.objects.filter(state="done").count() == 8, what="the children")
    with admin(replica) as session:
        assert not session.execute(f"SELECT 1 FROM pg_stat_activity WHERE {OF_WORKERS}").fetchall()
    assert worker.alive
    harbor.finish()


OF_WORKERS = "application_name = 'worker' AND datname = current_database()"


@pytest.fixture
def far(harbor):
    """A second database with the same tables, known here as `far`; returns its address."""
    with admin(harbor.server) as session:
        session.execute("CREATE DATABASE far")
    connections.settings["far"] = {**connection.settings_dict, "NAME": "far"}
    settings = {"NOTIFY": False, "QUEUE_DATABASES": {"far": "far"}}
    try:
        call_command("migrate", database="far", run_syncdb=True, verbosity=0)
        with override_settings(TASKHARBOR=settings):
            yield harbor.server.url.rpartition("/")[0] + "/far"
    finally:
        connections["far"].close()
        del connections["far"]
        del connections.settings["far"]
        with admin(harbor.server) as session:
            session.execute("DROP DATABASE far WITH (FORCE)")


@contextmanager
def closed(server):
    """Let nobody in to the second database."""
    with admin(server) as session:
        session.execute("ALTER DATABASE far ALLOW_CONNECTIONS false")
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'far'"
        )
    try:
        yield
    finally:
        with admin(server) as session:
            session.execute("ALTER DATABASE far ALLOW_CONNECTIONS true")


def test_a_database_that_is_away_stops_its_own_queues_and_no_others(harbor, far, record_property):
    settings = {"QUEUE_DATABASES": {"far": "far"}}
    there, here = (
        start_with(harbor, "--database", alias, other=far, settings=settings)
        for alias in ("far", "default")
    )
    jobs = [tasks.touch.using(queue="far").enqueue(), harbor.enqueue(tasks.touch)]
    harbor.ended(*jobs)
    waiting = tasks.touch.using(queue="far").enqueue()
    harbor.ended(waiting)
    with closed(harbor.server):
        there.line("the database cannot be used, trying again")
        harbor.ended(*(harbor.enqueue(tasks.touch) for _ in range(5)))
    connections["far"].close()
    back = time.time()
    last = tasks.touch.using(queue="far").enqueue()
    harbor.ended(last)
    took = harbor.works_again(there, since=back)
    tell(record_property, recovery=took)
    assert not here.lines("cannot be used")
    assert not Job.objects.filter(queue="far").exists()
    far_jobs = Job.objects.using("far").values_list("state", "executions", "attempts")
    assert set(far_jobs) == {("done", 1, 0)}
    harbor.dismiss(there, here)
    check_both(harbor.history, far=[job.id for job in (jobs[0], waiting, last)])


def check_both(history, far):
    """Nobody notes the moves of the second database: of its jobs there are the lines alone."""
    wait_until(lambda: not history.processes(), what="the end of all processes")
    facts = history.facts()
    runs = [[(line.mark, line.fence) for line in facts.lines.pop(job)] for job in far]
    assert runs == [[("START", 1), ("END", 1)]] * len(far)
    found = violations(facts)
    assert not found, history.tell(found, facts)
