"""Queues on two PostgreSQL clusters, one of which is stopped, or no longer answers."""

import io
import json
import time

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections, transaction
from django.test import Client

from taskharbor_django import metrics
from taskharbor_django.models import Job, Lease
from tests.process.harness import Processes, database_url, pids_in, wait_until
from tests.servers import PostgreSQL, Proxy
from tests.settings import database, env
from tests.testapp.models import Ledger
from tests.testapp.process_tasks import hold, mark

from .crew import POLL, in_time
from .history import History, noted

pytestmark = pytest.mark.postgresql

AWAY = r"(\w+): the database cannot be used, trying again"
BACK = r"(\w+): the database is back"
LEASE = 30.0
SUBMISSION_TIMEOUT = 4
DASHBOARD = "/admin/taskharbor/"


class Harbor:
    """This run's own cluster as `default`, another one as `far`, and a worker for each."""

    def __init__(self, server, proxy, processes, path):
        self.history = History(path / "trail")
        self.server = server
        self.proxy = proxy
        self._processes = processes
        self._path = path

    def worker(self, using):
        return self._processes.start(
            *("--database", using, "--lease", str(LEASE), "--poll", str(POLL), "--threads", "4"),
            DATABASE_URL=database_url(),
            FAR_DATABASE_URL=self.proxy.url(self.server.url),
            DJANGO_SETTINGS_MODULE="tests.faults.settings",
            TASKHARBOR_SETTINGS=json.dumps({"QUEUE_DATABASES": {"far": "far"}}),
            **self.history.environment,
        ).ready()

    def mark(self, queue, number=1):
        said = str(self._path / queue)
        jobs = [mark.using(queue=queue).enqueue(said) for _ in range(number)]
        self.history.enqueued.update(job.id for job in jobs if queue != "far")
        return jobs

    def hold(self, queue):
        return hold.using(queue=queue).enqueue(str(self._path / queue), str(self._path / "go"))

    def let_go(self):
        (self._path / "go").touch()

    def runs(self, queue):
        return len(pids_in(self._path / queue))

    def check(self):
        """What became of the jobs that are here; in the other cluster nobody notes what moves."""
        wait_until(lambda: not self.history.processes(), what="the end of all processes")
        self.history.check(signed=False)
        assert self.runs("default") == len(self.history.enqueued)


@pytest.fixture(scope="module")
def server():
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def harbor(server, transactional_db, settings, tmp_path):
    running = Processes()
    before = settings.TASKHARBOR
    with Proxy(server.port) as proxy:
        config = database(env.db_url_config(proxy.url(server.url)))
        connections.settings["far"] = {**connections.settings["default"], **config}
        settings.TASKHARBOR = {
            **before,
            "QUEUE_DATABASES": {"far": "far"},
            "SUBMISSION_TIMEOUT": SUBMISSION_TIMEOUT,
        }
        let_be_opened(connections["far"])
        call_command("migrate", database="far", verbosity=0)
        call_command("flush", database="far", interactive=False, verbosity=0)
        with noted():
            yield Harbor(server, proxy, running, tmp_path)
            running.remove()
        settings.TASKHARBOR = before
        connections["far"].close()
        del connections["far"]
        del connections.settings["far"]


def let_be_opened(connection):
    """Django's test case opens no alias that it has not set up."""

    def ensure_connection():
        if connection.connection is None:
            with connection.wrap_database_errors:
                connection.connect()

    connection.ensure_connection = ensure_connection


def done(*handles):
    wait_until(lambda: {it.state for it in handles} == {"done"}, what="the end of the jobs")


def sell():
    with transaction.atomic():
        Ledger.objects.create(name="sold")
        mark.using(queue="far").enqueue_on_commit("nowhere")


def refused(ask):
    """How long an enqueue into the other cluster takes to be refused."""
    began = time.monotonic()
    with pytest.raises(OperationalError):
        ask()
    return time.monotonic() - began


def visit(operator, path, status=200):
    """The text of a page, and how long it took."""
    began = time.monotonic()
    answer = operator.get(path)
    assert answer.status_code == status
    return " ".join(answer.content.decode().split()), time.monotonic() - began


@pytest.fixture
def operator(transactional_db, django_user_model):
    client = Client()
    client.force_login(django_user_model.objects.create_superuser("operator"))
    return client


def test_one_cluster_is_stopped_and_the_other_goes_on(harbor, operator, record_property):
    near, there = harbor.worker("default"), harbor.worker("far")
    held = harbor.hold("far")
    done(*harbor.mark("default", 5), *harbor.mark("far", 5))
    wait_until(lambda: harbor.runs("far") == 6, what="the held job")
    stored = Job.objects.using("far").count()
    harbor.server.stop("fast")
    harbor.let_go()
    there.line(AWAY)
    # What was open breaks, and what is opened now is refused; neither leaves anything.
    took = [refused(lambda: harbor.mark("far")) for _ in range(2)]
    refused(sell)
    assert Ledger.objects.filter(name="sold").exists()
    assert max(took) < SUBMISSION_TIMEOUT + 5
    assert_doors_tell(operator)
    done(*harbor.mark("default", 20))
    assert not near.lines(AWAY), near.output
    harbor.server.start()
    back = time.time()
    connections["far"].close()
    done(held, *harbor.mark("far", 5))
    recovery = in_time([time.time()], back, LEASE)
    assert Job.objects.using("far").count() == stored + 5
    job = held.refresh()
    assert (job.executions, job.lease_losses, harbor.runs("far")) == (1, 0, 11)
    assert "cannot be asked" not in visit(operator, DASHBOARD)[0]
    wait_until(lambda: len(there.lines(BACK)) == len(there.lines(AWAY)), what="all parts back")
    assert [near.stop()[0], there.stop()[0]] == [0, 0]
    assert not Lease.objects.using("far").exists()
    harbor.check()
    record_property("recovery", recovery)
    record_property("refused after (s)", " and ".join(f"{it:.2f}" for it in took))


def assert_doors_tell(operator):
    """Screens, metrics and health answer, and say which database is away."""
    page, _ = visit(operator, DASHBOARD)
    assert "far: this database cannot be asked" in page
    page, _ = visit(operator, "/admin/taskharbor/job/?database=far", 503)
    assert "?database=default" in page
    visit(operator, f"{DASHBOARD}?database=default")
    visit(operator, "/admin/taskharbor/job/")
    assert 'taskharbor_database_up{database="far"} 0.0' in metrics.exposition().decode()
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("taskharbor", "health", "--json", stdout=out, stderr=io.StringIO())
    assert ended.value.code == 3
    assert [it["check"] for it in json.loads(out.getvalue())["rows"] if not it["ok"]] == [
        "far: database"
    ]


@pytest.mark.slow
def test_one_cluster_falls_silent_and_nobody_waits_for_it_for_long(
    harbor, operator, record_property
):
    """Connections are taken and nobody answers: worse than a refusal, for who waits."""
    near = harbor.worker("default")
    connections["far"].close()
    harbor.proxy.silence()
    took = refused(lambda: harbor.mark("far"))
    assert SUBMISSION_TIMEOUT - 1 < took < SUBMISSION_TIMEOUT + 5
    connections["far"].close()
    page, waited = visit(operator, DASHBOARD)
    assert "far: this database cannot be asked" in page
    assert waited < 10
    done(*harbor.mark("default", 5))
    harbor.proxy.mend()
    connections["far"].close()
    assert not Job.objects.using("far").exists()
    assert near.stop()[0] == 0
    harbor.check()
    record_property("enqueue gave up after (s)", f"{took:.2f}")
    record_property("dashboard answered after (s)", f"{waited:.2f}")
