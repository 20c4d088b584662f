"""Cancel: waiting jobs at once, running ones asked, or by force without their token."""

from uuid import uuid4

import pytest
from django.db import OperationalError, connection, transaction

from taskharbor_django import JobHandle, cancel
from taskharbor_django.drivers import transient
from taskharbor_django.exceptions import InvalidJob, JobNotInflight
from taskharbor_django.failpoints import armed
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Notice
from taskharbor_django.operations import Moved
from taskharbor_django.operations.selection import by_database
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.values import FailureUpdate, Outcome
from tests.factories import JobFactory, job_in
from tests.testapp.tasks import add

from . import LEASE, Statements, backend_of, hold, server_now, undone, until, waits_for_a_lock

WAITING = ["blocked", "scheduled", "ready"]
ENDED = ["done", "dead", "cancelled"]


def row(job):
    return Job.objects.filter(pk=job.pk).values().get()


def changes(job, before):
    after = row(job)
    return {name: after[name] for name in after if after[name] != before[name]}


def report(held, kind, **facts):
    """Report an outcome as the worker that still believes to hold the job; return the answer."""
    driver = driver_for("default")
    outcome = Outcome(
        job_id=held.job.id, token=held.lease.token, version=held.lease.version, kind=kind, **facts
    )
    return driver.settle([outcome], now=driver.now())


# -- waiting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("state", WAITING)
def test_a_waiting_job_is_cancelled_at_once(db, state, force):
    job = job_in(state)
    before, started = row(job), server_now()
    assert cancel([job.pk], force=force) == Moved(moved=1)
    changed = changes(job, before)
    assert changed.keys() == {"state", "finished_at", "updated_at"}
    assert changed["state"] == "cancelled"
    assert started <= changed["finished_at"] == changed["updated_at"] <= server_now()
    assert not Notice.objects.exists()


def test_a_cancelled_job_is_never_reserved(db):
    handle = add.enqueue(1)
    handle.cancel()
    driver = driver_for("default")
    assert driver.reserve("default", now=driver.now(), lease_for=LEASE) == []


def test_a_cancelled_job_is_no_failure(db):
    job = JobFactory(attempts=1)
    cancel([job.pk])
    assert row(job)["attempts"] == 1
    assert not DeadLetter.objects.exists()
    assert not Attempt.objects.exists()


# -- running ------------------------------------------------------------------------------------


def test_a_running_job_is_asked_and_its_worker_told(db):
    job = job_in("inflight")
    before, started = row(job), server_now()
    assert cancel([job.pk]) == Moved(asked=1)
    changed = changes(job, before)
    assert changed.keys() == {"cancel_requested_at", "updated_at"}
    assert started <= changed["cancel_requested_at"] <= server_now()
    notice = Notice.objects.get()
    assert (notice.token, notice.job_id, notice.kind) == (job.lease, job.pk, "cancel")
    assert started <= notice.created_at


def test_the_lease_of_an_asked_job_is_left_alone(db):
    job = job_in("inflight")
    before = Lease.objects.values().get()
    with Statements() as sent:
        cancel([job.pk])
        cancel([job.pk], force=True)
    assert Lease.objects.values().get() == before
    assert not [q["sql"] for q in sent.captured_queries if Lease._meta.db_table in q["sql"]]


def test_a_normal_return_wins_over_a_request(db):
    handle = add.enqueue(1)
    held = hold(handle)
    handle.cancel()
    assert report(held, OutcomeKind.ACK) == []
    assert handle.refresh().state == "done"


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        (OutcomeKind.RELEASE, {}),
        (OutcomeKind.RETRY, {"update": FailureUpdate(attempts=1)}),
        (OutcomeKind.CANCEL, {}),
    ],
)
def test_an_asked_job_that_is_given_back_ends_cancelled(db, kind, facts):
    handle = add.enqueue(1)
    held = hold(handle)
    handle.cancel()
    assert report(held, kind, **facts) == []
    job = handle.refresh()
    assert (job.state, job.lease) == ("cancelled", None)


# -- by force -----------------------------------------------------------------------------------


def test_force_takes_the_token_of_a_running_job_away(db):
    job = job_in("inflight")
    before = row(job)
    assert cancel([job.pk], force=True) == Moved(moved=1)
    changed = changes(job, before)
    assert changed.keys() == {"state", "lease", "finished_at", "updated_at"}
    assert (changed["state"], changed["lease"]) == ("cancelled", None)
    notice = Notice.objects.get()
    assert (notice.token, notice.job_id, notice.kind) == (job.lease, job.pk, "revoked")
    (attempt,) = Attempt.objects.values("job_id", "lease_version", "end", "category", "error")
    assert attempt == {
        "job_id": job.pk,
        "lease_version": job.lease_version,
        "end": "lost",
        "category": "system",
        "error": "The job was cancelled by force.",
    }


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        (OutcomeKind.ACK, {}),
        (OutcomeKind.ACK, {"keep": False}),
        (OutcomeKind.FAIL, {"reason": "exhausted", "update": FailureUpdate(attempts=3)}),
        (OutcomeKind.RETRY, {"update": FailureUpdate(attempts=1)}),
        (OutcomeKind.RELEASE, {}),
        (OutcomeKind.CANCEL, {}),
    ],
    ids=["ack", "ack and drop", "fail", "retry", "release", "cancel"],
)
def test_nothing_that_a_revoked_worker_reports_is_accepted_or_taken_for_a_repeat(db, kind, facts):
    handle = add.enqueue(1)
    held = hold(handle)
    handle.cancel(force=True)
    before = row(handle.refresh())
    (rejection,) = report(held, kind, **facts)
    assert isinstance(rejection.error, JobNotInflight)
    assert not rejection.repeated
    assert changes(handle.refresh(), before) == {}
    assert not DeadLetter.objects.exists()


def test_a_revoked_worker_cannot_renew_for_its_job(db):
    handle = add.enqueue(1)
    held = hold(handle)
    handle.cancel(force=True)
    driver = driver_for("default")
    now = driver.now()
    with pytest.raises(JobNotInflight):
        driver.extend_lease(handle.id, held.lease.token, now=now, lease_for=LEASE)
    assert driver.extend_leases([held.lease.token], now=now, lease_for=LEASE) == {}


def test_the_neighbours_of_a_revoked_job_keep_their_lease(db):
    one, other = add.enqueue(1), add.enqueue(2)
    driver = driver_for("default")
    held = {
        r.job.id: r for r in driver.reserve("default", now=driver.now(), lease_for=LEASE, limit=2)
    }
    one.cancel(force=True)
    assert report(held[other.id], OutcomeKind.ACK) == []
    assert other.refresh().state == "done"


def test_force_after_asking_cancels(db):
    job = job_in("inflight")
    cancel([job.pk])
    assert cancel([job.pk], force=True) == Moved(moved=1)
    assert sorted(Notice.objects.values_list("kind", flat=True)) == ["cancel", "revoked"]


# -- ended, unknown, again ----------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("state", ENDED)
def test_a_job_that_has_ended_is_left_alone(db, state, force):
    job = job_in(state)
    before = row(job)
    assert cancel([job.pk], force=force) == Moved(left={"ended": 1})
    assert changes(job, before) == {}
    assert not Notice.objects.exists()


def test_every_job_is_counted_once_and_a_missing_one_is_left(db):
    ids = [job_in(state).pk for state in ("ready", "blocked", "inflight", "done", "dead")]
    left = {"ended": 2, "missing": 1}
    assert cancel([*ids, *ids, uuid4()]) == Moved(moved=2, asked=1, left=left)


def test_nothing_to_cancel_is_nothing_cancelled(db):
    assert cancel([]) == Moved()


def test_to_cancel_again_changes_nothing_more(db):
    waiting, running = job_in("ready"), job_in("inflight")
    both = [waiting.pk, running.pk]
    cancel(both)
    first = row(waiting)
    assert cancel(both) == Moved(asked=1, left={"ended": 1})
    assert changes(waiting, first) == {}
    assert row(running)["state"] == "inflight"
    assert cancel(both, force=True) == Moved(moved=1, left={"ended": 1})
    assert cancel(both, force=True) == Moved(left={"ended": 2})


def test_a_generator_of_ids_will_do(db):
    jobs = [JobFactory() for _ in range(3)]
    assert cancel(job.pk for job in jobs) == Moved(moved=3)


def test_a_handle_says_whether_there_was_something_to_cancel(db):
    handle = add.enqueue(1)
    assert handle.cancel() is True
    assert handle.cancel() is False
    assert JobHandle(id=uuid4(), using="default").cancel() is False
    running = JobHandle(id=job_in("inflight").pk, using="default")
    assert running.cancel() is True
    assert running.cancel(force=True) is True
    assert running.cancel(force=True) is False


def test_a_cancel_vanishes_with_the_transaction_of_the_caller(transactional_db):
    waiting, running = job_in("ready"), job_in("inflight")
    with undone():
        cancel([waiting.pk, running.pk])
    assert (row(waiting)["state"], row(running)["cancel_requested_at"]) == ("ready", None)
    assert not Notice.objects.exists()


def test_a_hundred_jobs_take_no_more_statements_than_one(transactional_db):
    def sent_for(count):
        ids = []
        add.enqueue_many([(n,) for n in range(2 * count)], on_batch=ids.extend)
        driver = driver_for("default")
        driver.reserve("default", now=driver.now(), lease_for=LEASE, limit=count)
        with Statements() as sent:
            assert cancel(ids) == Moved(moved=count, asked=count)
        return sent.verbs

    assert sent_for(1) == sent_for(100)


# -- races --------------------------------------------------------------------------------------


def legal(job):
    """What each state demands is checked by the database; here: who holds what."""
    held = Lease.objects.filter(pk=job.lease).exists() if job.lease else False
    return (job.state, held, job.cancel_requested_at is not None)


@pytest.mark.parametrize("force", [False, True])
def test_a_cancel_and_a_claim_end_in_a_legal_state(race, force):
    driver = driver_for("default")
    for _ in range(10):
        handle = add.enqueue(1)
        now = driver.now()

        def claim(now=now):
            return driver.reserve("default", now=now, lease_for=LEASE)

        taken, done = race(claim, lambda handle=handle: cancel([handle.id], force=force))
        job = handle.refresh()
        if done.asked:
            assert legal(job) == ("inflight", True, True)
            assert [each.job.id for each in taken] == [handle.id]
            assert Notice.objects.get(job=handle.id).token == taken[0].lease.token
        else:
            assert done == Moved(moved=1)
            assert legal(job) == ("cancelled", False, False)
            kinds = list(Notice.objects.filter(job=handle.id).values_list("kind", flat=True))
            assert kinds == (["revoked"] if taken else [])
        cancel([handle.id], force=True)


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_claim_does_not_wait_for_a_job_that_is_being_cancelled(race):
    """Forced: the claim runs while the cancel holds the row."""
    handle, driver = add.enqueue(1), driver_for("default")
    taken = []

    def claim_now():
        (found,) = race(lambda: driver.reserve("default", now=driver.now(), lease_for=LEASE))
        taken.extend(found)

    with armed("cancel.locked", claim_now):
        assert cancel([handle.id]) == Moved(moved=1)
    assert taken == []
    assert handle.refresh().state == "cancelled"


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize(("force", "expected"), [(False, Moved(asked=1)), (True, Moved(moved=1))])
def test_a_cancel_waits_for_a_claim_and_sees_what_it_made(race, force, expected):
    """Forced: the cancel is seen to wait before the claim's transaction commits."""
    handle, driver = add.enqueue(1), driver_for("default")
    backends = []

    def claim():
        with transaction.atomic():
            (held,) = driver.reserve("default", now=driver.now(), lease_for=LEASE)
            backends.append(None)
            until(lambda: len(backends) == 2 and waits_for_a_lock(backends[1]))
        return held

    def cancel_then():
        connection.ensure_connection()
        until(lambda: backends == [None])
        backends.append(backend_of(connection))
        return cancel([handle.id], force=force)

    held, done = race(claim, cancel_then)
    assert done == expected
    assert Notice.objects.get().token == held.lease.token
    assert handle.refresh().lease == (None if force else held.lease.token)


def test_a_cancel_that_the_database_undid_is_tried_again(transactional_db, monkeypatch):
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0)
    handle, tries = add.enqueue(1), []

    def stumble():
        tries.append(1)
        if len(tries) < 3:
            raise OperationalError(1213, "Deadlock found when trying to get lock")

    with armed("cancel.locked", stumble):
        assert cancel([handle.id]) == Moved(moved=1)
    assert len(tries) == 3


def test_inside_a_transaction_of_the_caller_there_is_nothing_to_try_again(transactional_db):
    handle, tries = add.enqueue(1), []

    def stumble():
        tries.append(1)
        raise OperationalError(1213, "Deadlock found when trying to get lock")

    with (
        armed("cancel.locked", stumble),
        pytest.raises(OperationalError),
        transaction.atomic(),
    ):
        cancel([handle.id])
    assert len(tries) == 1


def test_who_follows_a_job_is_told_of_its_end(db, monkeypatch):
    """By the driver, in the transaction of the cancel; others end without a word."""
    told = []
    monkeypatch.setattr(driver_for("default"), "on_end", told.append)
    followed, plain = JobFactory(has_dependents=True), JobFactory()
    running = job_in("inflight", has_dependents=True)
    cancel([followed.pk, plain.pk, running.pk])
    assert told == [[followed.pk]]
    cancel([running.pk], force=True)
    assert told == [[followed.pk], [running.pk]]


# -- what stands for a job ---------------------------------------------------------------------


def test_ids_text_handles_and_jobs_may_be_mixed(db):
    handles = [add.enqueue(1, 1) for _ in range(4)]
    one, two, three, four = handles
    assert cancel([one, two.id, str(three.id), four.refresh()]) == Moved(moved=4)


@pytest.mark.parametrize("nonsense", ["", "all", 7, None])
def test_what_is_no_job_is_refused_and_nothing_is_cancelled(db, nonsense):
    handle = add.enqueue(1, 1)
    with pytest.raises(InvalidJob, match="is no job"):
        cancel([handle, nonsense])
    assert handle.state == "ready"


def test_a_single_id_is_refused_with_a_hint(db):
    handle = add.enqueue(1, 1)
    for single in (handle, handle.id, str(handle.id), handle.refresh()):
        with pytest.raises(InvalidJob, match="put a single one into a list"):
            cancel(single)


def test_a_handle_is_looked_for_in_its_own_database():
    """An id says nothing of where its job is kept, a handle and a Job do."""
    here, there = JobHandle(id=uuid4(), using="default"), JobHandle(id=uuid4(), using="other")
    wanted = by_database([here, there, there.id])
    assert wanted == {"default": sorted([here.id, there.id]), "other": [there.id]}
    assert by_database([here, there], using="third") == {"third": sorted([here.id, there.id])}
