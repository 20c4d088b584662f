"""A MariaDB that is stopped, killed, read-only, full or rid of its sessions, under steady load."""

import contextlib
import random
import time

import pytest
from django.core.management import call_command
from django.db import connection, connections

from taskharbor_django import enqueue_many
from taskharbor_django.models import Job
from tests.process.harbor import down, restarted_with
from tests.process.harness import Processes, wait_until
from tests.servers import MariaDB, Proxy
from tests.servers.base import DATABASE, HOST, USER
from tests.servers.mariadb import ORDINARY
from tests.testapp import fault_tasks as tasks
from tests.testapp.tasks import echo

from .crew import LEASE, counts
from .harbor import Harbor, pass_by, patient, tell
from .history import noted

pytestmark = pytest.mark.mariadb

AWAY = "the database cannot be used, trying again"
ANY_SESSION = """
SELECT id FROM information_schema.processlist
WHERE user = %s AND id <> %s ORDER BY rand() LIMIT 1
"""


class Mooring(Harbor):
    """A harbor whose workers are ordinary users of a MariaDB."""

    def start(self, *arguments, **options):
        options.setdefault("DATABASE_URL", self.proxy.url(self.server.ordinary))
        return super().start(*arguments, **options)


@contextlib.contextmanager
def here(server):
    """Let Django's default connection of this process, in each thread, be one to the server."""
    before = connection.settings_dict
    address = {"HOST": HOST, "PORT": server.port, "NAME": DATABASE}
    connection.close()
    there = {**before, **address, "USER": ORDINARY, "PASSWORD": server.password}
    connection.settings_dict = connections.settings["default"] = there
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = connections.settings["default"] = before


@pytest.fixture(scope="module")
def server():
    with MariaDB() as server:
        yield server


@pytest.fixture
def harbor(server, tmp_path, django_db_blocker):
    """The server of the module, for this process too, with empty tables."""
    with django_db_blocker.unblock(), here(server), Proxy(server.port) as proxy:
        call_command("migrate", run_syncdb=True, verbosity=0)
        call_command("flush", interactive=False, verbosity=0)
        with noted():
            harbor = Mooring(server, proxy, Processes(), tmp_path)
            try:
                yield harbor
            finally:
                harbor.show()
            harbor.remove()


@contextlib.contextmanager
def admin(server):
    """A session that may do everything, past the proxy; gives its cursor."""
    import MySQLdb

    address = {"host": HOST, "port": server.port, "user": USER, "password": server.password}
    with contextlib.closing(MySQLdb.connect(**address, autocommit=True)) as session:
        yield session.cursor()


@contextlib.contextmanager
def read_only(server):
    def switch(to):
        with admin(server) as cursor:
            cursor.execute(f"SET GLOBAL read_only = {to}")

    switch(1)
    try:
        yield
    finally:
        switch(0)


# -- stopped and restarted -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fast", "kill"])
def test_a_mariadb_that_is_restarted_under_load_costs_no_job(harbor, mode, record_property):
    """Asked to stop, it ends its sessions; killed, it recovers from its log."""
    lease = 6.0  # a busy machine must not cost leases, of which a job may lose a few only
    workers = harbor.ready(2, lease=lease)
    took = []
    with harbor.load() as load:
        for turn in range(2):
            harbor.signed("END", times=20 + 40 * turn)
            harbor.restart(mode)
            took.append(harbor.recovers(time.time(), lease=lease))
    harbor.drained()
    assert all(worker.alive and worker.lines(AWAY) for worker in workers)
    tell(record_property, jobs=load.accepted, refused=load.refused, recovery=took)
    harbor.finish()


def test_a_mariadb_that_is_down_for_longer_than_the_lease_costs_leases_and_no_job(
    harbor, record_property
):
    jobs = [harbor.enqueue(tasks.hold, str(harbor.go)) for _ in range(2)]
    worker = harbor.start()
    harbor.signed("START", times=2)
    with down(harbor.server, "kill"):
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


def test_a_worker_that_starts_without_its_mariadb_begins_when_there_is_one(harbor, record_property):
    jobs = [harbor.enqueue(patient) for _ in range(30)]
    with down(harbor.server):
        worker = harbor.start()
        worker.line(AWAY)
        tried = time.time()
        with harbor.counted() as asked:
            pass_by(3)
        assert worker.alive
        assert not worker.lines("is ready")
    back = time.time()
    took = harbor.recovers(back, lease=back - tried)  # its pauses double: the last is half of all
    harbor.ended(*jobs)
    assert {counts(job) for job in jobs} == {("done", 1, 0, 0)}
    tell(record_property, asked=asked["per second"], recovery=took)
    harbor.finish()


# -- refusing ------------------------------------------------------------------------------------


def test_a_mariadb_that_is_read_only_for_a_while_costs_no_job(harbor, record_property):
    """As between the two halves of a failover; whoever enqueues meanwhile is told so at once."""
    lease = 6.0
    worker = harbor.start(lease=lease)
    with harbor.load() as load:
        harbor.signed("END", times=20)
        with read_only(harbor.server):
            worker.line(f"{AWAY}: .*read-only")
            wait_until(lambda: load.refused, what="an enqueue that is refused")
            with harbor.counted() as asked:
                pass_by(5)
        took = harbor.recovers(time.time(), lease=lease)
    harbor.drained()
    assert worker.alive
    tell(record_property, refused=load.refused, asked=asked["per second"], recovery=took)
    harbor.finish()


def test_too_few_connections_of_a_mariadb_cost_time_and_no_job(harbor, record_property):
    """Jobs that need none end meanwhile; the others fail and are retried until there are enough."""
    workers, most, lease = 6, 14, 15.0
    with restarted_with(harbor.server, **{"max-connections": most}):
        job, ids = patient.using(max_attempts=10_000), []
        enqueue_many((job.call() for _ in range(20 * workers)), on_batch=ids.extend)
        harbor.history.enqueued.update(ids)
        assert Job.objects.exists()  # this process keeps the one connection that it has
        crowd = harbor.start_several(workers, lease=lease, threads=2)
        wait_until(lambda: refused(crowd), timeout=180, what="a worker without a connection")
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
        tell(record_property, workers=workers, connections=most, recovery=took)
        harbor.finish()


REFUSAL = "Too many connections"


def refused(crowd):
    return any(worker.lines(f"{AWAY}: .*{REFUSAL}") for worker in crowd)


def none_is_left(server):
    """Whether a newcomer without privileges is refused."""
    import MySQLdb

    address = {"host": HOST, "port": server.port, "user": ORDINARY, "password": server.password}
    try:
        MySQLdb.connect(**address).close()
    except MySQLdb.OperationalError as error:
        return REFUSAL in str(error)
    return False


def test_sessions_that_mariadb_kills_at_random_cost_no_job(harbor, record_property):
    """Those of workers, and that of whoever enqueues."""
    seconds = 10
    workers = harbor.ready(2)
    with harbor.load() as load:
        harbor.signed("END")
        killed, until = 0, time.monotonic() + seconds
        with admin(harbor.server) as cursor:
            while time.monotonic() < until:
                killed += kill_one(cursor)
                pass_by(random.uniform(0.05, 0.5))
        took = harbor.recovers(time.time())
    harbor.drained()
    assert killed >= seconds / 2
    assert all(worker.alive for worker in workers)
    tell(record_property, sessions_killed=killed, jobs=load.accepted, recovery=took)
    harbor.finish()


def kill_one(cursor):
    """End one session, but not that of this thread; say whether there was one."""
    import MySQLdb

    cursor.execute(ANY_SESSION, [ORDINARY, connection.connection.thread_id()])
    found = cursor.fetchall()
    with contextlib.suppress(MySQLdb.OperationalError):  # it has just ended
        cursor.executemany("KILL %s", found)
        return bool(found)
    return False
