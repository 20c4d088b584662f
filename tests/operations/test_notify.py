"""Workers are woken once the jobs are committed, and not too often."""

import os

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from taskharbor_django.operations import notify
from taskharbor_django.worker.loop import SECOND_LOOK
from tests.servers.plugin import DIRECT_PORT
from tests.testapp.tasks import add

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]


@pytest.fixture(autouse=True)
def with_notify(settings):
    settings.TASKHARBOR = {"NOTIFY": "auto"}
    notify._last.clear()


@pytest.fixture
def calls():
    """The wake-ups that another session hears, as (queue, jobs that it can see)."""
    # Past a pooler: what is sent through it is heard, but only a session can listen.
    parameters = connection.get_connection_params()
    parameters["port"] = os.environ.get(DIRECT_PORT) or parameters["port"]
    listener = connection.copy().get_new_connection(parameters)
    listener.autocommit = True
    listener.execute(f"LISTEN {notify.CHANNEL}")

    def heard(patience=0.3):
        queues = [call.payload for call in listener.notifies(timeout=patience)]
        count = listener.execute("SELECT count(*) FROM taskharbor_job").fetchone()[0]
        return [(queue, count) for queue in queues]

    yield heard
    listener.close()


def test_an_enqueue_wakes_the_workers_of_its_queue(calls):
    add.using(queue="mail").enqueue(1)
    assert calls() == [("mail", 1)]


def test_nobody_is_woken_before_the_commit(calls):
    with transaction.atomic():
        add.enqueue(1)
        assert calls() == []
    assert calls() == [("default", 1)]


def test_nobody_is_woken_for_what_was_rolled_back(calls):
    with transaction.atomic():
        add.enqueue(1)
        transaction.set_rollback(True)
    assert calls() == []


def test_the_wake_up_is_no_part_of_the_transaction():
    """Sent in it, the server would hold the call back too, and a lock that all commits share."""
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        add.enqueue(1)
        assert not [query for query in queries if "pg_notify" in query["sql"]]
    assert "pg_notify" in queries[-1]["sql"]


def test_what_was_rolled_back_does_not_use_up_the_next_call(calls, monkeypatch):
    monkeypatch.setattr(notify, "DEBOUNCE", 60)
    with transaction.atomic():
        add.enqueue(1)
        transaction.set_rollback(True)
    add.enqueue(1)
    assert calls() == [("default", 1)]


def test_a_burst_of_enqueues_calls_rarely(calls, monkeypatch):
    monkeypatch.setattr(notify, "DEBOUNCE", 60)
    for number in range(20):
        add.enqueue(number)
    assert len(calls()) == 1


def test_each_queue_is_called_for_itself(calls):
    add.using(queue="a").enqueue(1)
    add.using(queue="b").enqueue(1)
    assert [queue for queue, _ in calls()] == ["a", "b"]


def test_a_whole_batch_is_one_call(calls):
    add.enqueue_many((number,) for number in range(50))
    assert calls() == [("default", 50)]


def test_it_can_be_switched_off(settings):
    settings.TASKHARBOR = {"NOTIFY": False}
    with CaptureQueriesContext(connection) as queries:
        add.enqueue(1)
    assert len(queries) == 1


def test_an_enqueue_is_one_insert_and_the_wake_up():
    with CaptureQueriesContext(connection) as queries:
        add.enqueue(1)
    assert [query["sql"].split()[0] for query in queries] == ["INSERT", "SELECT"]
    assert "pg_notify" in queries[1]["sql"]


def test_only_the_commit_of_the_wake_up_does_not_wait_for_the_disk():
    with CaptureQueriesContext(connection) as queries, connection.cursor() as cursor:
        add.enqueue(1)
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)
    assert ["synchronous_commit" in query["sql"] for query in queries][:2] == [False, True]


def test_a_wake_up_that_fails_changes_nothing(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("no wake-up today")

    monkeypatch.setattr(notify, "_notify", fail)
    handle = add.enqueue(1)
    assert handle.refresh().state == "ready"


def test_transactions_managed_by_hand_go_without():
    connection.set_autocommit(False)
    try:
        handle = add.enqueue(1)
        connection.commit()
    finally:
        connection.set_autocommit(True)
    assert handle.refresh().state == "ready"


def test_what_is_left_out_is_found_by_the_second_look_of_whoever_was_called():
    assert notify.DEBOUNCE < SECOND_LOOK
