"""Queues in two databases: where each verb works, and what may not be in both."""

import contextlib
import itertools
from dataclasses import replace
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.handlers.base import BaseHandler
from django.core.management import call_command
from django.db import OperationalError, connections, transaction

from taskharbor_django import (
    JobHandle,
    cancel,
    chain,
    pause,
    registry,
    replay,
    requeue,
    resume,
    schedule,
    schedules,
    task,
    update,
)
from taskharbor_django.exceptions import (
    InvalidJob,
    InvalidWorkflow,
    JobNotFound,
    TransactionElsewhere,
    UnknownSchedule,
)
from taskharbor_django.lifecycle import DeadReason, OutcomeKind
from taskharbor_django.models import DeadLetter, Job, Queue, Schedule, Workflow
from taskharbor_django.operations import decide
from taskharbor_django.operations.callback import CALLBACK_TASK
from taskharbor_django.operations.databases import PATIENCE, databases, trouble_with
from taskharbor_django.operations.prune import prune
from taskharbor_django.operations.schedules import (
    create_schedule,
    pause_schedule,
    put_in_step,
    run_schedule_now,
)
from taskharbor_django.operations.storage import aliases, driver_for
from taskharbor_django.operations.tick import tick
from taskharbor_django.schedules import declare
from taskharbor_django.testing import drain
from taskharbor_django.values import FailureUpdate
from tests.conftest import second_database
from tests.factories import DeadLetterFactory, JobFactory, job_in
from tests.testapp import api_tasks
from tests.testapp.models import Ledger
from tests.testapp.tasks import add, echo

from . import Undo, hold, undone

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
far_add = add.using(queue="far")


def stored(using):
    return list(Job.objects.using(using).values_list("queue", flat=True))


def dead(handle):
    """The same job after its last attempt."""
    driver = driver_for(handle.using)
    outcome = replace(
        decide.outcome(OutcomeKind.FAIL, hold(handle)),
        reason=DeadReason.PERMANENT,
        update=FailureUpdate(attempts=1, last_error="broken"),
    )
    assert driver.settle([outcome], now=driver.now()) == []
    return handle


# -- transactions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda: far_add.enqueue(1),
        lambda: far_add.enqueue_many([(1,), (2,)]),
        lambda: chain(far_add.s(1)).enqueue(),
        lambda: async_to_sync(far_add.aenqueue)(1),
        lambda: far_add.using(idempotency_key="k").enqueue(1),
        lambda: api_tasks.add.using(queue_name="far").enqueue(1),
    ],
    ids=["enqueue", "many", "workflow", "async", "key", "django.tasks"],
)
def test_a_transaction_of_another_database_is_refused_by_name(db, far, settings, ask):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
    with transaction.atomic():
        Ledger.objects.create(name="kept")
        with pytest.raises(TransactionElsewhere, match=r"base 'far'.* one of 'default'") as it:
            ask()
        assert (it.value.using, it.value.open_in, it.value.queue) == ("far", ["default"], "far")
    assert Ledger.objects.exists()  # its transaction can go on
    assert not Job.objects.using(far).exists()


def test_the_other_way_round_it_is_refused_too(db, far):
    with transaction.atomic(using=far), pytest.raises(TransactionElsewhere, match="one of 'far'"):
        add.enqueue(1)
    assert not Job.objects.exists()


def test_without_a_transaction_or_with_its_own_the_job_is_stored(db, far):
    far_add.enqueue(1)
    with transaction.atomic(using=far):
        far_add.enqueue(2)
    with transaction.atomic(), transaction.atomic(using=far):
        far_add.enqueue(3)
        add.enqueue(4)
    with undone(far):
        far_add.enqueue(5)
    assert (stored(far), stored("default")) == (["far"] * 3, ["default"])


def test_the_transaction_of_a_test_case_is_not_the_caller_s(db, far):
    far_add.enqueue(1)
    with transaction.atomic(), pytest.raises(TransactionElsewhere):
        far_add.enqueue(2)
    assert stored(far) == ["far"]


def test_requests_that_are_transactions_are_transactions(transactional_db, far, rf, monkeypatch):
    def view(request):
        return request.ask(1)

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    request, atomic = rf.get("/"), BaseHandler().make_view_atomic(view)
    request.ask = far_add.enqueue
    with pytest.raises(TransactionElsewhere):
        atomic(request)
    request.ask = far_add.enqueue_on_commit
    atomic(request)
    assert stored(far) == ["far"]


def test_on_commit_waits_for_a_transaction_of_another_database(transactional_db, far):
    with transaction.atomic():
        far_add.enqueue_on_commit(1)
        chain(far_add.s(2)).enqueue_on_commit()
        assert stored(far) == []
    assert stored(far) == ["far"] * 2
    with undone():
        far_add.enqueue_on_commit(3)
    assert stored(far) == ["far"] * 2


def test_on_commit_waits_for_whatever_transaction_is_open(transactional_db, far):
    """Not for one of the default database, on which there is none."""
    with transaction.atomic(using=far):
        add.enqueue_on_commit(1)
        assert stored("default") == []
    assert stored("default") == ["default"]
    with undone(far):
        add.enqueue_on_commit(2)
    assert stored("default") == ["default"]


def test_on_commit_waits_for_all_of_them(transactional_db, far):
    for outer, lost in itertools.product(["default", far], ["", "default", far]):
        inner = {"default": far, far: "default"}[outer]
        with contextlib.suppress(Undo), transaction.atomic(using=outer):
            with contextlib.suppress(Undo), transaction.atomic(using=inner):
                add.enqueue_on_commit(1)
                if lost == inner:
                    raise Undo
            assert stored("default") == []
            if lost == outer:
                raise Undo
        assert stored("default") == ([] if lost else ["default"])
        Job.objects.all().delete()


def test_on_commit_without_a_transaction_asks_nothing_of_other_databases(transactional_db, far):
    connections[far].close()
    add.enqueue_on_commit(1)
    assert connections[far].connection is None
    assert stored("default") == ["default"]


def test_transactions_by_hand_cannot_be_waited_for(transactional_db, far):
    transaction.set_autocommit(False)
    try:
        with pytest.raises(transaction.TransactionManagementError, match="on_commit"):
            far_add.enqueue_on_commit(1)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_an_atomic_task_cannot_leave_a_job_in_another_database(db, far, monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    @task(name="tests.atomic_elsewhere", atomic=True, max_attempts=1)
    def careless():
        far_add.enqueue(1)

    @task(name="tests.elsewhere")
    def careful():
        far_add.enqueue(2)

    careless.enqueue()
    careful.enqueue()
    drained = drain("default")
    assert (drained.done, drained.dead) == (1, 1)
    assert isinstance(drained.errors[0], TransactionElsewhere)
    (child,) = Job.objects.using(far).all()
    assert child.parent_id == drained.jobs[1].id


# -- one call, one database ----------------------------------------------------------------------


def test_what_is_stored_together_is_stored_in_one(db, far):
    mixed = itertools.chain.from_iterable([(add.call(1), far_add.call(2))])
    refused = "far is kept in another database, 'far' and not 'default'"
    with pytest.raises(InvalidJob, match=refused):
        add.enqueue_many(mixed)
    with pytest.raises(InvalidJob, match=refused):
        chain(add.s(1), far_add.s()).enqueue()
    with pytest.raises(InvalidJob, match=refused):
        chain(add.s(1), far_add.s()).enqueue_on_commit()
    assert stored("default") == stored(far) == []
    assert not Workflow.objects.exists()


def test_a_job_of_another_database_cannot_be_waited_for(db, far):
    there = far_add.enqueue(1)
    for job in (there, there.refresh()):
        with pytest.raises(InvalidWorkflow, match="after: a job of another database"):
            add.using(after=job).enqueue(2)
    assert far_add.using(after=there.refresh()).enqueue(2).state == "blocked"


def test_a_job_moves_to_no_queue_of_another_database(db, far):
    waiting, gone = add.enqueue(1), job_in("dead")
    refused = "queue: far is kept in another database, 'far' and not 'default'"
    for move in (
        lambda: waiting.update(queue="far"),
        lambda: update([waiting], queue="far"),
        lambda: requeue([gone], queue="far"),
        lambda: replay([gone], queue="far"),
    ):
        with pytest.raises(InvalidJob, match=refused):
            move()
    assert (waiting.state, JobHandle.of(gone.pk).state) == ("ready", "dead")


# -- verbs where the job is ----------------------------------------------------------------------


def test_handles_know_their_database_and_ids_do_not(db, far):
    there = far_add.enqueue(1)
    assert there.using == far
    with pytest.raises(JobNotFound):
        JobHandle.of(there.id).refresh()
    assert JobHandle.of(there.id, using=far).update(priority=50)
    assert (there.refresh().priority, there.cancel()) == (50, True)


def test_one_call_reaches_jobs_of_both(db, far):
    near, there = add.enqueue(1), far_add.enqueue(1)
    assert cancel([near, there]).moved == 2
    assert {near.state, there.state} == {"cancelled"}


def test_dead_jobs_are_repaired_where_they_are(db, far):
    first, second = dead(far_add.enqueue(1)), dead(far_add.enqueue(2))
    user = get_user_model().objects.create_user("operator")
    assert requeue([first], by=user, note="again").moved == 1
    (made,) = replay([second], by=user).made
    assert JobHandle.of(made, using=far).state == "ready"
    assert set(DeadLetter.objects.using(far).values_list("closed_by", flat=True)) == {user.pk}
    assert not Job.objects.exists()


def test_queues_are_paused_where_they_are(db, far):
    pause("far")
    assert (Queue.objects.count(), Queue.objects.using(far).count()) == (0, 1)
    far_add.enqueue(1)
    assert len(drain("far")) == 0
    resume("far")
    assert len(drain("far")) == 1


def test_a_callback_is_stored_with_the_end_of_its_job(db, far, settings):
    settings.TASKHARBOR = {
        **settings.TASKHARBOR,
        "CALLBACK_HOSTS": ["hooks.example.com"],
        "CALLBACK_SECRET": "s3cret",
    }
    job = far_add.using(callback_url="https://hooks.example.com/").enqueue(1)
    driver = driver_for(far)
    assert driver.settle([decide.outcome(OutcomeKind.ACK, hold(job))], now=driver.now()) == []
    assert Job.objects.using(far).filter(task=CALLBACK_TASK, queue="far").count() == 1
    assert not Job.objects.exists()


def test_pruning_one_leaves_the_other(db, far):
    old = job_in("done")
    there = JobFactory.build(done=True, queue="far", finished_at=old.finished_at)
    there.save(using=far, force_insert=True)
    later = old.finished_at + timedelta(days=30)
    assert sum(batch.count for batch in prune(driver_for(far), now=later)) == 1
    assert (Job.objects.count(), Job.objects.using(far).count()) == (1, 0)


# -- schedules -----------------------------------------------------------------------------------


def test_a_schedule_is_kept_and_ticks_with_its_queue(db, far):
    row = create_schedule(declare("hourly", echo.name, fixed_rate=HOUR, queue="far"))
    assert row._state.db == far
    later = driver_for(far).now() + DAY
    assert (tick(driver_for("default"), now=later), tick(driver_for(far), now=later)) == (0, 1)
    assert (stored("default"), stored(far)) == ([], ["far"])


def test_a_schedule_is_found_by_its_name_wherever_it_is(db, far):
    create_schedule(declare("hourly", echo.name, fixed_rate=HOUR, queue="far"))
    assert run_schedule_now("hourly").using == far
    assert pause_schedule("hourly")
    with pytest.raises(UnknownSchedule, match="hourly"):
        pause_schedule("hourly", using="default")


def test_a_declared_schedule_moves_with_its_queue(db, far, settings, monkeypatch):
    monkeypatch.setattr(schedules, "_declared", {})
    schedule(cron="0 3 * * *", name="nightly", queue="far")(echo)
    here, there = driver_for("default"), driver_for(far)
    elsewhere = settings.TASKHARBOR
    settings.TASKHARBOR = {"NOTIFY": False}
    assert put_in_step(here).added == ("nightly",)
    settings.TASKHARBOR = elsewhere
    assert put_in_step(driver_for(there.using)).added == ("nightly",)
    assert put_in_step(driver_for(here.using)).disabled == ("nightly",)
    assert run_schedule_now("nightly").using == far
    assert Schedule.objects.get().disabled_at is not None


# -- side by side --------------------------------------------------------------------------------


def test_all_are_seen_side_by_side(db, far):
    add.enqueue(1)
    far_add.enqueue_many([(1,), (2,)])
    assert aliases() == ["default", far]
    near, there = databases()
    assert [(it.alias, it.counts["ready"].number, it.away) for it in (near, there)] == [
        ("default", 1, ""),
        (far, 2, ""),
    ]


def test_one_that_is_away_is_said_to_be(db, far_away):
    near, there = databases()
    assert (near.away, "unable to open" in there.away) == ("", True)
    with pytest.raises(OperationalError):
        far_add.enqueue(1)
    assert add.enqueue(1).state == "ready"


@pytest.mark.parametrize("pool", [False, True])
def test_a_look_is_impatient_and_leaves_the_connection_as_it_was(db, monkeypatch, pool):
    connection = connections["default"]
    before = {**connection.settings_dict, "OPTIONS": {"pool": True} if pool else {}}
    asked = []

    def refuse():
        asked.append(connection.settings_dict["OPTIONS"].get("connect_timeout"))
        raise OperationalError

    with monkeypatch.context() as patched:
        patched.setattr(connection, "settings_dict", before)
        patched.setattr(connection, "vendor", "postgresql")
        patched.setattr(connection, "cursor", refuse)
        assert trouble_with("default") == "OperationalError"
        assert asked == [None if pool else PATIENCE]
        assert connection.settings_dict is before


# -- routers and migrations ----------------------------------------------------------------------


class JobsApart:
    """Keeps the app, and nothing else, in the second database."""

    def db_for_write(self, model, **hints):
        return "far" if model._meta.app_label == "taskharbor" else None

    db_for_read = db_for_write

    def allow_migrate(self, db, app_label, **hints):
        return (db == "far") == (app_label == "taskharbor")


def test_migrate_makes_the_tables_where_the_router_sends_them(db, tmp_path, settings):
    settings.DATABASE_ROUTERS = [JobsApart()]
    with second_database(tmp_path / "far.sqlite3") as alias:
        call_command("migrate", "taskharbor", database=alias, verbosity=0)
        there = set(connections[alias].introspection.table_names())
        assert "taskharbor_job" in there
        assert not {"auth_user", "testapp_ledger"} & there
        handle = add.enqueue(1)
        assert (handle.using, drain().done) == (alias, 1)
        settings.DATABASE_ROUTERS = []


def test_a_user_is_deleted_where_there_is_no_table_of_ours(db, far, settings, monkeypatch):
    settings.DATABASE_ROUTERS = [JobsApart()]
    asked = []
    with connections["default"].execute_wrapper(
        lambda execute, sql, *rest: (asked.append(sql), execute(sql, *rest))[1]
    ):
        get_user_model().objects.create_user("gone").delete()
    assert not [sql for sql in asked if "taskharbor_" in sql]


def test_a_user_who_is_deleted_is_forgotten(db):
    user = get_user_model().objects.create_user("gone")
    pause("mail", by=user)
    DeadLetterFactory(closed=True, closed_by=user)
    user.delete()
    assert Queue.objects.get().paused_by_id is None
    assert DeadLetter.objects.get().closed_by_id is None
