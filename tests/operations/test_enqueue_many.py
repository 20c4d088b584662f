"""enqueue_many: drawn as it goes, one INSERT for a batch, all or none, in the order given."""

import gc
import itertools
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from taskharbor_django import enqueue_many
from taskharbor_django.exceptions import InvalidJob, InvalidPayload
from taskharbor_django.models import IdempotencyKey, Job
from taskharbor_django.operations import enqueue as verb
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.payload import decode_call
from tests.factories import JobFactory
from tests.testapp.tasks import add, echo, report

from . import LEASE, Statements, undone


def in_line():
    """Ids of the stored jobs in the order in which workers get them."""
    return list(Job.objects.in_line().values_list("pk", flat=True))


def first_arguments(jobs):
    return [decode_call(bytes(job.payload))[0][0] for job in jobs]


# -- what goes in, what comes out ---------------------------------------------------------------


def test_tuples_are_args_dicts_are_kwargs_and_calls_are_themselves(db):
    assert echo.enqueue_many([(1, 2), {"a": 3}, (), add.call(4)]) == 4
    stored = [
        (job.task.rpartition(".")[2], decode_call(bytes(job.payload)))
        for job in Job.objects.in_line()
    ]
    assert stored == [
        ("echo", ((1, 2), {})),
        ("echo", ((), {"a": 3})),
        ("echo", ((), {})),
        ("add", ((4,), {})),
    ]


def test_nothing_in_is_nothing_stored_and_nothing_asked(db):
    with Statements() as sent:
        assert add.enqueue_many([]) == enqueue_many(iter(())) == 0
    assert sent.verbs == []


def test_calls_of_different_tasks_go_in_one_batch(db):
    calls = [add.call(1), report.call("May"), add.using(queue="fast").call(2)]
    assert enqueue_many(calls) == 3
    stored = set(Job.objects.values_list("task", "queue", "max_attempts"))
    assert stored == {
        ("tests.testapp.tasks.add", "default", 3),
        ("tests.testapp.tasks.report", "reports", 5),
        ("tests.testapp.tasks.add", "fast", 3),
    }


def test_each_job_of_a_mixed_batch_keeps_what_it_asked_for(db):
    run_at = datetime(2999, 5, 17, 9, 30, 0, 123_457, tzinfo=UTC)
    asked = [
        {},
        {"run_at": run_at},
        {"run_at": datetime(2001, 1, 1, tzinfo=UTC)},
        {"delay": 90, "lifetime": 60},
        {"tags": {"a": "b"}, "correlation_id": "c"},
        {"priority": -7, "lifetime": None},
        {"queue": "fast", "max_attempts": 9, "timeout": 5},
        {"idempotency_key": "k"},
    ]
    ids = []
    enqueue_many([add.using(**options).call(1) for options in asked], on_batch=ids.extend)
    jobs = Job.objects.in_bulk(ids)
    plain, ahead, past, delayed, tagged, ranked, fast, keyed = (jobs[job_id] for job_id in ids)
    assert (plain.state, plain.run_at, plain.tags) == ("ready", None, None)
    assert (ahead.state, ahead.run_at, ahead.available_at) == ("scheduled", run_at, run_at)
    assert ahead.expires_at == run_at + timedelta(days=7)
    assert (past.state, past.run_at.year, past.available_at) == ("ready", 2001, past.created_at)
    assert (delayed.state, delayed.run_at - delayed.created_at) == (
        "scheduled",
        timedelta(seconds=90),
    )
    assert delayed.expires_at - delayed.run_at == timedelta(minutes=1)
    assert (tagged.tags, tagged.correlation_id) == ({"a": "b"}, "c")
    assert (ranked.priority, ranked.expires_at) == (-7, None)
    assert (fast.queue, fast.max_attempts, fast.timeout) == ("fast", 9, timedelta(seconds=5))
    assert keyed.idempotency_key == "k"


def test_every_batch_is_told_its_ids_in_the_order_of_its_items(db):
    told = []
    assert add.enqueue_many([(n,) for n in range(5)], batch_size=2, on_batch=told.append) == 5
    assert [len(ids) for ids in told] == [2, 2, 1]
    jobs = Job.objects.in_bulk()
    assert first_arguments(jobs[job_id] for ids in told for job_id in ids) == [0, 1, 2, 3, 4]
    assert all(isinstance(job_id, UUID) for ids in told for job_id in ids)


# -- order --------------------------------------------------------------------------------------


def test_jobs_are_reserved_in_the_order_in_which_they_were_given(db):
    add.enqueue_many([(number,) for number in range(50)], batch_size=20)
    driver = driver_for("default")
    taken = driver.reserve("default", now=driver.now(), lease_for=LEASE, limit=100)
    assert [decode_call(bytes(each.job.payload))[0] for each in taken] == [(n,) for n in range(50)]


def test_jobs_of_different_shapes_keep_the_order_in_which_they_were_given(db):
    """FIFO holds in one enqueue_many, also where tags or ids make two of its rows differ."""
    shapes = [add, add.using(tags={"a": "b"}), add, add.using(correlation_id="c"), add]
    enqueue_many(each.call(number) for number, each in enumerate(shapes * 4))
    assert first_arguments(Job.objects.in_line()) == list(range(20))


def test_of_jobs_of_one_microsecond_the_sequence_decides(db):
    """Not where a row happens to lie: these were written the other way round."""
    moment = driver_for("default").now()
    written = [JobFactory(seq=seq, created_at=moment).pk for seq in (5, 3, 4, 1, 2)]
    ordered = [written[place] for place in (3, 4, 1, 2, 0)]
    assert in_line() == ordered
    driver = driver_for("default")
    taken = [driver.reserve("default", now=driver.now(), lease_for=LEASE) for _ in ordered]
    assert [each.job.id for (each,) in taken] == ordered


def test_what_is_enqueued_next_stands_behind(db):
    ids = []
    before = add.enqueue(0).id
    add.enqueue_many([(1,), (2,)], on_batch=ids.extend)
    after = add.enqueue(3).id
    assert in_line() == [before, *ids, after]


# -- statements ---------------------------------------------------------------------------------


def test_a_batch_is_one_insert(transactional_db, settings):
    settings.TASKHARBOR = {"NOTIFY": False}
    with Statements() as sent:
        add.enqueue_many([(number,) for number in range(1_200)], batch_size=400)
    assert sent.inserts == 3
    others = [word for word in sent.verbs if word != "INSERT"]
    assert others == ["BEGIN", *["SAVEPOINT", "RELEASE"] * 3, "COMMIT"]


@pytest.mark.postgresql
def test_a_batch_is_one_insert_also_when_its_rows_differ(transactional_db):
    shapes = [add, add.using(tags={"a": "b"}), add.using(delay=5), add.using(priority=7)]
    with Statements() as sent:
        enqueue_many([each.call(1) for each in shapes * 250])
    assert sent.inserts == 1


def test_a_batch_with_keys_costs_one_insert_and_one_look_more(transactional_db):
    with transaction.atomic(), Statements() as sent:
        enqueue_many([add.using(idempotency_key=f"k{n}").call(1) for n in range(100)])
        words = [word for word in sent.verbs if word not in {"SAVEPOINT", "RELEASE"}]
        assert words == ["INSERT", "SELECT", "INSERT"]


# -- streaming ----------------------------------------------------------------------------------


def test_items_are_drawn_as_they_are_needed(db):
    drawn, ahead = 0, []

    def items():
        nonlocal drawn
        for number in range(2_000):
            drawn += 1
            yield (number,)

    stored = 0

    def note(ids):
        nonlocal stored
        stored += len(ids)
        ahead.append(drawn - stored)

    assert add.enqueue_many(items(), batch_size=200, on_batch=note) == 2_000
    assert len(ahead) == 10
    assert max(ahead) <= 200


class Nowhere:
    """Stands for a driver, to see what the verb itself holds on to."""

    def enqueue_many(self, records):
        return [record.id for record in records]


def growth(count, batch_size):
    """How many blocks of memory are in use after the last batch beyond those after the second."""
    in_use, told = {}, itertools.count(1)

    def look(_):
        batch = next(told)
        if batch in (2, count // batch_size):
            gc.collect()
            in_use[batch] = sys.getallocatedblocks()

    add.enqueue_many(((n,) for n in range(count)), batch_size=batch_size, on_batch=look)
    first, last = in_use.values()
    return last - first


def test_fifty_thousand_items_take_no_more_memory_than_a_batch(db, monkeypatch):
    monkeypatch.setattr(verb, "driver_for", {"default": Nowhere()}.__getitem__)
    # A thousand records are 6,000 blocks, fifty thousand would be 300,000.
    assert growth(50_000, batch_size=1_000) < 20_000


def test_the_driver_of_the_database_keeps_no_batch_either(db):
    assert growth(6_000, batch_size=200) < 10_000


def test_large_jobs_go_in_smaller_batches(transactional_db, settings):
    """MariaDB ends a connection that sends more than 16 MiB at once; memory ends, too."""
    settings.TASKHARBOR = {"PAYLOAD_MAX_BYTES": 6 * 2**20}
    texts = ["x" * 5_000_000] + ["y" * 1_000_000] * 18 + ["z"]
    told = []
    assert echo.enqueue_many(((text,) for text in texts), on_batch=told.append) == 20
    assert [len(ids) for ids in told] == [1, 5, 5, 5, 4]
    assert Job.objects.count() == 20


# -- all or none --------------------------------------------------------------------------------


def with_a_bad_one(place, bad, count=2_000):
    return (bad if number == place else (number,) for number in range(count))


@pytest.mark.parametrize("place", [0, 1, 1_500, 1_999])
def test_one_bad_item_of_two_thousand_stores_none(transactional_db, place):
    with pytest.raises(InvalidPayload, match="too many positional arguments"):
        add.enqueue_many(with_a_bad_one(place, (1, 2, 3)), batch_size=500)
    assert not Job.objects.exists()


def test_one_bad_option_among_good_ones_stores_none(transactional_db):
    calls = [add.using(idempotency_key=f"k{n}", priority=n).call(1) for n in range(99, 102)]
    with pytest.raises(InvalidJob, match="101 is not a rank"):
        enqueue_many(calls, batch_size=1)
    assert (Job.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


class Broken(Exception):
    pass


def breaks_after(count):
    yield from ((number,) for number in range(count))
    raise Broken


def test_a_generator_that_breaks_stores_none(transactional_db):
    with pytest.raises(Broken):
        add.enqueue_many(breaks_after(300), batch_size=100)
    assert not Job.objects.exists()


def test_a_listener_that_breaks_stores_none(transactional_db):
    def stumble(ids):
        raise Broken

    with pytest.raises(Broken):
        add.enqueue_many([(1,), (2,)], on_batch=stumble)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "broken", [breaks_after(300), with_a_bad_one(250, ("too", "many", 3), 300)]
)
def test_after_a_refused_batch_the_transaction_of_the_caller_goes_on(transactional_db, broken):
    with transaction.atomic():
        with pytest.raises((Broken, InvalidJob)):
            add.enqueue_many(broken, batch_size=100)
        kept = add.enqueue(1)
    assert in_line() == [kept.id]


def test_a_batch_vanishes_with_the_transaction_of_the_caller(transactional_db):
    with undone():
        add.enqueue_many([(number,) for number in range(10)], batch_size=3)
    assert not Job.objects.exists()


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 1.5, "10", None])
def test_a_batch_has_at_least_one_item(db, size):
    def items():
        raise AssertionError("drawn")
        yield

    for store in (add.enqueue_many, enqueue_many):
        with pytest.raises(ValueError, match="batch_size must be a whole number from 1"):
            store(items(), batch_size=size)


@pytest.mark.parametrize("item", [7, "text", [1, 2], None, {1, 2}, b"bytes", add], ids=str)
def test_an_item_of_another_kind_is_refused_with_its_type(db, item):
    kind = type(item).__name__
    text = f"enqueue_many takes tuples of args, dicts of kwargs, or calls; not {kind}"
    with pytest.raises(InvalidJob, match=text) as caught:
        add.enqueue_many([(1,), item])
    assert caught.value.field == "payload"
    assert not Job.objects.exists()


@pytest.mark.parametrize("item", [(1,), {"left": 1}, add, None], ids=str)
def test_without_a_task_only_calls_will_do(db, item):
    kind = type(item).__name__
    text = rf"enqueue_many takes what task\.call\(\.\.\.\) makes; not {kind}"
    with pytest.raises(InvalidJob, match=text):
        enqueue_many([add.call(1), item])
    assert not Job.objects.exists()


def test_kwargs_with_keys_that_are_no_names_are_refused(db):
    with pytest.raises(InvalidPayload, match="keywords must be strings"):
        add.enqueue_many([{1: 2}])


# -- keys ---------------------------------------------------------------------------------------


def keyed(*keys):
    return (add.using(idempotency_key=key).call(number) for number, key in enumerate(keys))


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_key_twice_makes_one_job_in_a_batch_and_across_batches(db, size):
    told = []
    new = enqueue_many(keyed("a", "b", "a", None, "b", "a"), batch_size=size, on_batch=told.extend)
    a, b, a2, plain, b2, a3 = told
    assert new == len({a, b, plain}) == Job.objects.count() == 3
    assert (a, b, a) == (a2, b2, a3)
    assert first_arguments([Job.objects.get(pk=a), Job.objects.get(pk=b)]) == [0, 1]


def test_a_key_known_before_is_not_counted_as_new(db):
    known, told = add.using(idempotency_key="b").enqueue(7), []
    assert enqueue_many(keyed("a", "b", "c"), on_batch=told.extend) == 2
    assert told[1] == known.id
    assert Job.objects.count() == 3


# -- the async twin -----------------------------------------------------------------------------


def test_the_async_twin_stores_the_same_in_the_caller_s_transaction(transactional_db):
    told = []
    with undone():
        store = async_to_sync(add.aenqueue_many)
        assert store(((n,) for n in range(5)), batch_size=2, on_batch=told.append) == 5
        assert (len(told), Job.objects.count()) == (3, 5)
    assert not Job.objects.exists()


def test_the_async_twin_refuses_the_same(db):
    with pytest.raises(InvalidJob, match="not int"):
        async_to_sync(add.aenqueue_many)([7])
