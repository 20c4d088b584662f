"""
Refusals that are only bad luck (deadlock, serialisation, lock timeout, a busy SQLite): the whole
verb again when the driver opened the transaction, the caller's error when the caller did.
"""

import itertools
import threading
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)

from taskharbor_django.drivers import DatabaseDriver, JobRecord, transient
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import IdempotencyKey, Job, Lease

from .drivers import END, FORMS, acks, everything, hold, job, outcome, put, take
from .raw import LEASE, NOW
from .sessions import PATIENCE, execute

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(
    params=[pytest.param("set-based", marks=pytest.mark.postgresql), pytest.param("portable")]
)
def driver(request, transactional_db, monkeypatch):
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0)
    connection.ensure_connection()  # statements of connecting are nobody's verb
    return FORMS[request.param]()


def bad_luck():
    """What this database says when it undoes a transaction because of who else was at work."""
    if connection.vendor == "postgresql":
        from psycopg import errors

        return [errors.DeadlockDetected(), errors.SerializationFailure(), errors.LockNotAvailable()]
    if connection.vendor == "mysql":
        from MySQLdb import OperationalError as MySQLError

        return [MySQLError(1213, "Deadlock found"), MySQLError(1205, "Lock wait timeout exceeded")]
    from sqlite3 import OperationalError as SQLiteError

    return [SQLiteError("database is locked"), SQLiteError("database table is locked: taskharbor")]


class Unlucky:
    """Refuse the statements whose numbers are named; count all of them."""

    def __init__(self, *numbers, cause=None):
        self.numbers = numbers
        self.cause = cause or bad_luck()[0]
        self.seen = 0

    def __call__(self, run, sql, parameters, many, context):
        if "SAVEPOINT" in sql:
            return run(sql, parameters, many, context)
        self.seen += 1
        if self.seen in self.numbers:
            raise OperationalError(*self.cause.args) from self.cause
        return run(sql, parameters, many, context)


def forget():
    """Begin the next round with an empty store."""
    for model in (Job, Lease, IdempotencyKey):
        model.objects.all().delete()


def job_ids(held):
    return [each.job.id for each in held]


# verb -> (what it finds, what it does: true when it was done)
VERBS = {
    "enqueue": (
        lambda _: JobRecord(task="t", created_at=NOW),
        lambda driver, record: driver.enqueue(record) == record.id,
    ),
    "enqueue with a key": (
        lambda _: JobRecord(task="t", created_at=NOW, idempotency_key="k"),
        lambda driver, record: driver.enqueue(record) == record.id,
    ),
    "enqueue_many": (
        lambda _: [JobRecord(task="t", created_at=NOW) for _ in range(3)],
        lambda driver, records: driver.enqueue_many(records) == [each.id for each in records],
    ),
    "reserve": (
        lambda driver: put(driver, 3),
        lambda driver, ids: job_ids(take(driver, limit=3)) == ids,
    ),
    "reserve what is due": (
        lambda driver: put(driver, 3, run_at=END),
        lambda driver, ids: job_ids(take(driver, limit=3, now=END)) == ids,
    ),
    "reserve what has expired": (
        lambda driver: hold(driver, 3),
        lambda driver, held: job_ids(take(driver, limit=3, now=END)) == job_ids(held),
    ),
    "held": (
        lambda driver: hold(driver, 3),
        lambda driver, held: driver.held(held[0].lease.token, now=NOW) == held,
    ),
    "expire_leases": (
        lambda driver: put(driver) and take(driver, worker="w"),
        lambda driver, _: driver.expire_leases("w", now=NOW) == 1,
    ),
    "extend_leases": (
        lambda driver: hold(driver, 2)[0].lease.token,
        lambda driver, token: (
            list(driver.extend_leases([token], now=NOW, lease_for=LEASE)) == [token]
        ),
    ),
    "extend_lease": (
        lambda driver: hold(driver)[0],
        lambda driver, held: (
            driver.extend_lease(held.job.id, held.lease.token, now=NOW, lease_for=LEASE).version
            == 1
        ),
    ),
    "settle acks": (
        lambda driver: acks(hold(driver, 3)),
        lambda driver, outcomes: driver.settle(outcomes, now=NOW) == [],
    ),
    "settle failures": (
        lambda driver: [outcome(OutcomeKind.FAIL, each) for each in hold(driver, 3)],
        lambda driver, outcomes: driver.settle(outcomes, now=NOW) == [],
    ),
    "settle what is stale": (
        lambda driver: [outcome(OutcomeKind.ACK, each, token=uuid4()) for each in hold(driver)],
        lambda driver, outcomes: len(driver.settle(outcomes, now=NOW)) == 1,
    ),
    "sweep": (
        lambda driver: acks(hold(driver, 3)),
        lambda driver, outcomes: (
            driver.settle(outcomes, now=NOW) == [] and driver.sweep(now=NOW) == 0
        ),
    ),
}

EACH_VERB = pytest.mark.parametrize("verb", VERBS)


class TestOutsideATransaction:
    @EACH_VERB
    def test_bad_luck_at_any_statement_is_tried_again(self, driver, verb):
        prepare, act = VERBS[verb]
        for number in itertools.count(1):
            found = prepare(driver)
            unlucky = Unlucky(number)
            with connection.execute_wrapper(unlucky):
                assert act(driver, found), f"refused at statement {number}"
            if unlucky.seen < number:
                break
            forget()
        assert number > 1

    @EACH_VERB
    def test_every_kind_of_bad_luck_is_known(self, driver, verb):
        prepare, act = VERBS[verb]
        for cause in bad_luck():
            found = prepare(driver)
            with connection.execute_wrapper(Unlucky(1, cause=cause)):
                assert act(driver, found)
            forget()

    @EACH_VERB
    def test_luck_that_stays_bad_is_an_error_in_the_end(self, driver, verb):
        prepare, act = VERBS[verb]
        found = prepare(driver)
        before = everything()
        unlucky = Unlucky(*range(1, 100))
        with connection.execute_wrapper(unlucky), pytest.raises(OperationalError):
            act(driver, found)
        assert unlucky.seen == transient.TRIES
        assert everything() == before

    @EACH_VERB
    def test_another_error_is_not_tried_again(self, driver, verb):
        prepare, act = VERBS[verb]
        found = prepare(driver)
        unlucky = Unlucky(*range(1, 100), cause=DatabaseError("disk full"))
        with connection.execute_wrapper(unlucky), pytest.raises(OperationalError):
            act(driver, found)
        assert unlucky.seen == 1


class TestInsideATransaction:
    @EACH_VERB
    def test_the_error_is_the_callers_at_once(self, driver, verb):
        prepare, act = VERBS[verb]
        found = prepare(driver)
        before = everything()
        unlucky = Unlucky(*range(1, 100))
        refused = pytest.raises(OperationalError)
        with refused, transaction.atomic(), connection.execute_wrapper(unlucky):
            act(driver, found)
        assert unlucky.seen == 1
        assert everything() == before

    @EACH_VERB
    def test_a_transaction_opened_by_hand_is_the_callers_too(self, driver, verb):
        prepare, act = VERBS[verb]
        found = prepare(driver)
        unlucky = Unlucky(*range(1, 100))
        transaction.set_autocommit(False)
        try:
            with connection.execute_wrapper(unlucky), pytest.raises(OperationalError):
                act(driver, found)
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert unlucky.seen == 1


class TestTellingOfAnEnd:
    """Taking back a job that dies of it: what the app does about its followers may be refused."""

    def refusing(self, driver, cause):
        def refuse(_ids):
            raise OperationalError(*cause.args) from cause

        (held,) = hold(driver)
        Job.objects.update(has_dependents=True)
        return type(driver)(on_end=refuse), held

    def take_back(self, driver):
        assert take(driver, now=END, max_lease_losses=1) == []

    def test_by_bad_luck_it_is_left_for_the_next_turn(self, driver):
        unlucky, held = self.refusing(driver, bad_luck()[0])
        self.take_back(unlucky)
        assert job(held).state == "inflight"
        self.take_back(driver)
        assert job(held).state == "dead"

    def test_another_refusal_is_an_error(self, driver):
        broken, held = self.refusing(driver, Exception("disk full"))
        with pytest.raises(OperationalError, match="disk full"):
            self.take_back(broken)
        assert job(held).state == "inflight"

    def test_in_a_transaction_bad_luck_is_the_callers(self, driver):
        unlucky, _ = self.refusing(driver, bad_luck()[0])
        with pytest.raises(OperationalError), transaction.atomic():
            self.take_back(unlucky)


class TestForReal:
    """The same without pretending, where it can be had."""

    @pytest.mark.sqlite
    def test_a_busy_sqlite(self, session):
        driver = DatabaseDriver()
        ids = put(driver)
        writer = session()
        locked, let_go = threading.Event(), threading.Event()

        def write():
            with transaction.atomic():
                locked.set()
                assert let_go.wait(PATIENCE)

        execute("PRAGMA busy_timeout = 0")
        writing = writer.start(write)
        assert locked.wait(PATIENCE)
        refusals = []

        def watch(run, sql, parameters, many, context):
            try:
                return run(sql, parameters, many, context)
            except OperationalError as error:
                refusals.append(str(error))
                let_go.set()
                writing.result(PATIENCE)
                raise

        try:
            with connection.execute_wrapper(watch):
                assert job_ids(take(driver)) == ids
        finally:
            execute("PRAGMA busy_timeout = 30000")
        assert refusals == ["database is locked"]

    @pytest.mark.postgresql
    def test_a_deadlock_between_two_renewals_and_a_stranger(self, driver, session):
        # A stranger who locks lease rows in the other order is none of ours; the beat gets through.
        first, second = sorted((hold(driver)[0], hold(driver)[0]), key=lambda h: h.lease.token)
        tokens = [first.lease.token, second.lease.token]
        beat, stranger = session(), session()
        lock = "SELECT 1 FROM taskharbor_lease WHERE token = %s FOR UPDATE"
        locked, go_on = threading.Event(), threading.Event()

        def strange():
            with transaction.atomic():
                execute("SET LOCAL deadlock_timeout = '10s'")
                execute(lock, [tokens[1]])
                locked.set()
                assert go_on.wait(PATIENCE)
                execute(lock, [tokens[0]])

        def renew():
            return driver.extend_leases(tokens, now=NOW, lease_for=LEASE)

        meeting = stranger.start(strange)
        assert locked.wait(PATIENCE)
        beating = beat.start(renew)
        beat.until_waiting(beating)
        go_on.set()
        meeting.result(PATIENCE)
        assert set(beating.result(PATIENCE)) == set(tokens)


class TestWhatIsTransient:
    @pytest.mark.parametrize(
        ("cause", "expected"),
        [
            (SimpleNamespace(sqlstate="40001", args=()), True),
            (SimpleNamespace(sqlstate="40P01", args=()), True),
            (SimpleNamespace(sqlstate="55P03", args=()), True),
            (SimpleNamespace(sqlstate="57014", args=()), False),
            (SimpleNamespace(sqlstate="23505", args=()), False),
            (SimpleNamespace(args=(1213, "Deadlock")), True),
            (SimpleNamespace(args=(1205, "Lock wait timeout")), True),
            (SimpleNamespace(args=(1062, "Duplicate entry")), False),
            (SimpleNamespace(args=("database is locked",)), True),
            (SimpleNamespace(args=("database disk image is malformed",)), False),
            (SimpleNamespace(args=()), False),
        ],
    )
    def test_it_is_told_by_code_and_text(self, cause, expected):
        error = SimpleNamespace(__cause__=cause, args=())
        assert transient.is_transient(error) is expected


class Refusal(Exception):
    def __init__(self, sqlstate):
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def caused(error, sqlstate):
    error.__cause__ = Refusal(sqlstate)
    return error


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (caused(DataError("too long"), "22001"), True),
        (caused(IntegrityError("check"), "23514"), True),
        (caused(OperationalError("too many arguments"), "54023"), True),
        (caused(InternalError("invalid memory alloc request size 1073741824"), "XX000"), True),
        (caused(InternalError("cache lookup failed"), "XX000"), False),
        (caused(InternalError("read-only transaction"), "25006"), False),
        (caused(InternalError("idle-in-transaction timeout"), "25P03"), False),
        (caused(OperationalError("terminating connection"), "57P01"), False),
        (caused(ProgrammingError("no such table"), "42P01"), False),
        (OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes"), True),
        (OperationalError(1366, "Incorrect string value"), True),
        (DataError(1406, "Data too long for column"), True),
        (OperationalError(1264, "Out of range value for column"), True),
        (OperationalError(2006, "Server has gone away"), False),
        (OperationalError(1205, "Lock wait timeout exceeded"), False),
        (OperationalError(), False),
        (RuntimeError(["not", "hashable"]), False),
        (DataError("string or blob too big"), True),
        (IntegrityError("CHECK constraint failed"), True),
        (OperationalError("attempt to write a readonly database"), False),
        (ValueError("embedded null byte"), True),
        (RuntimeError("anything else"), False),
    ],
)
def test_only_values_that_will_never_do_are_bad_data(error, bad):
    """What an outcome is refused for otherwise passes, and its job must not be buried for it."""
    assert transient.is_bad_data(error) is bad


@pytest.mark.parametrize(
    ("error", "of_server"),
    [
        (caused(OperationalError(), "53100"), True),  # disk full
        (caused(OperationalError(), "57P03"), True),  # starting
        (caused(InternalError(), "25006"), True),  # read-only
        (caused(OperationalError(), "53200"), False),  # it may be the batch that is large
        (caused(OperationalError(), "57014"), False),  # cancelled: it took too long
        (OperationalError(1021, "Disk full"), True),
        (OperationalError(1203, "User has too many active connections"), True),
        (OperationalError(1226, "User has exceeded the resource"), True),
        (OperationalError(1205, "Lock wait timeout exceeded"), False),
        (OperationalError("database or disk is full"), True),
        (OperationalError("attempt to write a readonly database"), True),
        (OperationalError(), False),
        (RuntimeError(["not", "hashable"]), False),
    ],
)
def test_what_a_server_refuses_whatever_the_values(error, of_server):
    assert transient.is_of_server(error) is of_server
