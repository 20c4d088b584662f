"""
What every verb of the driver stands on: the write lock at the beginning of a transaction, and what
becomes of errors that are nobody's race.
"""

from types import SimpleNamespace

import pytest
from django.db import IntegrityError, OperationalError

from taskharbor_django.drivers import DatabaseDriver, JobRecord
from taskharbor_django.exceptions import JobLocked, LeaseExpired
from taskharbor_django.lifecycle import JobState, OutcomeKind
from taskharbor_django.models import Job
from tests.operations import Statements

from .drivers import FORMS, hold, outcome, put
from .raw import LEASE, NOW

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=FORMS)
def driver(request):
    return FORMS[request.param]("default")


@pytest.mark.sqlite
@pytest.mark.parametrize(("mode", "first"), [(None, "DELETE"), ("IMMEDIATE", "SELECT")])
def test_a_transaction_begins_with_the_write_lock(driver, monkeypatch, mode, first):
    """Without one, SQLite refuses the first write after another has written, and does not wait."""
    put(driver)
    monkeypatch.setattr(driver.connection, "transaction_mode", mode)
    with Statements() as sent, driver.transaction():
        Job.objects.count()
    assert next(verb for verb in sent.verbs if verb not in ("BEGIN", "COMMIT")) == first


def test_what_the_database_refuses_for_another_reason_is_raised(driver, monkeypatch):
    def refuse(_records):
        raise IntegrityError("some other constraint")

    monkeypatch.setattr(driver, "_store_new", refuse)
    with pytest.raises(IntegrityError, match="some other"):
        put(driver, 2)


def test_so_it_is_of_a_single_job(driver):
    def refuse(execute, sql, params, many, context):
        if sql.startswith("INSERT"):
            raise IntegrityError("some other constraint")
        return execute(sql, params, many, context)

    refused = pytest.raises(IntegrityError, match="some other")
    with driver.connection.execute_wrapper(refuse), refused:
        driver.enqueue(JobRecord(task="t"))


def test_a_lease_that_goes_between_the_look_and_the_renewal_is_expired(driver, monkeypatch):
    (held,) = hold(driver)
    monkeypatch.setattr(driver, "_renew", lambda *_: {})
    with pytest.raises(LeaseExpired):
        driver.extend_lease(held.job.id, held.lease.token, now=NOW, lease_for=LEASE)


def broken(*_):
    raise OperationalError("disk I/O error")


def busy(*_):
    error = OperationalError("database is locked")
    error.__cause__ = Busy()
    raise error


class Busy(Exception):
    sqlstate = "55P03"
    sqlite_errorname = "SQLITE_BUSY"
    args = (1205, "Lock wait timeout exceeded")


def test_an_atomic_settle_tells_a_lock_from_a_fault(driver, monkeypatch):
    (held,) = hold(driver)
    ack = outcome(OutcomeKind.ACK, held)
    monkeypatch.setattr(driver, "waiting_for", broken)
    with pytest.raises(OperationalError, match="disk"):
        driver.settle_waiting(ack, now=NOW)
    monkeypatch.setattr(driver, "waiting_for", busy)
    (rejection,) = driver.settle_waiting(ack, now=NOW)
    assert isinstance(rejection.error, JobLocked)


@pytest.mark.parametrize("counts", [(1, 1), (0, 2), (0, 0)])
def test_jobs_with_dependencies_are_stored_blocked(driver, counts):
    records = [JobRecord(task="t", created_at=NOW, dependencies_left=left) for left in counts]
    driver.enqueue_many(records)
    states = {job.pk: job.state for job in Job.objects.all()}
    for record in records:
        wanted = JobState.BLOCKED if record.dependencies_left else JobState.READY
        assert states[record.id] == wanted


@pytest.mark.parametrize("mariadb", [False, True])
def test_only_mariadb_is_told_per_statement_how_long_to_wait(monkeypatch, mariadb):
    """MySQL has no SET STATEMENT."""
    told = []
    fake = SimpleNamespace(vendor="mysql", mysql_is_mariadb=mariadb, execute_wrapper=told.append)
    driver = DatabaseDriver()
    monkeypatch.setattr(DatabaseDriver, "connection", fake)
    driver.short_waits()
    assert len(told) == mariadb
