"""Other terms for jobs that have not started, erased data, paused queues, asked workers."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from taskharbor_django import Priority, Selection, erase, pause, resume, run_now, update
from taskharbor_django.exceptions import InvalidJob, PayloadCorrupt, ResultNotStored
from taskharbor_django.lifecycle import AttemptEnd, OutcomeKind
from taskharbor_django.models import Attempt, DeadLetter, Job, Queue, Worker
from taskharbor_django.operations import Moved, ask_workers, cancel
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.values import Outcome
from tests.factories import job_in
from tests.testapp.tasks import add

from . import LEASE, hold, server_now

WAITING = ["blocked", "scheduled", "ready"]
STARTED = ["inflight", "done", "dead", "cancelled"]
HOUR = timedelta(hours=1)


# -- update -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", WAITING)
def test_a_waiting_job_takes_other_terms(db, state, settings):
    settings.TASKHARBOR = {"CALLBACK_HOSTS": ["example.com"], "CALLBACK_SECRET": "s"}
    job = job_in(state)
    columns = {
        "priority": Priority.HIGH,
        "tags": {"a": "b"},
        "callback_url": "https://example.com/",
        "queue": "other",
    }
    assert update([job.pk], **columns) == Moved(moved=1)
    stored = Job.objects.filter(pk=job.pk).values(*columns).get()
    assert stored == columns
    assert Job.objects.get(pk=job.pk).state == state


@pytest.mark.parametrize("state", STARTED)
def test_a_job_that_has_started_keeps_its_terms(db, state):
    job = job_in(state)
    before = Job.objects.filter(pk=job.pk).values().get()
    assert update([job.pk], priority=50) == Moved(left={"started": 1})
    assert Job.objects.filter(pk=job.pk).values().get() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [("scheduled", "scheduled"), ("ready", "scheduled"), ("blocked", "blocked")],
)
def test_a_later_time_is_waited_for(db, before, after):
    job, at = job_in(before), server_now() + timedelta(days=10)
    assert update([job.pk], run_at=at).moved == 1
    job.refresh_from_db()
    assert (job.state, job.run_at, job.available_at) == (after, at, at)
    assert job.expires_at == at + timedelta(days=7)


@pytest.mark.parametrize("when", [None, timedelta(hours=-1)])
def test_a_time_that_is_past_or_none_is_now(db, when):
    job = job_in("scheduled")
    started = server_now()
    assert update([job.pk], run_at=when and started + when).moved == 1
    job.refresh_from_db()
    assert job.state == "ready"
    assert started <= job.available_at <= server_now()


def test_a_job_without_an_end_gets_none(db):
    job = job_in("ready", expires_at=None)
    update([job.pk], run_at=server_now() + HOUR)
    assert Job.objects.get(pk=job.pk).expires_at is None


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"priority": 101}, "priority"),
        ({"queue": "no such name"}, "queue"),
        ({"tags": {"a": 1}}, "tags"),
        ({"tags": dict.fromkeys(map(str, range(65)), "")}, "tags"),
        ({"tags": {"k" * 129: ""}}, "tags"),
        ({"tags": {"a": "v" * 1025}}, "tags"),
        ({"payload": b""}, "payload"),
        ({}, ""),
    ],
)
def test_what_cannot_be_stored_or_changed_is_refused(db, columns, field):
    job = job_in("ready")
    before = Job.objects.filter(pk=job.pk).values().get()
    with pytest.raises(InvalidJob) as refused:
        update([job.pk], **columns)
    assert refused.value.field == field
    assert Job.objects.filter(pk=job.pk).values().get() == before


def test_a_handle_changes_its_job(db):
    handle = add.enqueue(1, 2)
    assert handle.update(priority=-50) is True
    assert handle.refresh().priority == -50
    assert handle.run_now() is False
    handle.cancel()
    assert handle.update(priority=0) is False


def test_a_claim_at_the_same_instant_sees_old_or_new_terms(race):
    driver = driver_for("default")
    for _ in range(10):
        handle = add.enqueue(1)
        taken, answer = race(
            lambda: driver.reserve("default", now=driver.now(), lease_for=LEASE),
            lambda handle=handle: update([handle], run_at=server_now() + HOUR),
        )
        assert handle.state == ("scheduled" if answer.moved else "inflight")
        assert bool(taken) is not bool(answer.moved)
        handle.cancel(force=True)


# -- run now ------------------------------------------------------------------------------------


def test_a_scheduled_job_runs_at_once(db):
    job = job_in("scheduled")
    assert run_now([job.pk]) == Moved(moved=1)
    driver = driver_for("default")
    (held,) = driver.reserve("default", now=driver.now(), lease_for=LEASE)
    assert held.job.id == job.pk


@pytest.mark.parametrize(
    ("state", "why"),
    [("ready", "ready"), ("blocked", "blocked"), *((each, "started") for each in STARTED)],
)
def test_what_waits_for_no_time_is_left(db, state, why):
    assert run_now([job_in(state).pk]) == Moved(left={why: 1})


def test_a_promotion_at_the_same_instant_does_no_harm(race):
    driver = driver_for("default")
    for _ in range(10):
        job = job_in("scheduled", run_at=server_now() - HOUR)
        race(
            lambda: driver.reserve("elsewhere", now=driver.now(), lease_for=LEASE),
            lambda job=job: run_now([job.pk]),
        )
        assert Job.objects.get(pk=job.pk).state == "ready"


# -- a filter -----------------------------------------------------------------------------------


def ids(selection):
    return set(selection.jobs().values_list("pk", flat=True))


@pytest.mark.parametrize(
    "criterion",
    [
        {"queue": "mail"},
        {"task": "other.task"},
        {"priority": 50},
        {"correlation_id": "c"},
        {"tags": {"customer": "7"}},
        {"workflow": uuid4()},
        {"parent": uuid4()},
        {"replay_of": uuid4()},
    ],
    ids=lambda criterion: next(iter(criterion)),
)
def test_each_criterion_finds_its_jobs(db, criterion):
    ((name, value),) = criterion.items()
    column = f"{name}_id" if name in ("workflow", "parent", "replay_of") else name
    wanted, _ = job_in("ready", **{column: value}), job_in("ready")
    assert ids(Selection(**criterion)) == {wanted.pk}


def test_a_state_and_several_tags_narrow_it(db):
    tags = {"customer": "7", "kind": "a b'\"%"}
    wanted = job_in("scheduled", tags=tags)
    job_in("scheduled", tags={"customer": "7"})
    job_in("ready", tags=tags)
    assert ids(Selection(state="scheduled", tags=tags)) == {wanted.pk}


@pytest.mark.parametrize(
    "criterion",
    [
        {"fingerprint": "f"},
        {"reason": "permanent"},
        {"category": "timeout"},
        {"error_class": "KeyError"},
        {"died_from": True},
        {"died_until": True},
    ],
    ids=lambda criterion: next(iter(criterion)),
)
def test_each_fact_of_a_letter_finds_its_job(db, criterion):
    ((name, value),) = criterion.items()
    wanted, other = job_in("dead"), job_in("dead")
    at = server_now()
    if value is True:
        value, later = at, timedelta(hours=1 if name == "died_from" else -1)
        DeadLetter.objects.filter(job=wanted.pk).update(died_at=at + later)
        DeadLetter.objects.filter(job=other.pk).update(died_at=at - later)
    else:
        DeadLetter.objects.filter(job=wanted.pk).update(**{name: value})
    selection = Selection(**{name: value})
    assert ids(selection) == {wanted.pk}
    assert [letter.job_id for letter in selection.letters()] == [wanted.pk]


def test_letters_may_be_chosen_by_their_jobs(db):
    wanted, _ = job_in("dead", priority=50, tags={"a": "b"}), job_in("dead", priority=50)
    for selection in (Selection(priority=50, tags={"a": "b"}), Selection(tags={"a": "b"})):
        assert [letter.job_id for letter in selection.letters()] == [wanted.pk]


def test_a_filter_of_nothing_must_say_that_it_means_everything(db):
    with pytest.raises(InvalidJob, match="everything=True"):
        Selection()
    job = job_in("ready")
    assert ids(Selection(everything=True)) == {job.pk}


def test_a_state_that_is_none_is_refused():
    with pytest.raises(ValueError, match="nonsense"):
        Selection(state="nonsense")


def test_a_queue_is_looked_for_in_its_own_database(settings):
    settings.TASKHARBOR = {**settings.TASKHARBOR, "QUEUE_DATABASES": {"far": "default"}}
    assert Selection(queue="far").using == "default"
    assert Selection(task="t").using == "default"


def test_a_job_that_leaves_the_state_meanwhile_is_left(db, monkeypatch):
    """The filter says ready: one that a worker has taken since is not asked to stop."""
    job, kept = job_in("ready"), job_in("ready")
    found = Selection.jobs

    def taken_meanwhile(self, using=None):
        rows = list(found(self, using).values_list("pk", flat=True))
        held = driver_for("default").reserve(
            "default", now=driver_for("default").now(), lease_for=LEASE
        )
        assert held[0].job.id == job.pk
        return Job.objects.filter(pk__in=rows)

    monkeypatch.setattr(Selection, "jobs", taken_meanwhile)
    assert cancel(Selection(state="ready")) == Moved(moved=1, left={"changed": 1})
    assert Job.objects.get(pk=job.pk).cancel_requested_at is None
    assert Job.objects.get(pk=kept.pk).state == "cancelled"


# -- erase --------------------------------------------------------------------------------------


def test_an_ended_job_forgets_what_it_was_told_and_said(db):
    job = job_in("dead", checkpoint=b"1", tags={"who": "ada"}, progress_message="for ada")
    said = {"error": "ada", "traceback": "ada"}
    DeadLetter.objects.filter(job=job.pk).update(**said)
    Attempt.objects.create(
        job_id=job.pk,
        lease_version=1,
        number=1,
        end=AttemptEnd.FAILED,
        finished_at=server_now(),
        **said,
    )
    assert erase([job.pk]) == Moved(moved=1)
    job.refresh_from_db()
    assert (job.checkpoint, job.tags, job.progress_message, job.last_error) == (None, None, "", "")
    for model in (DeadLetter, Attempt):
        row = model.objects.get(job=job.pk)
        assert (row.error, row.traceback) == ("", "")
    assert job.state == "dead"


def test_erased_arguments_and_results_cannot_be_read(db):
    handle = add.enqueue(1, 2)
    held, driver = hold(handle), driver_for("default")
    ack = Outcome(
        job_id=handle.id, token=held.lease.token, kind=OutcomeKind.ACK, result=b'"secret"'
    )
    assert driver.settle([ack], now=driver.now()) == []
    assert handle.result == "secret"
    erase([handle])
    with pytest.raises(PayloadCorrupt):
        handle.arguments  # noqa: B018  it raises
    with pytest.raises(ResultNotStored):
        handle.result  # noqa: B018


@pytest.mark.parametrize("state", [*WAITING, "inflight"])
def test_a_job_that_has_not_ended_is_not_erased(db, state):
    job = job_in(state)
    before = Job.objects.filter(pk=job.pk).values().get()
    assert erase([job.pk]) == Moved(left={"open": 1})
    assert Job.objects.filter(pk=job.pk).values().get() == before


# -- queues and workers -------------------------------------------------------------------------


def reserved():
    driver = driver_for("default")
    return driver.reserve("default", now=driver.now(), lease_for=LEASE)


def test_a_paused_queue_is_not_reserved_from_until_it_is_resumed(db):
    person = get_user_model().objects.create_user("ada")
    add.enqueue(1)
    row = pause("default", by=person, note="supplier is down")
    assert (row.paused_by, row.note) == (person, "supplier is down")
    assert reserved() == []
    assert resume("default") is True
    assert resume("default") is False
    assert Queue.objects.filter(note="", paused_by=None).exists()
    assert len(reserved()) == 1


def test_a_pause_may_end_by_itself(db):
    add.enqueue(1)
    pause("default", until=server_now() + HOUR)
    assert reserved() == []
    pause("default", until=server_now() - HOUR)
    assert len(reserved()) == 1
    assert resume("default") is False


def test_what_is_no_queue_or_no_time_is_refused(db):
    with pytest.raises(InvalidJob, match="queue"):
        pause("no such name")
    with pytest.raises(InvalidJob, match=r"^until: must be a datetime") as refusal:
        pause("default", until="tomorrow")
    assert refusal.value.field == "until"
    with pytest.raises(InvalidJob, match=r"^queue: "):
        resume("a\0b")


def test_two_who_pause_a_queue_at_once_both_do(race):
    race(*[lambda: pause("default")] * 4)
    assert Queue.objects.count() == 1


def worker_row(name, **columns):
    now = server_now()
    facts = {"host": "h", "pid": 1, "version": "1", "queues": "*"}
    Worker.objects.create(id=name, name=name, started_at=now, last_beat_at=now, **facts, **columns)


def test_workers_are_asked_to_be_quiet_to_go_on_and_to_stop(db):
    worker_row("a")
    worker_row("gone", stopped_at=server_now())
    asked = []
    for request in ("quiet", "", "stop", ""):
        assert ask_workers(["a", "gone", "missing"], request) == (0 if "stop" in asked else 1)
        asked.append(Worker.objects.get(pk="a").request)
    assert asked == ["quiet", "", "stop", "stop"]
    assert Worker.objects.get(pk="gone").request == ""


def test_a_request_that_nobody_knows_is_refused(db):
    with pytest.raises(ValueError, match="dance"), transaction.atomic():
        ask_workers(["a"], "dance")
