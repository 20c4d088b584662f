"""Too few connections, deadlocks, locked tables, a full disk: what others do to the same server."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
from django.db import connections

from taskharbor_django import Selection, cancel, chord, discard, enqueue_many, requeue
from taskharbor_django.models import DeadLetter, Job
from tests.process.harbor import admin, restarted_with
from tests.process.harness import wait_until
from tests.servers import PostgreSQL
from tests.servers.base import give_away
from tests.servers.plugin import go_without
from tests.testapp import fault_tasks as tasks
from tests.testapp.tasks import echo

from .crew import counts
from .harbor import moored, pass_by, patient, tell

pytestmark = pytest.mark.postgresql

AWAY = "the database cannot be used, trying again"
DEADLOCKS = 5


# -- connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "most"), [(6, 20), pytest.param(30, 40, marks=pytest.mark.slow)]
)
def test_too_few_connections_for_all_workers_cost_time_and_no_job(
    harbor, workers, most, record_property
):
    """
    Handlers that get none fail, and are retried; what workers hold they can renew and settle.

    Jobs that need none end meanwhile. For the others workers have to be stopped: the connections
    that there are may all be theirs.
    """
    lease = 15.0
    with restarted_with(harbor.server, max_connections=most):
        ids = []
        job = patient.using(max_attempts=10_000)
        enqueue_many((job.call() for _ in range(20 * workers)), on_batch=ids.extend)
        harbor.history.enqueued.update(ids)
        assert Job.objects.exists()  # this process keeps the one connection that it has
        crowd = harbor.start_several(workers, lease=lease, threads=2)
        wait_until(lambda: refused(crowd), timeout=180, what="a worker without a connection")
        # Some get through and work: what they ask is no sign of trouble, that they connect is.
        with harbor.counted(workers, what=lambda: harbor.proxy.accepted) as asked:
            others = [harbor.enqueue(echo, "without") for _ in range(workers)]
            pass_by(5)
        harbor.ended(*others)
        assert {counts(other) for other in others} == {("done", 1, 0, 0)}
        harbor.forget(others)
        wait_until(lambda: none_is_left(harbor.server), what="a refusal after all that")
        assert all(worker.alive for worker in crowd)
        harbor.dismiss(*crowd[2:])
        took = harbor.recovers(time.time(), lease=lease, task=job)
        harbor.drained(timeout=300)
        assert not Job.objects.filter(lease_losses__gt=0).exists()
        facts = {"workers": workers, "connections": most, "asked": asked["per second"]}
        tell(record_property, **facts, recovery=took)
        harbor.finish()


REFUSAL = "too many clients|remaining connection"


def refused(crowd):
    return any(worker.lines(f"{AWAY}: .*({REFUSAL})") for worker in crowd)


def none_is_left(server):
    """Whether a newcomer is refused."""
    try:
        psycopg.connect(server.url).close()
    except psycopg.OperationalError as error:
        return re.search(REFUSAL, str(error))
    return False


# -- locks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_bulk_actions_of_operators_among_reserve_and_settle_end_no_worker(
    harbor, seconds, record_property
):
    """Requeue, cancel and discard take the same thousand rows as the workers, all the time."""
    failing = tasks.fail_always.using(max_attempts=1)
    enqueue_many(call.call() for _ in range(200) for call in (failing, tasks.touch))
    workers = [harbor.start(lease=30.0) for _ in range(2)]
    stop, done, errors = threading.Event(), {}, []

    def act(name, action):
        try:
            while not stop.is_set():
                done[name] = done.get(name, 0) + 1
                action()
        except Exception as error:  # noqa: BLE001  reported below
            errors.append((name, error))
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=act, args=(f"{name} {number}", action), daemon=True)
        for name, action in ACTIONS.items()
        for number in range(2)
    ]
    before = deadlocks(harbor.server)
    for thread in threads:
        thread.start()
    pass_by(seconds)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(done) == len(threads)
    open_jobs = Job.objects.exclude(state__in=["done", "dead", "cancelled"])
    wait_until(lambda: not open_jobs.exists(), timeout=180, what="the end of all jobs")
    assert (
        DeadLetter.objects.exclude(open_for=None).count()
        == Job.objects.filter(state="dead").count()
    )
    assert not Job.objects.filter(lease_losses__gt=0).exists()
    assert all(worker.alive for worker in workers)
    facts = {"actions": sum(done.values()), "deadlocks": deadlocks(harbor.server) - before}
    tell(record_property, **facts)
    harbor.finish(operators=True)


def deadlocks(server):
    with admin(server) as session:
        return session.execute("SELECT sum(deadlocks)::int FROM pg_stat_database").fetchone()[0]


def _everything():
    return Selection(task=tasks.fail_always.name)


ACTIONS = {
    "requeue": lambda: requeue(_everything()),
    "discard": lambda: discard(list(DeadLetter.objects.values_list("job", flat=True)[:20])),
    "cancel": lambda: cancel(list(Job.objects.order_by("-pk").values_list("pk", flat=True)[:50])),
    "enqueue": lambda: enqueue_many(tasks.fail_always.using(max_attempts=1).call() for _ in "abc"),
}


# A member of a chord is settled before its finalizer is looked for: this is the other way round.
BACKWARDS = """
SELECT 1 FROM taskharbor_job WHERE state IN ('blocked', 'inflight') ORDER BY id DESC FOR UPDATE
"""
QUICK = "-c deadlock_timeout=10ms"  # who waits for longer looks whether it is for ever
PATIENT = "-c deadlock_timeout=60s"  # it is always the other who has to give in


def test_a_stranger_who_locks_jobs_in_the_other_order_costs_time_and_no_job(
    harbor, record_property
):
    """Each deadlock is the worker's to lose: it tells nobody, and does the whole verb again."""
    worker = harbor.start(lease=30.0, threads=2, PGOPTIONS=QUICK).ready()
    before, workflows = deadlocks(harbor.server), []
    members = [tasks.touch.s() for _ in range(8)]
    with psycopg.connect(harbor.server.url, options=PATIENT) as stranger:

        def enough():
            workflows.append(chord(members, tasks.gather.s()).enqueue())
            stranger.execute(BACKWARDS)
            stranger.commit()
            return deadlocks(harbor.server) - before >= DEADLOCKS

        wait_until(enough, timeout=120, what=f"{DEADLOCKS} deadlocks")
    harbor.drained()
    assert {tuple(it.results) for it in workflows} == {(len(members),)}
    assert not Job.objects.exclude(executions=1, attempts=0, lease_losses=0).exists()
    assert worker.alive
    assert not worker.lines(AWAY)
    found = deadlocks(harbor.server) - before
    tell(record_property, deadlocks=found, workflows=len(workflows))
    harbor.finish()


@pytest.mark.parametrize("seconds", [6, pytest.param(90, marks=pytest.mark.slow)])
def test_a_locked_table_is_waited_for(harbor, seconds, record_property):
    """As by a careless ALTER TABLE; the lease is longer than the lock in the short form only."""
    held = harbor.enqueue(tasks.hold.using(max_attempts=100), str(harbor.go))
    worker = harbor.start(lease=30.0)
    harbor.signed("START")
    others = [harbor.enqueue(patient) for _ in range(20)]
    with admin(harbor.server) as session, session.transaction():
        session.execute("LOCK TABLE taskharbor_job IN ACCESS EXCLUSIVE MODE")
        harbor.open()
        with harbor.counted() as asked:
            pass_by(seconds)
    took = harbor.recovers(time.time(), lease=30.0)
    harbor.ended(held, *others, timeout=180)
    harbor.drained()
    assert worker.alive
    if seconds < 30:
        assert counts(held) == ("done", 1, 0, 0)
    tell(record_property, asked=asked["per second"], recovery=took)
    # An ack that was sent before stands behind the lock; nobody else can have its job meanwhile.
    harbor.finish(in_line=seconds)


# -- disk ----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk():
    """
    A file system of a few megabytes, where this machine lets the tests mount one.

    Not in pytest's own directory: each run that starts shuts that to other users, and the server
    is one.
    """
    place = Path(tempfile.mkdtemp(prefix="taskharbor-small-"))
    mount = shutil.which("mount")
    asked = [mount, "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)] if mount else ["false"]
    if os.geteuid() or subprocess.run(asked, capture_output=True, check=False).returncode:
        place.rmdir()
        go_without("a file system cannot be mounted here: nothing can be filled up")
    give_away(place)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


@pytest.fixture
def cramped(small_disk, tmp_path, django_db_blocker):
    """A harbor whose tables are on the small disk; the log of transactions has room."""
    with PostgreSQL() as server:
        with admin(server) as session:
            session.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
            session.execute("ALTER ROLE taskharbor SET default_tablespace = small")
        with django_db_blocker.unblock(), moored(server, tmp_path) as harbor:
            yield harbor


def test_a_full_disk_is_waited_for(cramped, small_disk, record_property):
    """Whoever enqueues is told at once; what was stored before is done when there is room."""
    worker = cramped.start(lease=6.0)
    with cramped.load(pace=50) as load:
        cramped.signed("END")
        ballast = small_disk / "ballast"
        fill(ballast)
        wait_until(lambda: load.refused, timeout=120, what="an enqueue that is refused")
        worker.line(f"{AWAY}: .*(No space left|could not extend)", timeout=120)
        with cramped.counted() as asked:
            pass_by(3)
        ballast.unlink()
        took = cramped.recovers(time.time(), lease=6.0)
    cramped.drained()
    assert worker.alive
    tell(record_property, refused=load.refused, asked=asked["per second"], recovery=took)
    cramped.finish()


def fill(ballast):
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
