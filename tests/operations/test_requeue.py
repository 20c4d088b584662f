"""Requeue, replay and discard: what becomes of dead jobs, and of their letters."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from taskharbor_django import JobHandle, Selection, discard, pause, replay, requeue
from taskharbor_django.exceptions import InvalidJob
from taskharbor_django.failpoints import armed
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import DeadLetter, Dependency, IdempotencyKey, Job
from taskharbor_django.operations import Moved, erase
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.values import FailureUpdate, Outcome
from tests.factories import DeadLetterFactory, JobFactory, job_in
from tests.testapp.tasks import add

from . import LEASE, hold, server_now, undone

OTHERS = ["blocked", "scheduled", "ready", "inflight", "done", "cancelled"]
VERBS = [requeue, replay, discard]
HOUR = timedelta(hours=1)


def died(job, **letter):
    """The dead job again, its letter changed."""
    DeadLetter.objects.filter(open_for=job.pk).update(**letter)
    return job


def buried(**options):
    """A job that a worker has buried."""
    handle = add.using(max_attempts=1, **options).enqueue(1, 2)
    bury(hold(handle))
    return handle


def bury(held):
    driver, now = driver_for("default"), driver_for("default").now()
    update = FailureUpdate(attempts=1, last_error="stumbled", failed_at=now)
    outcome = Outcome(
        job_id=held.job.id,
        token=held.lease.token,
        kind=OutcomeKind.FAIL,
        reason="exhausted",
        update=update,
    )
    # Whoever holds the row just now is let pass, as the worker does.
    while driver.settle([outcome], now=now):
        assert Job.objects.get(pk=held.job.id).state == "inflight"


# -- requeue ------------------------------------------------------------------------------------


def test_a_dead_job_is_the_same_job_again_with_fresh_attempts(db):
    handle = buried(tags={"a": "b"})
    before = handle.refresh()
    Job.objects.filter(pk=handle.id).update(lease_losses=2, handler_misses=3, progress=40)
    started = server_now()
    assert requeue([handle]) == Moved(moved=1)
    job = handle.refresh()
    assert (job.state, job.attempts, job.lease_losses, job.handler_misses) == ("ready", 0, 0, 0)
    assert (job.lease, job.finished_at, job.run_at, job.progress) == (None, None, None, None)
    assert (job.payload, job.tags, job.executions) == (before.payload, {"a": "b"}, 1)
    assert started <= job.available_at <= server_now()
    assert job.expires_at == job.available_at + timedelta(days=7)
    assert hold(handle).job.executions == 2


def test_the_letter_is_closed_with_who_and_why(db):
    person = get_user_model().objects.create_user("ada")
    job = job_in("dead")
    requeue([job.pk], by=person, note="supplier is back")
    letter = DeadLetter.objects.get(job=job.pk)
    assert (letter.open_for, letter.closed_by, letter.note) == (None, person, "supplier is back")
    assert letter.closed_at == Job.objects.get(pk=job.pk).updated_at


def test_a_requeued_job_that_dies_again_has_a_second_letter(db):
    handle = buried()
    requeue([handle])
    bury(hold(handle))
    assert DeadLetter.objects.filter(job=handle.id).count() == 2
    assert DeadLetter.objects.filter(open_for=handle.id).count() == 1


@pytest.mark.parametrize(("most", "left"), [(5, 4), (1, 0), (0, 2)])
def test_one_more_try_leaves_one_attempt(db, most, left):
    job = job_in("dead", max_attempts=most)
    requeue([job.pk], one_more=True)
    assert Job.objects.get(pk=job.pk).attempts == left


def test_another_queue_and_another_time_may_be_asked_for(db):
    one, two, past = job_in("dead"), job_in("dead"), job_in("dead")
    at = server_now() + HOUR
    requeue([one.pk], queue="repair", run_at=at)
    requeue([two.pk], delay=3600)
    requeue([past.pk], run_at=at - 2 * HOUR)
    one, two, past = (Job.objects.get(pk=job.pk) for job in (one, two, past))
    assert (one.state, one.queue, one.run_at, one.available_at) == ("scheduled", "repair", at, at)
    assert one.expires_at == at + timedelta(days=7)
    assert two.state == "scheduled"
    assert abs(two.run_at - at) < timedelta(minutes=1)
    assert past.state == "ready"


def test_a_job_that_died_while_it_waited_for_others_waits_again(db):
    job = died(job_in("dead", dependencies_left=2), reason="lifetime")
    assert requeue([job.pk]) == Moved(moved=1)
    job.refresh_from_db()
    assert (job.state, job.dependencies_left) == ("blocked", 2)


def test_who_died_with_a_dependency_is_left_and_the_answer_names_the_cause(db):
    cause = job_in("dead")
    one = died(job_in("dead", dependencies_left=1), reason="dependency", cause=cause)
    two = died(job_in("dead", dependencies_left=1), reason="dependency", cause=cause)
    answer = requeue([one.pk, two.pk])
    assert answer.left == {"dependency": 2}
    assert answer.causes == (cause.pk,)
    assert Job.objects.get(pk=one.pk).state == "dead"
    assert DeadLetter.objects.filter(open_for=one.pk).exists()


@pytest.mark.parametrize(
    ("asked", "expected"), [({"lifetime": HOUR}, HOUR), ({"lifetime": None}, None)]
)
def test_the_lifetime_of_a_call_begins_anew(db, asked, expected):
    handle = buried(**asked)
    requeue([handle])
    job = handle.refresh()
    assert expected == (job.expires_at and job.expires_at - job.available_at)


def test_a_task_without_an_end_keeps_the_end_of_the_call(db, settings):
    settings.TASKHARBOR = {**settings.TASKHARBOR, "LIFETIME": None}
    handle = buried(lifetime=HOUR)
    requeue([handle])
    job = handle.refresh()
    assert job.expires_at - job.available_at == HOUR


def test_a_job_of_a_task_that_nobody_knows_is_requeued_too(db):
    job = job_in("dead", task="gone.task")
    assert requeue([job.pk]).moved == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queue": "no such name"}, "queue"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001  that is what is wrong
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, "delay"),
    ],
)
def test_what_no_job_can_be_stored_with_is_refused(db, options, field):
    job = job_in("dead")
    with pytest.raises(InvalidJob) as refused:
        requeue([job.pk], **options)
    assert refused.value.field == field
    assert Job.objects.get(pk=job.pk).state == "dead"


@pytest.mark.parametrize("verb", [requeue, replay])
def test_a_queue_of_another_database_is_refused(db, monkeypatch, verb):
    monkeypatch.setattr("taskharbor_django.operations.terms.alias_of", {"far": "other"}.get)
    job = job_in("dead")
    with pytest.raises(InvalidJob, match="another database"):
        verb([job.pk], queue="far")
    assert Job.objects.get().state == "dead"


def test_a_handle_requeues_its_job(db):
    handle = buried()
    assert handle.requeue(note="again") is True
    assert handle.requeue() is False


# -- replay -------------------------------------------------------------------------------------


def test_a_replay_is_a_new_job_with_the_old_payload_and_terms(db):
    handle = buried(
        tags={"a": "b"}, priority=50, correlation_id="c", timeout=HOUR / 4, queue="mail"
    )
    old = handle.refresh()
    answer = replay([handle], note="with new code")
    assert (answer.moved, len(answer.made)) == (1, 1)
    new = Job.objects.get(pk=answer.made[0])
    assert (new.replay_of_id, new.state, new.attempts, new.executions) == (old.pk, "ready", 0, 0)
    for same in ("task", "queue", "payload", "priority", "tags", "correlation_id", "timeout"):
        assert getattr(new, same) == getattr(old, same), same
    assert new.idempotency_key is None
    assert new.expires_at - new.available_at == timedelta(days=7)
    old.refresh_from_db()
    assert (old.state, old.lease) == ("cancelled", None)
    letter = DeadLetter.objects.get(job=old.pk)
    assert (letter.open_for, letter.note) == (None, "with new code")


def test_a_kept_original_stays_dead(db):
    job = job_in("dead")
    assert replay([job.pk], keep=True).moved == 1
    assert replay([job.pk], keep=True).moved == 1
    assert Job.objects.get(pk=job.pk).state == "dead"
    assert DeadLetter.objects.filter(open_for=job.pk).exists()
    assert Job.objects.filter(replay_of=job.pk).count() == 2


def test_a_replay_may_have_a_new_key(db):
    one, two = job_in("dead"), job_in("dead")
    answer = replay([one.pk, two.pk], idempotency_key="again-{id}")
    keys = {new.idempotency_key for new in Job.objects.filter(pk__in=answer.made)}
    assert keys == {f"again-{one.pk}", f"again-{two.pk}"}
    assert IdempotencyKey.objects.count() == 2
    assert replay([job_in("dead").pk], idempotency_key="single").moved == 1


def test_what_takes_results_of_others_is_requeued_instead(db):
    job = job_in("dead", input="list")
    assert replay([job.pk]) == Moved(left={"takes_results": 1})
    assert Job.objects.get().state == "dead"


def test_one_key_for_several_is_refused(db):
    with pytest.raises(InvalidJob, match=r"put \{id\} into it"):
        replay([job_in("dead").pk, job_in("dead").pk], idempotency_key="same")
    with pytest.raises(InvalidJob, match=r"put \{id\} into it"):
        replay(Selection(everything=True), idempotency_key="same")
    assert Job.objects.filter(state="dead").count() == 2


def test_a_key_that_stands_for_another_job_replays_nothing(db):
    add.using(idempotency_key="taken").enqueue(1, 2)
    job = job_in("dead")
    assert replay([job.pk], idempotency_key="taken") == Moved(left={"key_used": 1})
    assert Job.objects.get(pk=job.pk).state == "dead"


def test_a_replay_may_go_to_another_queue_at_another_time(db):
    at = server_now() + HOUR
    answer = replay([job_in("dead").pk], queue="repair", run_at=at)
    new = Job.objects.get(pk=answer.made[0])
    assert (new.queue, new.state, new.run_at) == ("repair", "scheduled", at)


# -- who, and why ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [*VERBS, pause], ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("note", ["a\0b", "\ud800", None, 7], ids=ascii)
def test_a_note_that_cannot_be_stored_is_refused(db, verb, note):
    which = "mail" if verb is pause else [job_in("dead").pk]
    with pytest.raises(InvalidJob, match=r"^note: ") as refusal:
        verb(which, note=note)
    assert refusal.value.field == "note"


@pytest.mark.parametrize("verb", [*VERBS, pause], ids=lambda verb: verb.__name__)
@pytest.mark.parametrize(
    "by",
    ["me", "\0", 2**70, float("inf"), object(), Job()],
    ids=["text", "NUL", "large", "infinite", "thing", "job"],
)
def test_nobody_can_be_named_who_is_no_user(db, verb, by):
    which = "mail" if verb is pause else [job_in("dead").pk]
    with pytest.raises(InvalidJob, match=r"^by: ") as refusal:
        verb(which, by=by)
    assert refusal.value.field == "by"


@pytest.mark.parametrize("by", [None, AnonymousUser(), 7, "7"])
def test_a_user_or_an_id_or_nobody_can_be_named(db, by):
    assert discard([job_in("dead").pk], by=by).moved == 1


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("which", ["abc", uuid4(), 7, None])
def test_a_single_job_is_put_into_a_list(db, verb, which):
    with pytest.raises(InvalidJob, match="put a single one into a list"):
        verb(which)


def test_also_a_handle_is(db):
    with pytest.raises(InvalidJob, match="put a single one into a list"):
        replay(buried())


# -- discard ------------------------------------------------------------------------------------


def test_a_discarded_job_is_cancelled_and_keeps_its_history(db):
    job = job_in("dead")
    assert discard([job.pk], by=None, note="nobody wants it") == Moved(moved=1)
    job.refresh_from_db()
    assert (job.state, job.lease, job.last_error) == ("cancelled", None, "stumbled")
    letter = DeadLetter.objects.get(job=job.pk)
    assert (letter.open_for, letter.note) == (None, "nobody wants it")


def test_a_discarded_job_does_not_come_back(db):
    job = job_in("dead")
    discard([job.pk])
    assert requeue([job.pk]) == Moved(left={"not_dead": 1})


# -- all three ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", OTHERS)
def test_a_job_that_is_not_dead_is_left_alone(db, verb, state):
    job = job_in(state)
    before = Job.objects.filter(pk=job.pk).values().get()
    assert verb([job.pk]) == Moved(left={"not_dead": 1})
    assert Job.objects.filter(pk=job.pk).values().get() == before
    assert Job.objects.count() == 1


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_job_is_counted(db, verb):
    assert verb([uuid4(), job_in("dead").pk]).left == {"missing": 1}


@pytest.mark.parametrize("verb", VERBS)
def test_to_do_it_again_changes_nothing_more(db, verb):
    job = job_in("dead")
    assert verb([job.pk]).moved == 1
    jobs = Job.objects.count()
    assert verb([job.pk]) == Moved(left={"not_dead": 1})
    assert Job.objects.count() == jobs


@pytest.mark.parametrize("verb", VERBS)
def test_it_vanishes_with_the_transaction_of_the_caller(transactional_db, verb):
    job = job_in("dead")
    with undone():
        assert verb([job.pk]).moved == 1
    assert Job.objects.get().state == "dead"
    assert DeadLetter.objects.filter(open_for=job.pk).exists()


@pytest.mark.parametrize("verb", [requeue, replay])
def test_erased_arguments_are_never_run(db, verb):
    job = job_in("dead")
    assert erase([job.pk]).moved == 1
    assert verb([job.pk]) == Moved(left={"erased": 1})
    assert Job.objects.get().state == "dead"


@pytest.mark.parametrize(
    ("verb", "state"), [(requeue, "blocked"), (discard, "cancelled"), (replay, "cancelled")]
)
def test_who_died_with_a_job_is_moved_with_it(transactional_db, verb, state):
    job = add.using(max_attempts=1).enqueue(1, 2)
    dependent = Job.objects.get(pk=add.using(after=job).enqueue(1, 2).id)
    bury(hold(job))
    with undone():
        verb([job.id])
        dependent.refresh_from_db()
        assert dependent.state == state
    dependent.refresh_from_db()
    assert dependent.state == "dead"


@pytest.mark.parametrize("verb", VERBS)
def test_who_depends_on_a_job_that_nobody_follows_is_not_looked_for(db, verb):
    job = job_in("dead")
    with CaptureQueriesContext(connection) as asked:
        assert verb([job.pk]).moved == 1
    assert not [it["sql"] for it in asked if Dependency._meta.db_table in it["sql"]]


# -- a filter -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_filter_takes_what_matches_and_nothing_else(db, verb):
    wanted = [died(job_in("dead"), fingerprint="f1") for _ in range(3)]
    other = died(job_in("dead"), fingerprint="f2")
    assert verb(Selection(fingerprint="f1")) == Moved(moved=3, made=verb_made(verb, wanted))
    assert Job.objects.get(pk=other.pk).state == "dead"


def verb_made(verb, wanted):
    """The new jobs in the order of the old ones; only a replay makes some."""
    if verb is not replay:
        return ()
    made = dict(Job.objects.exclude(replay_of=None).values_list("replay_of", "pk"))
    ids = Job.objects.filter(pk__in=made).order_by("pk").values_list("pk", flat=True)
    return tuple(made[old] for old in ids)


@pytest.mark.parametrize("verb", VERBS)
def test_a_filter_goes_over_all_pages_and_batches(db, verb, monkeypatch):
    monkeypatch.setattr("taskharbor_django.operations.batches.BATCH", 2)
    monkeypatch.setattr("taskharbor_django.operations.batches.PAGE", 4)
    for _ in range(9):
        job_in("dead")
    assert verb(Selection(state="dead")).moved == 9


def test_a_limit_stops_and_the_answer_says_where_to_go_on(db, monkeypatch):
    monkeypatch.setattr("taskharbor_django.operations.batches.BATCH", 2)
    for _ in range(5):
        job_in("dead")
    first = requeue(Selection(everything=True), limit=3)
    assert (first.moved, first.after is None) == (3, False)
    second = requeue(Selection(everything=True), limit=3, after=first.after)
    assert (second.moved, second.left, second.after) == (2, {}, None)


def test_a_limit_of_nothing_is_refused(db):
    with pytest.raises(ValueError, match="at least 1"):
        requeue(Selection(everything=True), limit=0)


def test_each_batch_is_a_transaction_of_its_own(transactional_db, monkeypatch):
    monkeypatch.setattr("taskharbor_django.operations.batches.BATCH", 2)
    for _ in range(5):
        job_in("dead")
    calls = []

    def stop_at_the_third():
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("power cut")

    with armed("requeue.locked", stop_at_the_third), pytest.raises(RuntimeError):
        requeue(Selection(everything=True))
    assert Job.objects.filter(state="ready").count() == 4
    assert requeue(Selection(everything=True)) == Moved(moved=1, left={"not_dead": 4})


# -- races --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("other", VERBS)
def test_of_two_at_the_same_instant_one_moves_each_job(race, verb, other):
    for _ in range(5):
        jobs = [job_in("dead").pk for _ in range(4)]
        one, two = race(lambda jobs=jobs: verb(jobs), lambda jobs=jobs: other(jobs))
        assert one.moved + two.moved == 4
        assert one.left.get("not_dead", 0) + two.left.get("not_dead", 0) == 4
        assert not DeadLetter.objects.filter(open_for__in=jobs).exists()


@pytest.mark.parametrize("verb", VERBS)
def test_two_that_go_over_a_filter_at_once_move_each_job_once(race, verb):
    for _ in range(30):
        job_in("dead")
    every = Selection(state="dead")
    one, two = race(lambda: verb(every), lambda: verb(every))
    again = verb(every).moved  # what both skipped because the other held it and then left
    assert one.moved + two.moved + again == 30
    assert not DeadLetter.objects.filter(open_for__isnull=False).exists()


def test_a_requeue_and_a_late_report_of_the_old_worker_do_not_meet(db):
    """The token that ended it is gone: what the old worker says again is refused or a repeat."""
    handle = add.using(max_attempts=1).enqueue(1)
    held = hold(handle)
    bury(held)
    requeue([handle])
    driver = driver_for("default")
    outcome = Outcome(job_id=handle.id, token=held.lease.token, kind=OutcomeKind.ACK)
    (rejection,) = driver.settle([outcome], now=driver.now())
    assert not rejection.repeated
    assert handle.refresh().state == "ready"


def test_a_settle_that_buries_and_a_requeue_at_the_same_instant(race):
    for _ in range(10):
        handle = add.using(max_attempts=1).enqueue(1)
        held = hold(handle)
        _, answer = race(lambda held=held: bury(held), lambda handle=handle: requeue([handle]))
        job = handle.refresh()
        assert job.state == ("ready" if answer.moved else "dead")
        assert DeadLetter.objects.filter(open_for=handle.id).exists() is not bool(answer.moved)
        discard([handle])
        handle.cancel()


def test_a_claim_at_the_same_instant_takes_a_requeued_job_whole_or_not(race):
    driver = driver_for("default")
    for _ in range(10):
        job = JobFactory(dead=True, lease_losses=2)
        taken, answer = race(
            lambda: driver.reserve("default", now=driver.now(), lease_for=LEASE),
            lambda job=job: requeue([job.pk]),
        )
        assert answer.moved == 1
        job.refresh_from_db()
        assert job.state == ("inflight" if taken else "ready")
        assert job.lease_losses == 0
        JobHandle(id=job.pk, using="default").cancel(force=True)


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize("verb", VERBS)
def test_a_filter_skips_what_somebody_holds_and_says_so(race, verb):
    free, held = job_in("dead"), job_in("dead")

    def run():
        return verb(Selection(state="dead"))

    with transaction.atomic():
        list(Job.objects.select_for_update().filter(pk=held.pk))
        (answer,) = race(run)
    assert (answer.moved, answer.left) == (1, {"locked": 1})
    assert Job.objects.get(pk=free.pk).state != "dead"
    assert Job.objects.get(pk=held.pk).state == "dead"


def test_an_entry_that_was_closed_before_is_not_touched(db):
    letter = DeadLetterFactory(job=job_in("dead"), closed=True, note="first")
    requeue([letter.job_id], note="second")
    notes = DeadLetter.objects.filter(job=letter.job_id).values_list("note", flat=True)
    assert sorted(notes) == ["first", "second"]
