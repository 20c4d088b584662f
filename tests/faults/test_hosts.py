"""Several worker hosts on one PostgreSQL, one of which is cut off while its jobs run."""

import contextlib
import time

import pytest
from django.core.management import call_command
from django.db import connection

from taskharbor_django.exceptions import JobNotInflight, StaleLease
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.operations.settle import settle
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.values import Outcome
from tests.process.harness import Processes, wait_until
from tests.servers.base import DATABASE, USER
from tests.servers.plugin import go_without
from tests.testapp import fault_tasks as tasks

from . import network
from .crew import Crew, everything
from .history import noted

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]

LEASE = 4.0
HOSTS = 3
TOO_LATE = r"job {}: its ack (is dropped with its lost lease|came too late)"


@pytest.fixture
def hosts(tmp_path, django_db_blocker):
    """Hosts with a worker's place each, and the database of all as this process's own."""
    if why := network.missing():
        go_without(why)
    with (
        network.Network() as net,
        network.MiddleServer(net) as server,
        django_db_blocker.unblock(),
        here(server),
    ):
        call_command("migrate", verbosity=0, run_syncdb=True)
        with noted():
            crew = Crew(Processes(), tmp_path)
            yield Hosts(net, server, crew)
            crew.remove()


@contextlib.contextmanager
def here(server):
    before = connection.settings_dict
    connection.close()
    connection.settings_dict = {
        **before,
        "HOST": str(server.socket),
        "PORT": server.port,
        "USER": USER,
        "NAME": DATABASE,
        "PASSWORD": server.password,
    }
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = before


class Hosts:
    def __init__(self, net, server, crew):
        self.net = net
        self.crew = crew
        self._server = server

    def start(self, **options):
        """A worker on a host of its own; return both."""
        host = self.net.add()
        worker = self.crew.start(
            lease=LEASE,
            within=network.inside(host),
            DATABASE_URL=self._server.url_inside,
            **options,
        )
        return host, worker


def outcome_of(job, handle):
    """What the worker that holds this job would hand in."""
    return Outcome(
        job_id=handle.id, token=job.lease, version=job.lease_version, kind=OutcomeKind.ACK
    )


def test_a_host_that_is_cut_off_loses_its_jobs_to_another_and_cannot_end_them(
    hosts, record_property
):
    crew = hosts.crew
    lonely, first = hosts.start()
    jobs = [crew.enqueue(tasks.linger, str(crew.go)) for _ in range(3)]
    jobs.append(crew.enqueue(tasks.hold, str(crew.go)))
    crew.signed("START", times=4)
    wait_until(lambda: crew.history.lines("END", jobs[2].id), what="the last line")
    stale = {job: outcome_of(job.refresh(), job) for job in jobs}
    others = [hosts.start()[1].ready() for _ in range(HOSTS - 1)]
    hosts.net.cut(lonely)
    cut_at = time.time()
    crew.open()  # it has finished three of them, and can tell nobody
    took = crew.taken_over(*jobs, since=cut_at, lease=LEASE)
    ended = crew.ended(*jobs)
    assert {(it.state, it.executions, it.lease_losses) for it in ended} == {("done", 2, 1)}
    busy = [crew.enqueue(tasks.touch) for _ in range(50)]
    crew.ended(*busy)
    stories = [everything(job) for job in jobs]
    hosts.net.mend(lonely)
    first.line(r"reserve: the database is back")
    for job in jobs[:3]:
        first.line(TOO_LATE.format(job.id))
    driver = driver_for("default")
    rejected = settle(driver, list(stale.values()), now=driver.now())
    assert len(rejected) == len(jobs)
    assert not any(it.repeated for it in rejected)
    assert all(isinstance(it.error, StaleLease | JobNotInflight) for it in rejected)
    assert [everything(job) for job in jobs] == stories
    again = works_again(hosts, first, others)
    crew.finish(stopped_anywhere=True)
    record_property("taken over after (s)", f"{took:.1f}, with a lease of {LEASE:g} s")
    record_property("working again after (s)", again)


def works_again(hosts, first, others):
    """The host that was cut off takes jobs as before; return how soon."""
    hosts.crew.dismiss(*others)
    asked = time.time()
    job = hosts.crew.enqueue(tasks.touch)
    took = hosts.crew.works_again(first, since=asked, lease=LEASE)
    hosts.crew.ended(job)
    assert job.refresh().executions == 1
    return took
