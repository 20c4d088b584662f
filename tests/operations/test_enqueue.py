"""Enqueue: one INSERT in the caller's transaction, by the server's clock, or a refusal."""

import itertools
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, SimpleNamespace
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from freezegun import freeze_time

from taskharbor_django import JobHandle, Priority
from taskharbor_django.context import current
from taskharbor_django.drivers import DatabaseDriver, JobRecord
from taskharbor_django.exceptions import (
    DuplicateJob,
    InvalidJob,
    InvalidPayload,
    PayloadTooLarge,
)
from taskharbor_django.models import IdempotencyKey, Job
from taskharbor_django.payload import decode_call, encode_call
from taskharbor_django.tasks import task
from tests.factories import LedgerFactory
from tests.testapp.models import Ledger
from tests.testapp.tasks import ODD_NAME, add, echo, odd, remember, report
from tests.unit.test_values import TAKEN

from . import Statements, Undo, server_now, undone

HOUR, DAY, TICK = timedelta(hours=1), timedelta(days=1), timedelta(microseconds=1)


def arguments(job):
    return decode_call(bytes(job.payload))


# -- what is stored -----------------------------------------------------------------------------


def test_an_enqueued_call_is_stored_as_a_ready_job_with_the_defaults_of_the_settings(db):
    job = add.enqueue(2, right=3).refresh()
    assert (job.task, job.queue, job.state) == ("tests.testapp.tasks.add", "default", "ready")
    assert arguments(job) == ((2,), {"right": 3})
    assert (job.priority, job.attempts, job.max_attempts, job.executions) == (0, 0, 3, 0)
    assert (job.timeout, job.run_at) == (timedelta(minutes=30), None)
    assert job.created_at == job.updated_at == job.available_at
    assert job.expires_at == job.created_at + 7 * DAY
    assert (job.lease, job.lease_version, job.lease_losses) == (None, 0, 0)
    assert (job.tags, job.correlation_id, job.idempotency_key) == (None, None, None)
    assert (job.callback_url, job.parent_id, job.workflow_id) == ("", None, None)


def test_a_handle_has_the_id_that_the_system_made(db):
    handle = add.enqueue(1)
    assert isinstance(handle, JobHandle)
    assert isinstance(handle.id, UUID)
    assert (handle.id.version, handle.created, handle.using) == (4, True, "default")
    assert Job.objects.get().pk == handle.id


def test_each_call_without_a_key_is_a_job_of_its_own(db):
    assert len({add.enqueue(1).id for _ in range(5)}) == Job.objects.count() == 5


OWN = {"id", "payload", "seq", "created_at", "updated_at", "available_at", "expires_at"}


def test_later_calls_of_a_task_are_stored_as_its_first_one(db):
    """What is the same for all of them is made once."""
    copy = add.using(queue="mail", priority=Priority.LOW, delay=60)
    first, *later = [copy.enqueue(number).refresh() for number in range(3)]
    shared = {field.attname for field in Job._meta.concrete_fields} - OWN - {"run_at"}
    for number, job in enumerate(later, start=1):
        assert decode_call(job.payload) == ((number,), {})
        assert (job.id, job.seq) != (first.id, first.seq)
        assert job.run_at - job.created_at == timedelta(seconds=60)
        assert [getattr(job, name) == getattr(first, name) for name in shared] == [True] * len(
            shared
        )


def test_settings_that_change_count_from_the_next_call_on(db):
    assert add.enqueue(1).refresh().max_attempts == 3
    with override_settings(TASKHARBOR={"MAX_ATTEMPTS": 7}):
        assert add.enqueue(1).refresh().max_attempts == 7
    assert add.enqueue(1).refresh().max_attempts == 3


def test_the_options_of_a_task_count_before_the_settings(db):
    with override_settings(TASKHARBOR={"QUEUE": "elsewhere", "MAX_ATTEMPTS": 9}):
        of_task, of_settings = report.enqueue("May").refresh(), add.enqueue(1).refresh()
    assert (of_task.queue, of_task.priority, of_task.max_attempts) == ("reports", -50, 5)
    assert of_task.timeout == timedelta(minutes=1)
    assert of_task.expires_at == of_task.created_at + HOUR
    assert (of_settings.queue, of_settings.max_attempts) == ("elsewhere", 9)


def test_what_a_call_asks_for_counts_before_the_options_of_its_task(db, settings):
    settings.TASKHARBOR = {"CALLBACK_HOSTS": ["example.org"], "CALLBACK_SECRET": "s"}
    asked = report.using(
        queue="urgent",
        priority=Priority.CRITICAL,
        max_attempts=1,
        timeout=5,
        lifetime=60,
        tags={"tenant": "acme"},
        correlation_id="order-7",
        callback_url="https://example.org/done",
    )
    job = asked.enqueue("May").refresh()
    assert (job.queue, job.priority, job.max_attempts) == ("urgent", -100, 1)
    assert job.timeout == timedelta(seconds=5)
    assert job.expires_at == job.created_at + timedelta(minutes=1)
    assert (job.tags, job.correlation_id) == ({"tenant": "acme"}, "order-7")
    assert job.callback_url == "https://example.org/done"


def test_defaults_come_from_the_settings(db):
    ours = {
        "QUEUE": "own",
        "MAX_ATTEMPTS": 8,
        "TIMEOUT": 90,
        "LIFETIME": 3600,
        "IDEMPOTENCY_TTL": 60,
    }
    with override_settings(TASKHARBOR=ours):
        job = add.using(idempotency_key="k").enqueue(1).refresh()
    assert (job.queue, job.max_attempts) == ("own", 8)
    assert job.timeout == timedelta(seconds=90)
    assert job.expires_at == job.created_at + HOUR


@pytest.mark.parametrize("priority", [*Priority, -99, 7, 100], ids=str)
def test_every_rank_is_stored_as_it_was_asked_for(db, priority):
    assert add.using(priority=priority).enqueue(1).refresh().priority == int(priority)


def test_a_task_without_limits_stores_none(db):
    with override_settings(TASKHARBOR={"MAX_TIMEOUT": None}):
        job = add.using(timeout=None, lifetime=None).enqueue(1).refresh()
    assert (job.timeout, job.expires_at) == (None, None)


def test_an_empty_correlation_id_is_none(db):
    """NULL keeps the job out of the partial index."""
    assert add.using(correlation_id="").enqueue(1).refresh().correlation_id is None


@pytest.fixture
def running():
    """Stand where a handler stands: inside a job."""
    context = SimpleNamespace(job_id=uuid4(), correlation_id="order-7")
    token = current.set(context)
    yield context
    current.reset(token)


def test_inside_a_job_the_correlation_id_is_inherited_and_the_parent_recorded(db, running):
    plain, empty = add.enqueue(1), add.using(correlation_id="").enqueue(1)
    own = add.using(correlation_id="own").enqueue(1)
    batch = []
    add.enqueue_many([(1,)], on_batch=batch.extend)
    stored = Job.objects.in_bulk([plain.id, empty.id, own.id, *batch]).values()
    assert {job.parent_id for job in stored} == {running.job_id}
    assert sorted(job.correlation_id for job in stored) == ["order-7"] * 3 + ["own"]


def test_outside_a_job_there_is_nothing_to_inherit(db):
    job = add.enqueue(1).refresh()
    assert (job.parent_id, job.correlation_id) == (None, None)


def test_no_callback_is_an_empty_url(db):
    assert add.using(callback_url=None).enqueue(1).refresh().callback_url == ""


def test_tags_may_be_any_map_of_strings(db):
    tags = {"größe": "☕", "it's": '100% "odd"; %s', "": ""}
    assert add.using(tags=MappingProxyType(tags)).enqueue(1).refresh().tags == tags


def test_the_context_of_a_task_is_not_passed_by_the_caller(db):
    assert arguments(remember.enqueue("key").refresh()) == (("key",), {})


def test_arguments_of_every_kind_come_back_equal(db):
    given = (b"\0\xff", datetime(2031, 5, 17, tzinfo=UTC), (1, "two"), UUID(int=7), None, 2**70)
    assert arguments(echo.enqueue(*given, deep={"a": [given]}).refresh()) == (
        given,
        {"deep": {"a": [given]}},
    )


def test_a_name_is_data_also_in_sql(db):
    handle = odd.enqueue()
    assert handle.refresh().task == ODD_NAME
    assert Job.objects.get(task=ODD_NAME).pk == handle.id
    keyed = odd.using(idempotency_key=ODD_NAME, correlation_id=ODD_NAME).enqueue()
    assert odd.using(idempotency_key=ODD_NAME).enqueue().id == keyed.id
    assert keyed.refresh().correlation_id == ODD_NAME
    echo.using(tags={ODD_NAME: ODD_NAME}).enqueue_many([(ODD_NAME,), {"x": ODD_NAME}])
    assert Job.objects.count() == 4


@pytest.mark.parametrize("fields", TAKEN, ids=", ".join)
@pytest.mark.parametrize("verb", ["one", "many"])
def test_the_widest_record_is_stored_as_it_is(db, fields, verb):
    """By both ways in; no number, time or text of it is too much for the database."""
    record, driver = JobRecord(**{"task": "t", **fields}), DatabaseDriver()
    if verb == "one":
        driver.enqueue(record)
    else:
        driver.enqueue_many([record, JobRecord(task="t")])
    job = Job.objects.get(pk=record.id)
    for name in fields.keys() - {"lifetime", "delay", "idempotency_ttl"}:
        assert getattr(job, name) == fields[name]


# -- one statement, in the caller's transaction -------------------------------------------------


def test_one_enqueue_is_one_insert_and_nothing_else(transactional_db, settings):
    settings.TASKHARBOR = {"NOTIFY": False}
    with Statements() as sent:
        add.enqueue(1)
    assert sent.verbs == ["INSERT"]


def test_one_enqueue_is_one_insert_whatever_it_asks_for(transactional_db, settings):
    settings.TASKHARBOR = {"NOTIFY": False}
    asked = add.using(
        run_at=datetime(2031, 5, 17, tzinfo=UTC), tags={"a": "b"}, correlation_id="c", priority=1
    )
    with Statements() as sent:
        asked.enqueue(1)
    assert sent.verbs == ["INSERT"]


def test_inside_a_transaction_one_enqueue_is_one_insert_without_a_savepoint(transactional_db):
    with transaction.atomic(), Statements() as sent:
        add.enqueue(1)
        assert sent.verbs == ["INSERT"]


def test_inside_a_savepoint_one_enqueue_is_one_insert(transactional_db):
    with transaction.atomic(), transaction.atomic(), Statements() as sent:
        add.enqueue(1)
        assert sent.verbs == ["INSERT"]


def test_a_key_costs_its_own_row_and_one_look(transactional_db, settings):
    settings.TASKHARBOR = {"NOTIFY": False}
    with transaction.atomic(), Statements() as sent:
        add.using(idempotency_key="k").enqueue(1)
        assert sent.verbs == ["SAVEPOINT", "INSERT", "SELECT", "INSERT", "RELEASE"]


def test_a_job_commits_with_the_rows_of_its_caller(transactional_db):
    with transaction.atomic():
        LedgerFactory()
        add.enqueue(1)
    assert (Ledger.objects.count(), Job.objects.count()) == (1, 1)


def test_a_job_vanishes_with_the_rows_of_its_caller(transactional_db):
    with undone():
        LedgerFactory()
        add.enqueue(1)
        add.using(idempotency_key="k").enqueue(1)
        add.enqueue_many([(1,), (2,)])
    stored = Ledger.objects.count(), Job.objects.count(), IdempotencyKey.objects.count()
    assert stored == (0, 0, 0)


def test_a_job_vanishes_with_its_savepoint_and_the_others_stay(transactional_db):
    with transaction.atomic():
        before = add.enqueue(1)
        with undone():
            add.enqueue(2)
        after = add.enqueue(3)
    assert set(Job.objects.values_list("pk", flat=True)) == {before.id, after.id}


def test_nobody_sees_a_job_before_its_transaction_commits(race):
    with transaction.atomic():
        add.enqueue(1)
        (seen,) = race(Job.objects.count)
        assert seen == 0
    assert Job.objects.count() == 1


# -- under ATOMIC_REQUESTS ----------------------------------------------------------------------


def view(request, end):
    LedgerFactory()
    add.enqueue(1)
    if end == "crash":
        raise Undo
    return HttpResponse("stored")


urlpatterns = [path("<str:end>/", view)]


@pytest.mark.parametrize(("end", "stored"), [("return", 1), ("crash", 0)])
def test_a_job_lives_and_dies_with_the_request(transactional_db, monkeypatch, end, stored):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF=__name__):
        Client(raise_request_exception=False).get(f"/{end}/")
    assert (Ledger.objects.count(), Job.objects.count()) == (stored, stored)


# -- times are the server's ---------------------------------------------------------------------


def enqueue_one(asked):
    return asked.enqueue(1).refresh()


def enqueue_in_a_batch(asked):
    ids = []
    asked.enqueue_many([(1,), (2,)], on_batch=ids.extend)
    return Job.objects.get(pk=ids[0])


both_ways = pytest.mark.parametrize("store", [enqueue_one, enqueue_in_a_batch])


@both_ways
@pytest.mark.parametrize("skew", [-HOUR, HOUR], ids=["behind", "ahead"])
def test_a_local_clock_that_is_an_hour_off_changes_nothing(db, vendor, store, skew):
    before = server_now()
    with freeze_time(datetime.now(UTC) + skew) as local:
        job = store(add.using(delay=90))
    if vendor == "sqlite":  # without a server, the local clock is its clock
        assert job.created_at == local().replace(tzinfo=UTC)
    else:
        assert before <= job.created_at <= server_now()
    assert job.run_at == job.available_at == job.created_at + timedelta(seconds=90)
    assert job.expires_at == job.run_at + 7 * DAY


@both_ways
def test_the_wall_clock_counts_and_not_the_start_of_the_transaction(transactional_db, store):
    with transaction.atomic():
        first = store(add)
        between = server_now()
        second = store(add.using(delay=1))
    assert first.created_at <= between <= second.created_at
    assert first.created_at < second.created_at
    assert second.run_at == second.created_at + timedelta(seconds=1)


@pytest.mark.sqlite
@both_ways
def test_on_sqlite_the_local_clock_is_taken_to_the_microsecond(db, store):
    moment = datetime(2031, 5, 17, 9, 30, 0, 123_457, tzinfo=UTC)
    with freeze_time(moment):
        job = store(add)
    assert (job.created_at, job.available_at) == (moment, moment)


@both_ways
def test_a_run_at_in_the_past_makes_the_job_ready_now(db, store):
    before = server_now()
    job = store(add.using(run_at=before - 30 * DAY))
    assert (job.state, job.run_at) == ("ready", before - 30 * DAY)
    assert job.available_at == job.created_at >= before
    assert job.expires_at == job.created_at + 7 * DAY


@both_ways
def test_a_run_at_ahead_schedules_the_job(db, store):
    run_at = server_now() + 10 * DAY
    job = store(add.using(run_at=run_at))
    assert (job.state, job.run_at, job.available_at) == ("scheduled", run_at, run_at)


@both_ways
def test_a_job_far_ahead_lives_from_the_day_it_may_run(db, store):
    run_at = server_now() + 10 * DAY
    assert store(add.using(run_at=run_at)).expires_at == run_at + 7 * DAY
    later = store(add.using(delay=10 * DAY, lifetime=HOUR))
    assert later.expires_at == later.created_at + 10 * DAY + HOUR


@both_ways
def test_a_delay_of_nothing_is_ready_at_once(db, store):
    job = store(add.using(delay=0))
    assert (job.state, job.run_at) == ("ready", job.created_at)


@both_ways
def test_the_smallest_delay_schedules(db, store):
    job = store(add.using(delay=TICK))
    assert (job.state, job.run_at) == ("scheduled", job.created_at + TICK)


def test_jobs_of_one_process_stand_in_the_order_of_their_enqueue(db):
    ids = [add.enqueue(number).id for number in range(20)]
    assert list(Job.objects.in_line().values_list("pk", flat=True)) == ids


# -- refusals: named, nothing stored, the transaction still usable ------------------------------


def needs_two(left, right):
    return left + right


@pytest.fixture(scope="module")
def strict():
    return task(name="shop.needs_two")(needs_two)


NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)

# what is asked for, the field that is refused, a part of the text
REFUSED = [
    ({"priority": 101}, "priority", "101 is not a rank from -100 to 100"),
    ({"priority": "high"}, "priority", "'high' is not a rank"),
    ({"max_attempts": -1}, "max_attempts", "-1 is not a whole number from 0"),
    ({"max_attempts": 2**31}, "max_attempts", "is not a whole number from 0"),
    ({"run_at": NOON.replace(tzinfo=None)}, "run_at", "must have a time zone"),
    ({"run_at": "tomorrow"}, "run_at", "must be a datetime, not str"),
    ({"run_at": 0}, "run_at", "must be a datetime, not int"),
    ({"run_at": datetime.max.replace(tzinfo=UTC)}, "run_at", "outside the years"),
    ({"timeout": timedelta(minutes=30) + TICK}, "timeout", "is over 0:30:00, which"),
    ({"timeout": None}, "timeout", "no limit is over 0:30:00, which"),
    ({"idempotency_key": ""}, "idempotency_key", "must not be empty"),
    ({"idempotency_key": "k" * 257}, "idempotency_key", "has 257 characters; 256 are allowed"),
    ({"idempotency_key": 7}, "idempotency_key", "must be text, not int"),
    ({"tags": {"a": 1}}, "tags", "must map strings to strings"),
    ({"tags": []}, "tags", "must be a map of strings, not list"),
    ({"tags": {"a": "\0"}}, "tags", "a NUL character"),
    ({"tags": dict.fromkeys(map(str, range(65)), "")}, "tags", "has 65 tags; 64 are allowed"),
    ({"tags": {"k" * 129: ""}}, "tags", "has 129 characters; 128 are allowed"),
    ({"tags": {"a": "v" * 1025}}, "tags", "has 1025 characters; 1024 are allowed"),
    ({"correlation_id": 0}, "correlation_id", "must be text, not int"),
    ({"correlation_id": "c" * 129}, "correlation_id", "has 129 characters"),
    ({"callback_url": "u" * 2049}, "callback_url", "has 2049 characters"),
    ({"callback_url": 7}, "callback_url", "must be text, not int"),
]


@pytest.mark.parametrize(
    ("options", "field", "text"),
    REFUSED,
    ids=[f"{field}, {text:.40}" for _, field, text in REFUSED],
)
def test_a_refused_option_is_named_and_nothing_is_stored(db, options, field, text):
    asked = add.using(**options)
    for store in (lambda: asked.enqueue(1), lambda: asked.enqueue_many([(1,)])):
        with pytest.raises(InvalidJob) as caught:
            store()
        assert caught.value.field == field
        assert text in str(caught.value)
    assert not Job.objects.exists()


def test_a_timeout_as_long_as_the_ceiling_is_taken(db):
    with override_settings(TASKHARBOR={"MAX_TIMEOUT": HOUR}):
        assert add.using(timeout=HOUR).enqueue(1).refresh().timeout == HOUR
        with pytest.raises(InvalidJob, match=r"timeout: 1:00:00\.000001 is over 1:00:00"):
            add.using(timeout=HOUR + TICK).enqueue(1)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "missing a required argument: 'left'"),
        ((1,), {}, "missing a required argument: 'right'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1, 2), {"colour": "red"}, "got an unexpected keyword argument 'colour'"),
        ((1, 2), {"left": 3}, "multiple values for argument 'left'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_name_of_the_task(
    db, strict, args, kwargs, text
):
    with pytest.raises(InvalidPayload) as caught:
        strict.enqueue(*args, **kwargs)
    assert str(caught.value) == f"shop.needs_two: {text}"
    assert caught.value.field == "payload"
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "argument 1 (object) cannot be stored"),
        (float("nan"), "argument 1 (float) cannot be stored"),
        ("\ud800", "argument 1 (str) cannot be stored"),
        ({1: 2}, "argument 1 (dict) cannot be stored"),
    ],
    ids=["object", "nan", "surrogate", "keys"],
)
def test_an_argument_that_cannot_be_stored_is_named(db, value, text):
    with pytest.raises(InvalidPayload) as caught:
        echo.enqueue(value)
    assert text in str(caught.value)
    assert caught.value.argument == "argument 1"
    assert not Job.objects.exists()


@pytest.mark.parametrize("store", [echo.enqueue, lambda text: echo.enqueue_many([(text,)])])
def test_a_payload_of_exactly_the_limit_is_stored_and_one_byte_more_is_not(db, settings, store):
    size = len(encode_call(("x" * 500,), {}, max_bytes=10_000))
    settings.TASKHARBOR = {"PAYLOAD_MAX_BYTES": size}
    store("x" * 500)
    assert len(Job.objects.get().payload) == size
    with pytest.raises(PayloadTooLarge) as caught:
        store("x" * 501)
    assert (caught.value.field, caught.value.argument) == ("payload", "argument 1")
    assert f"{size + 1:,} bytes where {size:,} are allowed" in str(caught.value)
    assert Job.objects.count() == 1


BAD_ENQUEUES = {
    "option": lambda: add.using(priority=101).enqueue(1),
    "key": lambda: add.using(idempotency_key="").enqueue(1),
    "argument": lambda: echo.enqueue(object()),
    "arguments": lambda: add.enqueue(),  # noqa: PLW0108  it must not be called yet
    "too large": lambda: echo.enqueue("x" * 2**21),
    "batch": lambda: add.enqueue_many([(1,), (2,), ()]),
    "batch with a key": lambda: add.using(idempotency_key="k").enqueue_many([(1,), (object(),)]),
}


@pytest.mark.parametrize("bad", BAD_ENQUEUES)
def test_after_a_refusal_the_transaction_goes_on(transactional_db, bad):
    with transaction.atomic():
        LedgerFactory()
        with pytest.raises(InvalidJob):
            BAD_ENQUEUES[bad]()
        stored = add.enqueue(1)
    assert Ledger.objects.count() == 1
    assert Job.objects.get().pk == stored.id
    assert not IdempotencyKey.objects.exists()


def test_a_known_id_is_refused_and_the_transaction_goes_on(transactional_db):
    """At the driver: the public API has no argument for an id."""
    driver = DatabaseDriver()
    known, keyed = JobRecord(task="t"), JobRecord(task="t", idempotency_key="k")
    driver.enqueue(known)
    with transaction.atomic():
        LedgerFactory()
        for store in (
            lambda: driver.enqueue(known),
            lambda: driver.enqueue_many([JobRecord(task="t"), known]),
            lambda: driver.enqueue_many([keyed, known]),
        ):
            with pytest.raises(DuplicateJob):
                store()
        stored = add.enqueue(1)
    assert Ledger.objects.count() == 1
    assert set(Job.objects.values_list("pk", flat=True)) == {known.id, stored.id}
    assert not IdempotencyKey.objects.exists()


# -- where it is stored -------------------------------------------------------------------------


@pytest.fixture
def elsewhere(transactional_db, monkeypatch):
    """A second alias: another connection to the same tables."""
    monkeypatch.setitem(connections.settings, "elsewhere", {**connections.settings["default"]})
    # By hand: Django's test case lets nothing else open an alias that it has not set up.
    connections["elsewhere"].connect()
    yield "elsewhere"
    connections["elsewhere"].close()
    del connections["elsewhere"]


def test_a_queue_kept_in_another_database_is_written_there(elsewhere, settings):
    settings.TASKHARBOR = {"QUEUE_DATABASES": {"far": elsewhere}}
    near, far = add.enqueue(1), add.using(queue="far").enqueue(1)
    assert (near.using, far.using) == ("default", elsewhere)
    with undone(elsewhere):
        add.using(queue="far").enqueue(2)
        add.using(queue="far").enqueue_many([(3,)])
    assert Job.objects.count() == 2


def test_the_setting_says_where_all_other_queues_are(elsewhere, settings):
    settings.TASKHARBOR = {"DATABASE": elsewhere}
    assert add.enqueue(1).using == elsewhere


class Router:
    def db_for_read(self, model, **hints):
        raise AssertionError("a replica must never decide")

    def db_for_write(self, model, **hints):
        return "elsewhere"


def test_the_router_for_writing_decides_when_the_setting_does_not(elsewhere, settings):
    settings.DATABASE_ROUTERS = [Router()]
    handle = add.using(idempotency_key="k").enqueue(1)
    again = add.using(idempotency_key="k").enqueue(1)
    assert (handle.using, again.id, again.created) == (elsewhere, handle.id, False)
    assert handle.refresh().state == "ready"


def test_one_enqueue_many_stays_in_one_database(elsewhere, settings):
    settings.TASKHARBOR = {"QUEUE_DATABASES": {"far": elsewhere}}
    calls = itertools.chain.from_iterable(
        [(add.call(number), add.using(queue="far").call(number)) for number in range(3)]
    )
    with pytest.raises(InvalidJob, match="queue: far is kept in another database") as caught:
        add.enqueue_many(calls)
    assert caught.value.field == "queue"
    assert not Job.objects.exists()


# -- the async twin -----------------------------------------------------------------------------


def test_the_async_twin_stores_the_same_in_the_caller_s_transaction(transactional_db):
    with undone():
        handle = async_to_sync(add.aenqueue)(2, right=3)
        assert arguments(handle.refresh()) == ((2,), {"right": 3})
    assert not Job.objects.exists()


def test_the_async_twin_refuses_the_same(db):
    with pytest.raises(InvalidPayload, match="missing a required argument: 'left'"):
        async_to_sync(add.aenqueue)()
    assert not Job.objects.exists()


def test_nothing_of_the_connection_is_left_changed(transactional_db):
    """A refusal or an enqueue leaves autocommit as it was: the next caller has no transaction."""
    add.enqueue(1)
    with pytest.raises(InvalidJob):
        add.using(priority=101).enqueue(1)
    assert connection.get_autocommit()
    assert not connection.in_atomic_block
