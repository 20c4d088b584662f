"""A database that is away never ends a worker, and what finished meanwhile is settled later."""

import contextlib
import re
import sqlite3
import time
from collections import Counter

import pytest
from django.core.management import call_command
from django.db import connection

from taskharbor_django.models import Attempt, Job, Lease
from tests.servers import PostgreSQL, Proxy, Standby
from tests.testapp.process_tasks import ask, hold, mark

from .harbor import admin, all_taken, caught_up, down, frozen, here, read_only, restarted_with
from .harness import Processes, pids_in, wait_until

LONG, SHORT = "30", "6"  # leases: longer than anything that happens here, and not
AWAY = r"(\w+): the database cannot be used, trying again"
BACK = r"(\w+): the database is back"
CUT = r"no answer in \d+ s, the connection was cut"
# A worker that is told nothing waits for half a second at least, and each part counts for itself.
MOST_PER_SECOND = 50


class Harbor:
    """A PostgreSQL of the module's own, the line to it, and the workers behind that line."""

    def __init__(self, server, proxy, processes, path):
        self.server = server
        self.proxy = proxy
        self._processes = processes
        self.said = path / "said"
        self._path = path

    def worker(self, *arguments, lease=LONG, threads=4):
        return self._processes.start(
            "--lease",
            lease,
            "--poll",
            "0.2",
            "--threads",
            str(threads),
            *arguments,
            DATABASE_URL=self.proxy.url(self.server.url),
            DJANGO_SETTINGS_MODULE="tests.faults.settings",
        )

    def go(self, name="go"):
        return self._path / name

    def hold(self, name="go", task=hold):
        """Enqueue a job that runs until `let_go`."""
        return task.enqueue(str(self.said), str(self.go(name)))

    def let_go(self, name="go"):
        self.go(name).touch()

    def mark(self, number=1):
        return [mark.enqueue(str(self.said)) for _ in range(number)]

    def began(self, runs):
        wait_until(lambda: len(pids_in(self.said)) >= runs, what=f"{runs} runs")

    def runs(self):
        return len(pids_in(self.said))


@pytest.fixture(scope="module")
def server():
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def harbor(server, tmp_path, django_db_blocker):
    """The server of this module as this process's database, too, with empty tables."""
    running = Processes()
    with django_db_blocker.unblock(), here(server), Proxy(server.port) as proxy:
        call_command("migrate", verbosity=0)
        call_command("flush", interactive=False, verbosity=0)
        yield Harbor(server, proxy, running, tmp_path)
        running.remove()


def done(*handles, executions=1, losses=0):
    """Wait until the jobs are done, and see that it was by so many runs."""

    def all_done():
        return Job.objects.filter(pk__in=[it.id for it in handles], state="done").count() == len(
            handles
        )

    wait_until(all_done, what="the end of the jobs")
    facts = Job.objects.filter(pk__in=[it.id for it in handles])
    counted = set(facts.values_list("executions", "attempts", "lease_losses"))
    assert counted == {(executions, 0, losses)}


def told(worker, pattern):
    return Counter(found[1] for found in worker.lines(pattern))


def assert_lives(worker, *, changes=1):
    """It works, it told each change once for each part, and it leaves nothing behind."""
    assert worker.alive, worker.output
    assert told(worker, AWAY), worker.output
    assert set(told(worker, AWAY).values()) <= set(range(1, changes + 1)), worker.output
    assert told(worker, BACK) == told(worker, AWAY), worker.output
    assert worker.stop()[0] == 0


def assert_nothing_is_left():
    assert not Lease.objects.exists()
    assert not Job.objects.exclude(state="done").exists()


def everyone_is_back(worker):
    wait_until(lambda: told(worker, BACK) == told(worker, AWAY), what="all parts back")


def away(worker, part):
    worker.line(rf"{part}: the database cannot be used, trying again")


# -- stopped and started -------------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_an_outcome_waits_for_a_server_that_is_restarted(harbor, mode):
    jobs = [*harbor.mark(20), harbor.hold("first"), harbor.hold("second")]
    worker = harbor.worker()
    harbor.began(22)
    done(*jobs[:20])
    with down(harbor.server, mode):
        harbor.let_go("first")
        away(worker, "settle")
    done(jobs[20])
    jobs += harbor.mark()
    done(jobs[-1])
    harbor.let_go("second")
    done(*jobs)
    assert harbor.runs() == len(jobs)
    everyone_is_back(worker)
    assert_lives(worker)
    assert_nothing_is_left()


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_server_that_is_down_for_longer_than_the_lease_costs_a_lease_and_no_attempt(harbor):
    finished, stopped = harbor.hold("finished"), harbor.hold("stopped")
    worker = harbor.worker(lease=SHORT)
    harbor.began(2)
    with down(harbor.server):
        harbor.let_go("finished")
        away(worker, "settle")
        worker.line("is lost: it could not be renewed in time")
        harbor.let_go("stopped")
    done(finished, stopped, executions=2, losses=1)
    assert harbor.runs() == 4
    assert worker.lines(f"job {finished.id}: its ack is dropped with its lost lease")
    assert set(Attempt.objects.values_list("job", flat=True)) == {finished.id, stopped.id}
    everyone_is_back(worker)
    assert_lives(worker)
    assert_nothing_is_left()


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_worker_goes_on_at_the_server_that_took_over(harbor):
    jobs = [harbor.hold("first"), harbor.hold("second")]
    worker = harbor.worker()
    harbor.began(2)
    primary = harbor.server
    try:
        with Standby(primary) as standby:
            harbor.proxy.refuse()
            caught_up(primary, standby)
            connection.close()
            primary.stop("immediate")
            harbor.let_go("first")
            away(worker, "settle")
            standby.promote()
            harbor.proxy.target = standby.port
            harbor.proxy.mend()
            with here(standby):
                done(jobs[0])
                jobs += harbor.mark()
                harbor.let_go("second")
                done(*jobs)
                assert harbor.runs() == 3
                everyone_is_back(worker)
                assert_lives(worker)
                assert_nothing_is_left()
    finally:
        primary.start()


# -- there, but of no use ------------------------------------------------------------------------


@pytest.mark.postgresql
def test_an_outcome_waits_while_the_server_is_read_only(harbor):
    job, other = harbor.hold("first"), harbor.hold("second")
    worker = harbor.worker()
    harbor.began(2)
    with read_only(harbor.server):
        harbor.let_go("first")
        away(worker, "settle")
        away(worker, "reserve")
        assert job.refresh().state == "inflight"
    done(job)
    harbor.let_go("second")
    done(other, *harbor.mark())
    assert harbor.runs() == 3
    everyone_is_back(worker)
    assert_lives(worker)
    assert_nothing_is_left()


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_worker_waits_for_a_connection_when_all_are_taken(harbor):
    jobs = [harbor.hold("first"), harbor.hold("second")]
    worker = harbor.worker()
    harbor.began(2)
    with restarted_with(harbor.server, max_connections=30):
        worker.line(BACK)
        everyone_is_back(worker)
        harbor.proxy.refuse()
        away_before = len(worker.lines(AWAY))
        with all_taken(harbor.server):
            harbor.proxy.mend()
            harbor.let_go("first")
            worker.line(AWAY, times=away_before + 1)
            away(worker, "settle")
            late = harbor.worker()
            late.line("cannot be used, trying again: .*too many clients")
        done(jobs[0])
        late.ready()
        harbor.let_go("second")
        jobs += harbor.mark(10)
        done(*jobs)
        assert harbor.runs() == len(jobs)
        for each, changes in ((worker, 2), (late, 1)):
            everyone_is_back(each)
            assert_lives(each, changes=changes)
        assert_nothing_is_left()


# -- silent --------------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_line_that_goes_silent_is_cut_and_the_outcome_is_settled_over_another(harbor):
    job, other = harbor.hold("first"), harbor.hold("second")
    worker = harbor.worker()
    done(*harbor.mark())  # by now the one who settles has a connection
    harbor.began(3)
    deaf = wait_until(lambda: listener(harbor), what="a listener")
    harbor.proxy.silence()
    harbor.let_go("first")
    swallowed(harbor.proxy, 2)
    harbor.proxy.mend()
    worker.line(f"settle: .*{CUT}")
    done(job)
    harbor.let_go("second")
    done(other, *harbor.mark())
    assert harbor.runs() == 4
    wait_until(lambda: listener(harbor) not in {None, deaf}, what="another listener")
    everyone_is_back(worker)
    assert_lives(worker)
    assert_nothing_is_left()


def listener(harbor):
    """The session that waits for NOTIFY, if there is just one."""
    with admin(harbor.server) as session:
        found = session.execute("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        pids = [pid for (pid,) in found]
    return pids[0] if len(pids) == 1 else None


def swallowed(proxy, times):
    """Wait until so much was sent that nobody got."""
    before = proxy.sent
    wait_until(lambda: proxy.sent >= before + times, what="something sent into the void")


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_line_that_is_silent_for_longer_than_the_lease_costs_a_lease_and_no_attempt(harbor):
    """Also for a handler that waits for an answer itself: the one thread there is comes free."""
    job = harbor.hold(task=ask)
    worker = harbor.worker(lease=SHORT, threads=1)
    harbor.began(1)
    harbor.proxy.silence()
    worker.line("is lost: it could not be renewed in time")
    harbor.proxy.mend()
    harbor.began(2)
    harbor.let_go()
    done(job, executions=2, losses=1)
    done(*harbor.mark())
    everyone_is_back(worker)
    assert_lives(worker)
    assert_nothing_is_left()


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_statement_that_a_stopped_server_does_late_counts_once(harbor):
    """The outcome is sent twice: what a stopped server had received it does when it goes on."""
    job = harbor.hold("first")
    worker = harbor.worker()
    done(*harbor.mark())
    harbor.began(2)
    with frozen(harbor.server):
        harbor.let_go("first")
        worker.line(f"settle: .*{CUT}")
    done(job, *harbor.mark())
    assert harbor.runs() == 3
    everyone_is_back(worker)
    assert_lives(worker)
    assert_nothing_is_left()


# -- how it waits --------------------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.parametrize("how", ["down", "read-only"])
def test_a_worker_whose_database_is_away_asks_seldom(harbor, how):
    jobs = [harbor.hold() for _ in range(4)]
    worker = harbor.worker("--poll", "0.01")
    harbor.began(4)
    with read_only(harbor.server) if how == "read-only" else down(harbor.server):
        harbor.let_go()
        away(worker, "settle")
        away(worker, "reserve")
        proxy, began = harbor.proxy, time.monotonic()
        before = proxy.accepted + proxy.sent
        wait_until(lambda: time.monotonic() > began + 4, what="four seconds")
        asked = proxy.accepted + proxy.sent - before
        assert 0 < asked < MOST_PER_SECOND * (time.monotonic() - began)
        assert not {n for n in told(worker, AWAY).values() if n > 1}
    done(*jobs)
    everyone_is_back(worker)
    assert_lives(worker)
    assert_nothing_is_left()


# -- SQLite --------------------------------------------------------------------------------------


@pytest.mark.sqlite
def test_an_outcome_waits_for_a_file_that_another_process_keeps_locked(processes, files):
    said, go = files
    job = hold.enqueue(str(said), str(go))
    database = connection.settings_dict["NAME"]
    worker = processes.start("--lease", LONG, DATABASE_URL=f"sqlite:///{database}?timeout=1")
    wait_until(lambda: pids_in(said), what="the job")
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        go.touch()
        away(worker, "settle")
        other.execute("ROLLBACK")
    done(job)
    assert len(pids_in(said)) == 1
    everyone_is_back(worker)
    assert re.search("settle: .*database is locked", worker.output)
    assert_lives(worker)
    assert_nothing_is_left()
