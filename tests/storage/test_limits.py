"""
How long a session may hold rows and wait for them: in transactions of several statements only, and
nothing of it stays behind on the connection.
"""

import contextlib

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from taskharbor_django import failpoints
from taskharbor_django.drivers import DatabaseDriver, postgresql, transient
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Job
from taskharbor_django.operations import cancel

from .drivers import END, acks, errors, hold, job, outcome, put, reclaim, take
from .raw import LEASE, NOW
from .sessions import execute, until

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

NAMES = ("lock_timeout", "idle_in_transaction_session_timeout")
NONE = ("0", "0")
OURS = (postgresql.LOCK_TIMEOUT, postgresql.IDLE_TIMEOUT)


def limits():
    return tuple(execute(f"SHOW {name}")[0][0] for name in NAMES)


@contextlib.contextmanager
def seen_at(name):
    """Note which limits the session has when it passes a failpoint."""
    seen = []
    with failpoints.armed(name, lambda: seen.append(limits())):
        yield seen


def retries(held):
    return [outcome(OutcomeKind.RETRY, each) for each in held]


LONGER = {
    "settle.locked": lambda driver: driver.settle(retries(hold(driver)), now=NOW),
    "settle.moved": lambda driver: driver.settle(retries(hold(driver)), now=NOW),
    "reclaim.leases_locked": lambda driver: hold(driver) and reclaim(driver),
    "reclaim.jobs_moved": lambda driver: hold(driver) and reclaim(driver),
    "sweep.jobs_locked": lambda driver: driver.sweep(now=NOW),
    "cancel.locked": lambda driver: cancel(put(driver)),
}


class TestLongerTransactions:
    @pytest.mark.parametrize("name", LONGER)
    def test_they_have_limits_which_end_with_them(self, driver, name):
        assert limits() == NONE
        with seen_at(name) as seen:
            LONGER[name](driver)
        assert seen == [OURS]
        assert limits() == NONE

    @pytest.mark.parametrize("name", LONGER)
    def test_they_leave_none_behind_when_they_fail(self, driver, name):
        def crash():
            raise failpoints.FailpointReached

        with failpoints.armed(name, crash), pytest.raises(failpoints.FailpointReached):
            LONGER[name](driver)
        assert limits() == NONE

    @pytest.mark.parametrize("name", LONGER)
    def test_in_the_callers_transaction_the_callers_limits_stand(self, driver, name):
        for own in (("123ms", "456ms"), NONE):
            with transaction.atomic(), seen_at(name) as seen:
                for setting, value in zip(NAMES, own, strict=True):
                    execute(f"SET LOCAL {setting} = '{value}'")
                LONGER[name](driver)
                assert limits() == own
            assert seen == [own]

    @pytest.mark.parametrize("name", LONGER)
    def test_in_a_transaction_opened_by_hand_too(self, driver, name):
        transaction.set_autocommit(False)
        try:
            with seen_at(name) as seen:
                LONGER[name](driver)
            assert limits() == NONE
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert seen == [NONE]

    def test_a_settle_for_an_atomic_task_sets_them_in_the_callers_transaction(self, driver):
        (held,) = hold(driver)
        with transaction.atomic():
            assert driver.settle_waiting(outcome(OutcomeKind.ACK, held), now=NOW) == []
            assert limits() == OURS
        assert limits() == NONE
        assert job(held).state == "done"


class TestSingleStatements:
    def test_they_do_without(self, driver):
        put(driver, 3)
        put(driver, 2, run_at=END)
        said = []

        def note(run, sql, parameters, many, context):
            said.append(sql)
            return run(sql, parameters, many, context)

        with connection.execute_wrapper(note):
            put(driver)
            held = take(driver, limit=3)
            take(driver, limit=1, queue="empty", now=END - LEASE)
            driver.extend_leases([held[0].lease.token], now=NOW, lease_for=2 * LEASE)
            assert driver.settle(acks(held), now=NOW) == []
            assert len(take(driver, limit=3, now=END)) == 3
        assert not [sql for sql in said if "set_config" in sql]


class TestForReal:
    def test_a_stopped_process_loses_its_rows(self, driver, session, monkeypatch):
        usual = postgresql.IDLE_TIMEOUT
        monkeypatch.setattr(postgresql, "IDLE_TIMEOUT", "500ms")
        (held,) = hold(driver)
        stopped = session()
        with stopped.stopped_at(
            "settle.moved", lambda: driver.settle(retries([held]), now=NOW)
        ) as it:
            # Only that one is stopped: who works on may be slow between two statements.
            monkeypatch.setattr(postgresql, "IDLE_TIMEOUT", usual)
            assert errors(driver.settle(acks([held]), now=NOW)) == ["JobLocked"]
            until(lambda: is_gone(stopped.backend))
            assert driver.settle(acks([held]), now=NOW) == []
        with pytest.raises(DatabaseError):
            it.result()
        assert (job(held).state, job(held).attempts) == ("done", 0)

    def test_who_waits_for_a_row_gives_up(self, driver, session, monkeypatch):
        monkeypatch.setattr(postgresql, "LOCK_TIMEOUT", "50ms")
        ids = put(driver)
        with transaction.atomic():
            list(Job.objects.filter(pk__in=ids).select_for_update())
            with pytest.raises(OperationalError) as refused:
                session().run(cancel, ids)
        assert transient.is_transient(refused.value)
        assert job(ids[0]).state == "ready"

    def test_an_atomic_task_gives_up_its_settle(self, session, monkeypatch):
        monkeypatch.setattr(postgresql, "LOCK_TIMEOUT", "50ms")
        driver = DatabaseDriver()
        (held,) = hold(driver)

        def run():
            with transaction.atomic():
                rejected = driver.settle_waiting(outcome(OutcomeKind.ACK, held), now=NOW)
                transaction.set_rollback(True)
            return rejected

        with transaction.atomic():
            list(Job.objects.filter(pk=held.job.id).select_for_update())
            assert errors(session().run(run)) == ["JobLocked"]
        assert job(held).state == "inflight"


def is_gone(backend):
    return execute("SELECT 1 FROM pg_stat_activity WHERE application_name = %s", [backend]) == []
