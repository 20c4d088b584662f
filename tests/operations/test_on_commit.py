"""enqueue_on_commit: nothing before the commit, refusals at once, arguments as they were then."""

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from taskharbor_django.exceptions import InvalidJob, InvalidPayload
from taskharbor_django.models import Job
from taskharbor_django.payload import decode_call
from tests.factories import LedgerFactory
from tests.testapp.models import Ledger
from tests.testapp.tasks import add, echo

from . import Statements, server_now, undone


def stored():
    return [decode_call(bytes(job.payload)) for job in Job.objects.in_line()]


def test_nothing_is_written_before_the_commit(transactional_db):
    with transaction.atomic():
        with Statements() as sent:
            assert add.enqueue_on_commit(1) is None
            assert sent.verbs == []
        assert not Job.objects.exists()
    assert stored() == [((1,), {})]


def test_nothing_is_written_after_a_rollback(transactional_db):
    with undone():
        add.enqueue_on_commit(1)
    assert not Job.objects.exists()


def test_what_a_rolled_back_savepoint_asked_for_is_forgotten(transactional_db):
    with transaction.atomic():
        add.enqueue_on_commit(1)
        with undone():
            add.enqueue_on_commit(2)
        add.enqueue_on_commit(3)
    assert stored() == [((1,), {}), ((3,), {})]


def test_outside_a_transaction_the_job_is_stored_at_once(transactional_db):
    add.enqueue_on_commit(1)
    assert stored() == [((1,), {})]


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (add.enqueue_on_commit, InvalidPayload),
        (lambda: echo.enqueue_on_commit(object()), InvalidPayload),
        (lambda: echo.enqueue_on_commit("x" * 2**21), InvalidPayload),
        (lambda: add.using(priority=101).enqueue_on_commit(1), InvalidJob),
        (lambda: add.using(idempotency_key="").enqueue_on_commit(1), InvalidJob),
        (lambda: add.using(timeout=86_400).enqueue_on_commit(1), InvalidJob),
    ],
    ids=["arguments", "argument", "too large", "rank", "key", "timeout"],
)
def test_what_cannot_be_stored_is_refused_where_it_is_asked_for(transactional_db, ask, error):
    """Later, after the commit, nobody would be there to hear it."""
    with transaction.atomic():
        LedgerFactory()
        with pytest.raises(error):
            ask()
    assert Ledger.objects.count() == 1
    assert not Job.objects.exists()


def test_the_arguments_are_those_of_the_call_whatever_happens_to_them_after(transactional_db):
    items, tags = [1, {"deep": [2]}], {"a": "b"}
    with transaction.atomic():
        echo.using(tags=tags).enqueue_on_commit(items)
        items[1]["deep"].append(3)
        items.clear()
        tags["a"] = "changed"
    assert stored() == [(([1, {"deep": [2]}],), {})]
    assert Job.objects.get().tags == {"a": "b"}


def test_its_time_begins_with_the_commit(transactional_db):
    with transaction.atomic():
        add.using(delay=60).enqueue_on_commit(1)
        before_commit = server_now()
    job = Job.objects.get()
    assert job.created_at >= before_commit
    assert (job.run_at - job.created_at).total_seconds() == 60


def test_a_key_is_taken_with_the_commit(transactional_db):
    with transaction.atomic():
        keyed = add.using(idempotency_key="k")
        keyed.enqueue_on_commit(1)
        keyed.enqueue_on_commit(2)
        now = keyed.enqueue(3)
    assert Job.objects.get().pk == now.id
    assert stored() == [((3,), {})]


def test_the_async_twin_waits_for_the_commit_too(transactional_db):
    ask = async_to_sync(add.aenqueue_on_commit)
    with transaction.atomic():
        ask(1, right=2)
        assert not Job.objects.exists()
    with undone():
        ask(3)
    assert stored() == [((1,), {"right": 2})]


def test_the_async_twin_refuses_at_once_too(transactional_db):
    with transaction.atomic(), pytest.raises(InvalidPayload):
        async_to_sync(add.aenqueue_on_commit)()
    assert not Job.objects.exists()
