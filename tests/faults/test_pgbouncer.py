"""Workers and callers that share sessions by PgBouncer in transaction mode."""

import time

import pytest

from taskharbor_django import cancel
from taskharbor_django.models import Job
from tests.process.harness import wait_until
from tests.servers import PgBouncer
from tests.servers.plugin import go_without
from tests.testapp import fault_tasks as tasks

from .crew import LEASE, counts
from .harbor import moored, tell
from .history import ENDED

pytestmark = pytest.mark.postgresql

SESSIONS = 4
LOGIN_RETRY = 15.0  # PgBouncer's own: so long it asks a server not again that was not there


@pytest.fixture
def pooled(server, tmp_path, django_db_blocker):
    """A harbor whose workers have four sessions of the server between all of them."""
    if reason := PgBouncer.missing():
        go_without(reason)
    options = {"default_pool_size": SESSIONS, "max_db_connections": SESSIONS}
    with (
        django_db_blocker.unblock(),
        moored(server, tmp_path) as harbor,
        PgBouncer(server, options=options) as pooler,
    ):
        harbor.pooler = pooler
        yield harbor


def start(harbor, **options):
    # Nobody can listen on a session that is not its own.
    return harbor.start(DATABASE_URL=harbor.pooler.url, settings={"NOTIFY": False}, **options)


def test_workers_share_a_few_sessions(pooled, record_property):
    """Two workers would want a dozen; every kind of handler and of outcome goes through."""
    workers = [start(pooled, lease=10.0) for _ in range(2)]
    held = pooled.enqueue(tasks.hold, str(pooled.go))
    jobs = [
        pooled.enqueue(task)
        for task in (
            *(tasks.touch, tasks.atouch, tasks.touch_apart, tasks.book),
            *(tasks.fail_once, tasks.snooze_once),
        )
    ]
    doomed = pooled.enqueue(tasks.hold, str(pooled.go.with_name("never")))
    pooled.signed("START", job=doomed)
    with pooled.load() as load:
        assert cancel([doomed.id], force=True).moved == 1
        pooled.ended(*jobs, doomed)
        pooled.open()
        pooled.ended(held)
    assert counts(doomed)[0] == "cancelled"
    assert counts(held) == ("done", 1, 0, 0)
    assert all(worker.alive for worker in workers)
    tell(record_property, sessions=SESSIONS, jobs=load.accepted)
    open_jobs = Job.objects.exclude(state__in=ENDED)
    wait_until(lambda: not open_jobs.exists(), what="the end of all jobs")
    pooled.finish()


def test_a_pooler_that_is_restarted_costs_no_job(pooled, record_property):
    worker = start(pooled)
    with pooled.load() as load:
        pooled.signed("END")
        pooled.pooler.stop("fast")
        worker.line("the database cannot be used, trying again")
        pooled.pooler.start()
        took = pooled.recovers(time.time())
    pooled.drained()
    assert worker.alive
    tell(record_property, jobs=load.accepted, recovery=took)
    pooled.finish()


def test_a_server_that_is_restarted_behind_the_pooler_costs_no_job(pooled, record_property):
    worker = start(pooled)
    with pooled.load() as load:
        pooled.signed("END")
        pooled.restart("immediate")
        took = pooled.recovers(time.time(), lease=LEASE + LOGIN_RETRY)
    pooled.drained()
    assert worker.alive
    tell(record_property, jobs=load.accepted, recovery=took)
    pooled.finish()


@pytest.mark.quick
def test_a_worker_killed_behind_a_pooler_leaves_its_job_to_another(pooled, record_property):
    job = pooled.enqueue(tasks.hold, str(pooled.go))
    victim = start(pooled, failpoints="completer.settling=kill")
    pooled.signed("START")
    start(pooled).ready()
    pooled.open()
    wait_until(lambda: not victim.alive, what="the kill")
    tell(record_property, recovery=pooled.taken_over(job, since=time.time()))
    pooled.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    pooled.finish()
