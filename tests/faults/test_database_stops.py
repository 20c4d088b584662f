"""A server that is stopped, restarted, read-only or rid of its sessions, under steady load."""

import random
import time
from types import SimpleNamespace

import pytest
from django.db import connection

from tests.process.harbor import admin, down, read_only
from tests.process.harness import wait_until
from tests.servers import PostgreSQL, Proxy, Standby
from tests.testapp import fault_tasks as tasks

from .crew import LEASE, counts
from .harbor import moored, pass_by, patient, tell

pytestmark = pytest.mark.postgresql

AWAY = "the database cannot be used, trying again"
END_ONE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'worker' ORDER BY random() LIMIT 1
"""


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_sessions_of_workers_that_are_ended_at_random_cost_no_job(harbor, seconds, record_property):
    workers = harbor.ready(2)
    with harbor.load() as load:
        harbor.signed("END")
        ended, until = 0, time.monotonic() + seconds
        with admin(harbor.server) as session:
            while time.monotonic() < until:
                ended += session.execute(END_ONE).rowcount
                pass_by(random.uniform(0.05, 0.5))
        took = harbor.recovers(time.time())
    harbor.drained()
    assert ended >= seconds / 2
    assert all(worker.alive for worker in workers)
    tell(record_property, sessions_ended=ended, jobs=load.accepted, recovery=took)
    harbor.finish()


@pytest.mark.parametrize("mode", ["fast", pytest.param("immediate", marks=pytest.mark.quick)])
def test_a_server_that_is_restarted_under_load_costs_no_job(harbor, mode, record_property):
    workers = harbor.ready(2)
    took = []
    with harbor.load() as load:
        for _ in range(2):
            harbor.goes_on()
            harbor.restart(mode)
            took.append(harbor.recovers(time.time()))
    harbor.drained()
    assert all(worker.alive and worker.lines(AWAY) for worker in workers)
    tell(record_property, jobs=load.accepted, refused=load.refused, recovery=took)
    harbor.finish()


def test_a_server_that_is_down_for_longer_than_the_lease_costs_leases_and_no_job(
    harbor, record_property
):
    jobs = [harbor.enqueue(tasks.hold, str(harbor.go)) for _ in range(2)]
    worker = harbor.start()
    harbor.signed("START", times=2)
    with down(harbor.server):
        worker.line(AWAY)
        with harbor.counted() as asked:
            worker.line("is lost: it could not be renewed in time")
            pass_by(2 * LEASE)
        harbor.open()
    after, back = harbor.enqueue(patient), time.time()
    took = harbor.recovers(back, *jobs)
    harbor.ended(*jobs, after)
    assert {counts(job) for job in jobs} == {("done", 2, 0, 1)}
    assert worker.alive
    tell(record_property, asked=asked["per second"], recovery=took)
    harbor.finish()


def test_a_worker_that_starts_without_a_database_begins_when_there_is_one(harbor, record_property):
    job = harbor.enqueue(patient)
    with down(harbor.server):
        worker = harbor.start()
        worker.line(AWAY)
        with harbor.counted() as asked:
            pass_by(3)
        assert worker.alive
        assert not worker.lines("is ready")
    took = harbor.recovers(time.time())
    harbor.ended(job)
    assert counts(job) == ("done", 1, 0, 0)
    tell(record_property, asked=asked["per second"], recovery=took)
    harbor.finish()


@pytest.mark.parametrize("seconds", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_a_server_that_is_read_only_for_a_while_costs_no_job(harbor, seconds, record_property):
    """As between the two halves of a failover; whoever enqueues meanwhile is told so at once."""
    lease = 6.0
    worker = harbor.start(lease=lease)
    with harbor.load() as load:
        harbor.signed("END")
        with read_only(harbor.server):
            worker.line(AWAY)
            wait_until(lambda: load.refused, what="an enqueue that is refused")
            with harbor.counted() as asked:
                pass_by(seconds)
        took = harbor.recovers(time.time(), lease=lease)
    harbor.drained()
    assert worker.alive
    tell(record_property, refused=load.refused, asked=asked["per second"], recovery=took)
    harbor.finish()


# -- failover ------------------------------------------------------------------------------------

IN_STEP = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"


class Pair:
    """A server and its standby, which has what is committed before anybody is told so."""

    def __init__(self, primary, standby, line):
        self._primary = primary
        self._standby = standby
        self._line = line

    def keep_in_step(self):
        with admin(self._primary) as session:
            session.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            session.execute("SELECT pg_reload_conf()")
            wait_until(lambda: session.execute(IN_STEP).fetchone(), what="a standby in step")

    def fail_over(self):
        """Lose the one and promote the other; whoever asks at the old address gets there."""
        connection.close()  # this process's own session would not survive it either
        self._primary.stop("immediate")
        self._standby.promote()
        self._line.target = self._standby.port
        self._line.cut()


@pytest.fixture
def paired(tmp_path, django_db_blocker):
    """A harbor at an address that leads to one of two servers, this process's own way too."""
    with (
        PostgreSQL() as primary,
        Standby(primary) as standby,
        Proxy(primary.port) as line,
        django_db_blocker.unblock(),
    ):
        pair = Pair(primary, standby, line)
        pair.keep_in_step()
        address = {"url": line.url(primary.url), "port": line.port, "password": primary.password}
        with moored(SimpleNamespace(**address), tmp_path) as harbor:
            harbor.pair = pair
            yield harbor


def test_a_standby_that_takes_over_under_load_has_every_job(paired, record_property):
    """What a caller was told to be stored is there, and what was done is not done again."""
    lease = 6.0  # each commit waits for the standby as well: a busy machine must not cost leases
    workers = paired.ready(2, lease=lease)
    with paired.load(pace=50) as load:
        paired.signed("END", times=50)
        lost = time.time()
        paired.pair.fail_over()
        taken_over = time.time()
        took = paired.recovers(taken_over, lease=lease)
        paired.goes_on()
    paired.drained()
    assert all(worker.alive and worker.lines(AWAY) for worker in workers)
    away = round(taken_over - lost, 2)
    tell(record_property, jobs=load.accepted, refused=load.refused, away=away, recovery=took)
    paired.finish()
