"""The end of a job and the delivery of its callback are stored together."""

import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from taskharbor_django import bury, cancel, discard, registry, update
from taskharbor_django.exceptions import InvalidJob, PermanentError
from taskharbor_django.lifecycle import DeadReason, OutcomeKind
from taskharbor_django.models import Job
from taskharbor_django.operations import callback, decide
from taskharbor_django.operations.expire import expire
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.payload import decode_call
from tests.testapp.tasks import add

from . import LEASE, Statements, hold, undone

pytestmark = pytest.mark.django_db

URL = "https://hooks.example.com/done?order=7"
TOLD = {
    *("job", "task", "queue", "state", "attempts", "correlation_id"),
    *("created_at", "finished_at", "failure_category", "failure_code"),
}


@pytest.fixture(autouse=True)
def hosts(settings):
    settings.TASKHARBOR = {
        "NOTIFY": False,
        "CALLBACK_HOSTS": ["hooks.example.com"],
        "CALLBACK_SECRET": "s3cret",
    }


def ask(**options):
    return add.using(callback_url=URL, **options).enqueue(1)


def end(handle, kind=OutcomeKind.ACK, **facts):
    driver = driver_for("default")
    outcome = replace(decide.outcome(kind, hold(handle)), **facts)
    assert driver.settle([outcome], now=driver.now()) == []


def deliveries():
    return list(Job.objects.filter(task=callback.CALLBACK_TASK))


def told():
    (job,) = deliveries()
    (url, facts), _ = decode_call(bytes(job.payload))
    assert url == URL
    return facts


def test_an_ack_enqueues_the_delivery():
    handle = ask(queue="slow", correlation_id="c-1")
    end(handle)
    (job,) = deliveries()
    assert (job.state, job.queue, job.parent_id) == ("ready", "slow", handle.id)
    assert (job.correlation_id, job.callback_url) == ("c-1", "")
    facts = told()
    assert (facts["job"], facts["task"], facts["state"]) == (str(handle.id), add.name, "done")
    assert datetime.fromisoformat(facts["finished_at"]) == handle.refresh().finished_at
    assert facts.keys() == TOLD


@pytest.mark.parametrize("state", ["done", "dead"])
def test_a_receiver_is_told_these_facts_and_no_others(state):
    handle = ask(tags={"who": "in-a-tag"}, idempotency_key="in-a-key", max_attempts=1)
    driver, held = driver_for("default"), hold(handle)
    outcome = replace(decide.outcome(OutcomeKind.ACK, held), result=b'"in-a-result"')
    if state == "dead":
        error = PermanentError("in-an-error", code="refused")
        outcome = decide.outcome_of(error, held, None, now=driver.now())
    assert driver.settle([outcome], now=driver.now()) == []
    facts = told()
    assert facts.keys() == TOLD
    assert (facts["state"], facts["failure_code"]) == (state, "refused" * (state == "dead"))
    (job,) = deliveries()
    assert not job.tags
    stored = [str(value) for value in Job.objects.filter(pk=job.pk).values_list().get()]
    assert not re.search(r"in-an?-", " ".join([*stored, str(bytes(job.payload))]))


def test_so_does_a_burial():
    end(ask(), OutcomeKind.FAIL, reason=DeadReason.PERMANENT)
    assert told()["state"] == "dead"


def test_and_a_cancel():
    cancel([ask()])
    assert told()["state"] == "cancelled"


def test_and_the_end_of_a_lifetime():
    handle = ask(lifetime=60)
    driver = driver_for("default")
    assert sum(expire(driver, now=handle.refresh().expires_at)) == 1
    assert told()["state"] == "dead"


def test_and_a_lease_that_was_lost_too_often():
    hold(ask(), lease_for=timedelta(microseconds=1))
    driver = driver_for("default")
    driver.reserve("other", now=driver.now(), lease_for=LEASE, max_lease_losses=1)
    assert told()["state"] == "dead"


def test_and_a_burial_by_hand():
    bury([ask()])
    assert told()["state"] == "dead"


def test_a_dead_job_that_is_discarded_has_called_back_already():
    handle = ask()
    bury([handle])
    discard([handle])
    assert told()["state"] == "dead"


def test_a_retry_is_no_end():
    end(ask(), OutcomeKind.RELEASE)
    assert deliveries() == []


def test_without_a_url_nothing_is_enqueued_and_nothing_asked():
    handle = add.enqueue(1)
    held = hold(handle)
    driver = driver_for("default")
    with Statements() as sent:
        driver.settle([decide.outcome(OutcomeKind.ACK, held)], now=driver.now())
    assert not any("callback_url" in it["sql"].partition("WHERE")[2] for it in sent) or (
        driver.connection.vendor == "postgresql"
    )
    assert sent.inserts == 0
    assert deliveries() == []


def test_an_end_that_is_undone_calls_nobody(transactional_db):
    handle = ask()
    with undone():
        end(handle)
        assert len(deliveries()) == 1
    assert deliveries() == []


def test_a_job_that_keeps_nothing_is_kept_for_it():
    handle = ask()
    end(handle, keep=False)
    assert (handle.refresh().state, len(deliveries())) == ("done", 1)


def test_a_delivery_that_cannot_be_made_does_not_undo_the_end(monkeypatch, caplog):
    def refuse(*_):
        raise InvalidJob("no")

    handle = ask()
    monkeypatch.setattr(callback, "record_of", refuse)
    end(handle)
    assert (handle.refresh().state, deliveries()) == ("done", [])
    assert f"no callback for job {handle.id}" in caplog.text


@pytest.mark.parametrize("spoil", [{"queue": "no such name"}, {"correlation_id": "\x00"}])
def test_nor_does_one_that_cannot_be_stored(monkeypatch, spoil):
    handle = ask()
    made = callback.record_of
    monkeypatch.setattr(callback, "record_of", lambda call: replace(made(call), **spoil))
    end(handle)
    assert (handle.refresh().state, deliveries()) == ("done", [])


def test_nor_does_a_task_that_is_not_there(monkeypatch):
    handle = ask()
    monkeypatch.setattr(registry, "_tasks", {add.name: add})
    end(handle)
    assert (handle.refresh().state, deliveries()) == ("done", [])


@pytest.mark.parametrize("url", ["http://hooks.example.com/", "https://other.example.com/"])
def test_an_enqueue_with_a_url_that_is_not_admitted_is_refused(url):
    with pytest.raises(InvalidJob, match="callback_url"):
        add.using(callback_url=url).enqueue(1)
    assert not Job.objects.exists()


def test_nor_can_a_waiting_job_be_given_one():
    handle = add.enqueue(1)
    with pytest.raises(InvalidJob, match="is not in TASKHARBOR"):
        update([handle], callback_url="https://other.example.com/")
    assert update([handle], callback_url=URL).moved == 1


def test_off_unless_configured(settings):
    settings.TASKHARBOR = {}
    with pytest.raises(InvalidJob, match="callbacks are off"):
        ask()


def test_the_task_is_one_of_the_registry():
    assert registry.get(callback.CALLBACK_TASK).name == "taskharbor.callback"
