"""Idempotency keys: one job for a task and key, for a time, whoever races and whatever ends."""

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from django.db import connection, transaction
from freezegun import freeze_time

from taskharbor_django import enqueue_many
from taskharbor_django.drivers import DatabaseDriver, JobRecord
from taskharbor_django.exceptions import IdempotencyConflict, JobNotFound
from taskharbor_django.models import IdempotencyKey, Job
from taskharbor_django.operations.storage import driver_for
from tests.testapp.tasks import add, echo

from . import PATIENCE, backend_of, hold, server_now, undone, until, waits_for_a_lock

HOUR, TICK = timedelta(hours=1), timedelta(microseconds=1)
RACERS = 32


def enqueue(key, value=1, **options):
    return add.using(idempotency_key=key, **options).enqueue(value)


def expire(key="k", ago=timedelta(0)):
    """Let the time of a key be over."""
    assert IdempotencyKey.objects.filter(key=key).update(expires_at=server_now() - ago) == 1


# -- a repeat -----------------------------------------------------------------------------------


def test_a_repeat_gives_the_first_job_and_creates_nothing(db):
    first, again = enqueue("k"), enqueue("k")
    assert (first.created, again.created) == (True, False)
    assert again.id == first.id
    assert Job.objects.count() == IdempotencyKey.objects.count() == 1


def test_a_repeat_changes_nothing_of_the_first_job(db):
    before = Job.objects.filter(pk=enqueue("k").id).values().get()
    enqueue("k", 2, queue="fast", priority=7, delay=60, tags={"a": "b"})
    assert Job.objects.values().get() == before


def test_the_key_is_kept_with_the_job(db):
    assert enqueue("order-7").refresh().idempotency_key == "order-7"


def test_a_key_belongs_to_its_task(db):
    ids = {enqueue("k").id, echo.using(idempotency_key="k").enqueue(1).id}
    assert len(ids) == Job.objects.count() == 2


def test_a_job_without_a_key_is_never_a_repeat(db):
    assert add.enqueue(1).created
    assert add.enqueue(1).created
    assert not IdempotencyKey.objects.exists()


def test_keys_are_compared_character_by_character(db):
    keys = [
        "order",
        "Order",
        "ORDER",
        "order ",
        " order",
        "order\t",
        "ordér",
        "orde\u0301r",
        "%",
        "_",
    ]
    handles = [enqueue(key) for key in keys]
    assert all(handle.created for handle in handles)
    assert [enqueue(key).id for key in keys] == [handle.id for handle in handles]


def test_task_names_are_compared_character_by_character(db):
    driver = DatabaseDriver()
    names = ["task", "Task", "task ", "tásk"]
    records = [JobRecord(task=name, idempotency_key="k") for name in names]
    assert [driver.enqueue(record) for record in records] == [record.id for record in records]


@pytest.mark.parametrize("key", ["k" * 256, "☕" * 256, "'; DROP TABLE x; -- %s \\"])
def test_a_key_may_be_any_text_of_256_characters(db, key):
    first = enqueue(key)
    assert enqueue(key).id == first.id
    assert enqueue(key[:-1]).id != first.id


# -- its time -----------------------------------------------------------------------------------


def test_a_key_stands_for_a_day_from_the_first_enqueue(db):
    before = server_now()
    created_at = enqueue("k").refresh().created_at
    day = timedelta(hours=24)
    assert before + day <= IdempotencyKey.objects.get().expires_at <= created_at + day


def test_the_setting_and_the_call_say_how_long_a_key_stands(db, settings):
    settings.TASKHARBOR = {"IDEMPOTENCY_TTL": 3600}
    before = server_now()
    enqueue("by setting")
    enqueue("by call", idempotency_ttl=60)
    enqueue("no longer", idempotency_ttl=0)
    expiries = dict(IdempotencyKey.objects.values_list("key", "expires_at"))
    after = server_now()
    assert before + HOUR <= expiries["by setting"] <= after + HOUR
    minute = timedelta(minutes=1)
    assert before + minute <= expiries["by call"] <= after + minute
    assert before <= expiries["no longer"] <= after
    assert enqueue("no longer").created


def test_a_repeat_does_not_lengthen_the_time(db):
    enqueue("k", idempotency_ttl=60)
    before = IdempotencyKey.objects.get().expires_at
    enqueue("k", idempotency_ttl=3600)
    assert IdempotencyKey.objects.get().expires_at == before


@pytest.mark.sqlite
def test_a_key_stands_until_its_time_is_over_and_not_a_tick_longer(db):
    """SQLite's clock is the local one, which a test can set."""
    moment = datetime(2031, 5, 17, 9, 30, 0, 123_457, tzinfo=UTC)
    with freeze_time(moment) as clock:
        first = enqueue("k")
        clock.move_to(moment + 24 * HOUR - TICK)
        assert enqueue("k").id == first.id
        clock.move_to(moment + 24 * HOUR)
        assert enqueue("k").created


def test_at_exactly_its_end_a_key_changes_hands(db):
    """On every database, with the time that a driver's caller may give."""
    driver, moment = DatabaseDriver(), datetime(2031, 5, 17, 9, 30, 0, 123_457, tzinfo=UTC)

    def put(created_at):
        record = JobRecord(
            task="t", idempotency_key="k", idempotency_ttl=HOUR, created_at=created_at
        )
        return driver.enqueue(record)

    first = put(moment)
    assert put(moment + HOUR - TICK) == first
    second = put(moment + HOUR)
    assert second != first
    assert put(moment + 2 * HOUR - TICK) == second
    assert put(moment + 2 * HOUR) not in {first, second}


def test_an_expired_key_stands_for_its_new_job_from_then_on(db):
    first = enqueue("k", 1)
    expire()
    second, third = enqueue("k", 2), enqueue("k", 3)
    assert (second.created, third.created) == (True, False)
    assert first.id != second.id == third.id
    assert IdempotencyKey.objects.get().expires_at > server_now() + 23 * HOUR


# -- whatever became of the job -----------------------------------------------------------------


def run(handle):
    held = hold(handle)
    driver = driver_for(handle.using)
    driver.ack(held.job.id, held.lease.token, now=driver.now())


def bury(handle):
    held = hold(handle)
    driver = driver_for(handle.using)
    driver.fail(held.job.id, held.lease.token, now=driver.now(), reason="permanent")


@pytest.mark.parametrize(
    ("end", "state"),
    [(run, "done"), (bury, "dead"), (lambda handle: handle.cancel(), "cancelled")],
    ids=["done", "dead", "cancelled"],
)
def test_a_key_outlives_its_job_however_that_ended(db, end, state):
    handle = enqueue("k")
    end(handle)
    again = enqueue("k")
    assert (again.id, again.created) == (handle.id, False)
    assert again.refresh().state == state
    assert Job.objects.count() == 1


def test_a_key_outlives_even_the_row_of_its_job(db):
    handle = enqueue("k")
    Job.objects.all().delete()
    again = enqueue("k")
    assert (again.id, again.created) == (handle.id, False)
    with pytest.raises(JobNotFound):
        again.refresh()


def test_a_rolled_back_enqueue_leaves_no_key(transactional_db):
    with undone():
        gone = enqueue("k")
    again = enqueue("k")
    assert again.created
    assert again.id != gone.id


def test_inside_its_own_transaction_a_key_is_known_at_once(transactional_db):
    with transaction.atomic():
        assert enqueue("k").id == enqueue("k").id
    assert Job.objects.count() == 1


# -- strict -------------------------------------------------------------------------------------


def test_another_payload_under_a_known_key_is_the_first_job_unless_strict(db):
    assert enqueue("k", 1).id == enqueue("k", 2).id


def test_in_strict_mode_another_payload_under_a_known_key_is_refused(db, settings):
    settings.TASKHARBOR = {"IDEMPOTENCY_STRICT": True}
    first = enqueue("order-7", 1)
    with pytest.raises(IdempotencyConflict) as caught:
        enqueue("order-7", 2)
    assert caught.value.job_id == first.id
    said = "The key 'order-7' of tests.testapp.tasks.add was used with other arguments"
    assert str(caught.value) == f"{said}, for job {first.id}."
    assert Job.objects.count() == 1


def test_in_strict_mode_the_same_payload_is_a_repeat_however_it_is_spelt(db, settings):
    settings.TASKHARBOR = {"IDEMPOTENCY_STRICT": True}
    keyed = echo.using(idempotency_key="k")
    first = keyed.enqueue(1, a={"x": 1, "y": 2}, b=3)
    assert keyed.enqueue(1, b=3, a={"y": 2, "x": 1}).id == first.id
    with pytest.raises(IdempotencyConflict):
        keyed.enqueue(1, b=3, a={"y": 2, "x": 2})


def test_in_strict_mode_a_new_time_brings_new_arguments(db, settings):
    settings.TASKHARBOR = {"IDEMPOTENCY_STRICT": True}
    enqueue("k", 1)
    expire()
    second = enqueue("k", 2)
    assert enqueue("k", 2).id == second.id
    with pytest.raises(IdempotencyConflict):
        enqueue("k", 1)


def test_a_conflict_leaves_the_transaction_usable_and_a_batch_unstored(transactional_db, settings):
    settings.TASKHARBOR = {"IDEMPOTENCY_STRICT": True}
    with transaction.atomic():
        first = enqueue("k", 1)
        for store in (
            lambda: enqueue("k", 2),
            lambda: enqueue_many([add.call(7), add.using(idempotency_key="k").call(2)]),
            lambda: enqueue_many(add.using(idempotency_key="new").call(n) for n in (1, 2)),
        ):
            with pytest.raises(IdempotencyConflict):
                store()
        last = add.enqueue(3)
    assert set(Job.objects.values_list("pk", flat=True)) == {first.id, last.id}
    assert IdempotencyKey.objects.count() == 1


def test_a_key_that_is_gone_by_the_time_of_the_look_conflicts_with_nothing(
    db, settings, monkeypatch
):
    """Pruned, or taken over, between the enqueue and the comparison."""
    settings.TASKHARBOR = {"IDEMPOTENCY_STRICT": True}
    first = enqueue("k", 1)
    driver = driver_for("default")
    take = driver.enqueue

    def take_and_prune(record):
        job_id = take(record)
        IdempotencyKey.objects.all().delete()
        return job_id

    monkeypatch.setattr(driver, "enqueue", take_and_prune)
    assert enqueue("k", 2).id == first.id


# -- races --------------------------------------------------------------------------------------


def test_of_32_callers_one_creates_the_job_and_31_are_given_it(race):
    handles = race(*[lambda: enqueue("k")] * RACERS)
    assert sorted(handle.created for handle in handles) == [False] * (RACERS - 1) + [True]
    assert {handle.id for handle in handles} == {Job.objects.get().pk}
    assert IdempotencyKey.objects.count() == 1


def test_of_32_batches_with_one_key_one_creates_its_job(race):
    def store():
        told = []
        new = add.using(idempotency_key="k").enqueue_many([(1,), (2,)], on_batch=told.extend)
        return new, told

    answers = race(*[store] * RACERS)
    assert sorted(new for new, _ in answers) == [0] * (RACERS - 1) + [1]
    assert {job_id for _, told in answers for job_id in told} == {Job.objects.get().pk}


def test_of_32_callers_one_takes_an_expired_key_over(race):
    first = enqueue("k")
    expire(ago=HOUR)
    handles = race(*[lambda: enqueue("k")] * RACERS)
    assert sum(handle.created for handle in handles) == 1
    (second,) = {handle.id for handle in handles}
    assert second != first.id
    assert Job.objects.count() == 2


class Second:
    """The later of two callers, in a thread of its own; the first can see it wait."""

    def __init__(self, enqueue):
        self.may_start, self.backend, self.enqueue = Event(), None, enqueue

    def __call__(self):
        connection.ensure_connection()
        backend = backend_of(connection)
        assert self.may_start.wait(PATIENCE)
        self.backend = backend
        return self.enqueue()

    def waits(self):
        return self.backend is not None and waits_for_a_lock(self.backend)


def meet(race, first, end):
    """Let a second caller wait for the key that a first one has taken, until `end` ends that."""
    second = Second(lambda: enqueue("k", 2))

    def hold_the_key():
        with end():
            handle = first()
            second.may_start.set()
            until(second.waits)
        return handle

    return race(hold_the_key, second)


@contextmanager
def kept():
    with transaction.atomic():
        yield


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_when_the_first_rolls_back_the_second_creates_the_job(race):
    first, second = meet(race, lambda: enqueue("k", 1), undone)
    assert second.created
    assert Job.objects.get().pk == second.id != first.id


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_when_the_first_commits_the_second_is_given_its_job(race):
    first, second = meet(race, lambda: enqueue("k", 1), kept)
    assert (first.created, second.created) == (True, False)
    assert Job.objects.get().pk == first.id == second.id


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize(("end", "winner"), [(kept, 0), (undone, 1)], ids=["commit", "rollback"])
def test_an_expired_key_has_one_new_owner_whichever_way_the_first_ends(race, end, winner):
    old = enqueue("k", 0)
    expire(ago=HOUR)
    both = meet(race, lambda: enqueue("k", 1), end)
    assert both[1].created is bool(winner)
    new = {both[winner].id}
    assert set(Job.objects.exclude(pk=old.id).values_list("pk", flat=True)) == new
    assert IdempotencyKey.objects.get().job_id == both[winner].id


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_keys_in_opposite_order_do_not_deadlock(race):
    """A third caller holds a key in the middle until both wait, wherever each has got to."""
    keys = [f"key-{number}" for number in range(9)]

    def batch(order):
        told = []
        enqueue_many((add.using(idempotency_key=k).call(1) for k in order), on_batch=told.extend)
        return dict(zip(order, told, strict=True))

    up, down = Second(lambda: batch(keys)), Second(lambda: batch(keys[::-1]))

    def in_between():
        with undone():
            enqueue(keys[4])
            for each in (up, down):
                each.may_start.set()
            until(lambda: up.waits() and down.waits())

    _, one, other = race(in_between, up, down)
    assert one == other
    assert Job.objects.count() == len(keys)


def test_batches_in_opposite_order_make_one_job_for_each_key(race):
    keys = [f"key-{number}" for number in range(20)]

    def store(order):
        return enqueue_many(add.using(idempotency_key=key).call(1) for key in order)

    new = race(*[lambda: store(keys), lambda: store(keys[::-1])] * 4)
    assert sum(new) == Job.objects.count() == len(keys)


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_a_key_is_found_that_is_younger_than_the_snapshot_of_the_caller(monkeypatch, race):
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    monkeypatch.setattr(connection, "isolation_level", "repeatable read")
    try:
        with transaction.atomic():
            assert not Job.objects.exists()
            (other,) = race(lambda: enqueue("k"))
            mine = enqueue("k")
        assert (mine.id, mine.created) == (other.id, False)
    finally:
        connection.close()
