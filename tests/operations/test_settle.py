"""One outcome that the database will not have, among others that it will."""

import contextlib
import sqlite3
from dataclasses import replace

import pytest
from django.db import OperationalError, connection

from taskharbor_django.exceptions import NotSettled
from taskharbor_django.lifecycle import DeadReason, FailureCategory, OutcomeKind
from taskharbor_django.models import Attempt, DeadLetter, Job
from taskharbor_django.operations import decide
from taskharbor_django.operations.settle import settle
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.values import FailureUpdate
from tests.testapp.tasks import add

from . import LEASE

pytestmark = pytest.mark.django_db(transaction=True)

TOO_LONG = 300_000


@pytest.fixture
def outcomes():
    """The acks of five jobs that are held."""
    add.enqueue_many((number,) for number in range(5))
    driver = driver_for("default")
    held = driver.reserve("default", now=driver.now(), lease_for=LEASE, limit=5)
    return [decide.outcome(OutcomeKind.ACK, each) for each in held]


@contextlib.contextmanager
def small_values():
    """Let SQLite, whose columns have no length, refuse what is too long."""
    connection.ensure_connection()
    raw, kind = connection.connection, sqlite3.SQLITE_LIMIT_LENGTH
    before = raw.setlimit(kind, TOO_LONG - 1)
    yield
    raw.setlimit(kind, before)


@pytest.fixture
def unstorable():
    """Make an outcome that this database refuses."""
    if connection.vendor == "sqlite":
        with small_values():
            yield lambda ack: replace(ack, result=bytes(TOO_LONG))
    else:
        yield lambda ack: failed(ack, code="x" * TOO_LONG)


def failed(ack, **facts):
    update = FailureUpdate(**{"attempts": 1, "last_error": "no", **facts})
    return replace(ack, kind=OutcomeKind.RETRY, update=update)


def refused(outcomes):
    """Settle them; what was applied before the batch was divided is told as a repeat."""
    driver = driver_for("default")
    rejections = settle(driver, outcomes, now=driver.now())
    return [rejection for rejection in rejections if not rejection.repeated]


def states(outcomes):
    jobs = dict(Job.objects.values_list("pk", "state"))
    return [jobs[outcome.job_id] for outcome in outcomes]


@pytest.mark.parametrize("place", [0, 3, 4])
def test_a_refused_outcome_becomes_a_plain_failure_and_the_others_are_settled(
    outcomes, unstorable, place
):
    bad = outcomes[place]
    outcomes[place] = unstorable(bad)
    assert refused(outcomes) == []
    assert states(outcomes) == ["dead" if it.job_id == bad.job_id else "done" for it in outcomes]
    letter = DeadLetter.objects.get()
    assert (letter.job_id, letter.reason) == (bad.job_id, DeadReason.PERMANENT)
    assert (letter.category, letter.code) == (FailureCategory.SYSTEM, "outcome")
    assert letter.error.startswith("The database refused to store the outcome of this job")
    assert Attempt.objects.get().job_id == bad.job_id


def refused_in_the_end(outcomes):
    """Send again, as a worker does: an answer may come too late for a line that is cut."""
    for _ in range(20):
        with contextlib.suppress(OperationalError):
            return refused(outcomes)
        connection.close()
    return refused(outcomes)


@pytest.mark.mariadb
def test_a_result_larger_than_a_packet_is_refused_for_its_data(outcomes):
    """MariaDB closes the connection in answer; the others are settled by another one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (limit,) = cursor.fetchone()
    outcomes[3] = replace(outcomes[3], result=b"x" * limit)
    assert refused_in_the_end(outcomes) == []
    assert states(outcomes) == ["done", "done", "done", "dead", "done"]


@pytest.mark.parametrize("place", [0, 3, 4])
def test_what_is_refused_even_then_waits_alone(outcomes, caplog, place):
    """A count below zero is taken over by the plain failure: nothing of it can be stored."""
    outcomes[place] = bad = failed(outcomes[place], attempts=-1)
    (rejection,) = refused(outcomes)
    assert (rejection.outcome.job_id, type(rejection.error)) == (bad.job_id, NotSettled)
    assert states(outcomes) == ["inflight" if it is bad else "done" for it in outcomes]
    (record,) = caplog.records
    assert record.job_id == str(bad.job_id)
    # What a database says of a row that it refuses shows the whole of it, the payload too.
    assert "IntegrityError" in record.getMessage()
    assert record.exc_info is None


def test_a_database_that_goes_away_meanwhile_is_no_fault_of_the_outcome(outcomes, monkeypatch):
    """It is raised, and the same batch comes again."""
    driver = driver_for("default")
    settle_all = driver.settle

    def away_for_the_plain_one(some, *, now):
        if some[0].kind == OutcomeKind.FAIL:
            raise OperationalError("the server closed the connection")
        return settle_all(some, now=now)

    monkeypatch.setattr(driver, "settle", away_for_the_plain_one)
    sent = [failed(outcomes[0], attempts=-1)]
    with pytest.raises(OperationalError):
        settle(driver, sent, now=driver.now())
    assert states(sent) == ["inflight"]
