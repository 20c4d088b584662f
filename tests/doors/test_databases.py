"""Commands, metrics, the task backend and the testing kit where queues are in two databases."""

import contextlib
import io
import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections, transaction
from django.test.testcases import DatabaseOperationForbidden

from taskharbor_django.backend.api import TaskResultDoesNotExist, task_backends
from taskharbor_django.exceptions import TransactionElsewhere
from taskharbor_django.models import Job, Queue, Worker
from taskharbor_django.operations.schedules import create_schedule, run_schedule_now
from taskharbor_django.schedules import declare
from taskharbor_django.testing import (
    assert_enqueued,
    assert_not_enqueued,
    capture_on_commit,
    drain,
    run_inline,
)
from tests.factories import utcnow
from tests.testapp import api_tasks
from tests.testapp.models import Ledger
from tests.testapp.tasks import add, echo

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
far_add = add.using(queue="far")


def told(*arguments, code=0):
    out, ended = io.StringIO(), 0
    try:
        call_command("taskharbor", *map(str, arguments), "--json", stdout=out, stderr=io.StringIO())
    except SystemExit as end:
        ended = end.code
    assert ended == code, out.getvalue()
    return json.loads(out.getvalue())


def refused(*arguments):
    with pytest.raises(CommandError) as refusal:
        call_command("taskharbor", *map(str, arguments), stdout=io.StringIO())
    return str(refusal.value)


# -- commands ------------------------------------------------------------------------------------


def test_a_command_looks_into_the_database_of_its_queue_or_the_one_that_is_named(far):
    add.enqueue(1)
    job = far_add.enqueue(1)
    assert [row["queue"] for row in told("list")["rows"]] == ["default"]
    for named in (["--queue", "far"], ["--database", far]):
        assert [row["id"] for row in told("list", *named)["rows"]] == [str(job.id)]
    assert told("inspect", job.id)["queue"] == "far"
    assert told("cancel", job.id, "--database", far)["cancelled"] == 1
    assert told("cancel", "--queue", "far", code=1)["cancelled"] == 0


def test_a_job_is_enqueued_where_its_queue_is_or_not_at_all(far):
    told("enqueue", add.name, "--args", "[1]", "--queue", "far")
    assert Job.objects.using(far).count() == 1
    text = refused("enqueue", add.name, "--args", "[1]", "--database", far)
    assert "the queue default is kept in 'default'" in text
    assert not Job.objects.exists()


def test_a_queue_is_paused_for_a_while_by_the_clock_of_its_database(far, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "taskharbor_django.management.subcommands.queues.driver_for",
        lambda using: asked.append(using) or FakeDriver(),
    )
    told("queues", "pause", "far", "--for", "60")
    assert asked == [far]
    assert Queue.objects.using(far).get().paused_until is not None


class FakeDriver:
    def now(self):
        return utcnow()


def test_jobs_of_a_schedule_are_looked_for_where_its_queue_is(far):
    create_schedule(declare("hourly", echo.name, fixed_rate=HOUR, queue="far"))
    run_schedule_now("hourly")
    assert len(told("list", "--schedule", "hourly", "--queue", "far")["rows"]) == 1
    assert "There is no schedule hourly" in refused("list", "--schedule", "hourly")
    assert told("schedules", "run-now", "hourly", code=1)["created"] is False


def test_health_looks_into_all_of_them(far):
    for using in ("default", far):
        Worker.objects.using(using).create(
            id=f"w-{using}", pid=1, slots=1, started_at=utcnow(), last_beat_at=utcnow()
        )
    rows = told("health")["rows"]
    assert {row["check"] for row in rows} >= {"default: workers", "far: workers"}
    Worker.objects.using(far).all().delete()
    rows = told("health", code=1)["rows"]
    assert [row["check"] for row in rows if not row["ok"]] == ["far: workers"]
    assert [row["check"] for row in told("health", "--database", "default")["rows"]][-1] == (
        "schedules"
    )


def test_health_says_which_one_is_away_and_goes_on_with_the_others(far_away):
    rows = told("health", "--min-workers", "0", code=3)["rows"]
    assert [row["check"] for row in rows if not row["ok"]] == ["far: database"]
    assert "default: workers" in {row["check"] for row in rows}


# -- metrics -------------------------------------------------------------------------------------


def test_a_database_that_is_away_takes_no_other_s_figures_with_it(far_away):
    metrics = pytest.importorskip("taskharbor_django.metrics")
    add.enqueue(1)
    text = metrics.exposition().decode()
    assert 'taskharbor_database_up{database="default"} 1.0' in text
    assert 'taskharbor_database_up{database="far"} 0.0' in text
    assert 'taskharbor_queue_jobs{database="default",queue="default",state="ready"} 1.0' in text
    assert 'taskharbor_workers{database="far"}' not in text


# -- Django's own API ----------------------------------------------------------------------------


@pytest.fixture
def any_queue(settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}


def test_a_result_is_found_in_whichever_database_it_is(far, any_queue):
    there = api_tasks.add.using(queue_name="far").enqueue(1)
    near = api_tasks.add.enqueue(2)
    drain()
    assert task_backends["default"].get_result(there.id).return_value == 1
    assert task_backends["default"].get_result(near.id).return_value == 2


def test_a_result_is_found_while_another_database_is_away(far_away, any_queue):
    near = api_tasks.add.enqueue(2)
    assert task_backends["default"].get_result(near.id).args == [2]
    with pytest.raises(OperationalError):  # it may be there: nobody can say
        task_backends["default"].get_result("4f3c1c52-6a4f-4f3e-a2a3-9d1e63a8a001")


def test_a_result_that_is_nowhere_does_not_exist(far, any_queue):
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result("4f3c1c52-6a4f-4f3e-a2a3-9d1e63a8a001")


# -- transactions by hand ------------------------------------------------------------------------


@contextlib.contextmanager
def by_hand(using="default"):
    """Nothing is committed inside but by hand."""
    transaction.set_autocommit(False, using=using)
    try:
        yield
    finally:
        transaction.rollback(using=using)
        transaction.set_autocommit(True, using=using)


def test_a_transaction_by_hand_is_a_transaction(transactional_db, far, vendor):
    with by_hand():
        Ledger.objects.create(name="mine", amount=1)
        with pytest.raises(TransactionElsewhere, match="one of 'default'"):
            far_add.enqueue(1)
        with transaction.atomic(using=far):
            far_add.enqueue(2)
        transaction.commit()
        if vendor != "mysql":  # whose driver cannot say that nothing is open any more
            far_add.enqueue(3)
        assert Job.objects.using(far).count() == (1 if vendor == "mysql" else 2)


def test_a_job_goes_with_the_transaction_by_hand_of_its_own_database(transactional_db, far):
    with by_hand(far), transaction.atomic():
        far_add.enqueue(1)
    assert not Job.objects.using(far).exists()
    with by_hand(far), transaction.atomic():
        far_add.enqueue(1)
        transaction.commit(using=far)
    assert Job.objects.using(far).count() == 1


def test_on_commit_is_refused_if_one_of_the_transactions_is_by_hand(transactional_db, far):
    with by_hand():
        Ledger.objects.create(name="mine", amount=1)
        with (
            transaction.atomic(using=far),
            pytest.raises(transaction.TransactionManagementError, match="on_commit"),
        ):
            add.enqueue_on_commit(1)
    assert not Job.objects.exists()


# -- the testing kit -----------------------------------------------------------------------------


def test_a_drain_runs_what_is_in_each(far):
    near, there = add.enqueue(1), far_add.enqueue(2)
    assert {handle.using for handle in drain().jobs} == {"default", far}
    assert (near.result, there.result) == (1, 2)


def test_a_drain_of_a_queue_looks_where_it_is_kept(far):
    add.enqueue(1)
    there = far_add.enqueue(2)
    assert [handle.id for handle in drain("far").jobs] == [there.id]
    assert len(drain(using=far)) == 0


def test_time_goes_on_for_both_in_one_order(far):
    jobs = [
        add.using(delay=30).enqueue(1),
        far_add.using(delay=20).enqueue(2),
        add.using(delay=10).enqueue(3),
        far_add.using(delay=7200).enqueue(4),
    ]
    order = [handle.id for handle in drain(until=HOUR).jobs]
    assert order == [jobs[2].id, jobs[1].id, jobs[0].id]


def test_run_inline_runs_jobs_of_both(far):
    with run_inline():
        assert far_add.enqueue(1).result == 1
        far_add.enqueue_many([(1,), (2,)])
    assert set(Job.objects.using(far).values_list("state", flat=True)) == {"done"}


def test_run_inline_runs_what_waited_for_a_commit(transactional_db, far):
    with run_inline(), transaction.atomic():
        far_add.enqueue_on_commit(1)
    assert Job.objects.using(far).get().state == "done"


def test_what_waits_for_a_commit_is_captured_on_any_database(far):
    with capture_on_commit() as callbacks, transaction.atomic():
        far_add.enqueue_on_commit(1)
        with transaction.atomic(using=far):
            far_add.enqueue_on_commit(2)
    assert len(callbacks) == 2
    assert Job.objects.using(far).count() == 2
    with capture_on_commit(using="default", execute=False) as callbacks:
        far_add.enqueue_on_commit(3)
    assert len(callbacks) == 1
    assert Job.objects.using(far).count() == 2


def test_asserting_looks_into_each(far):
    far_add.enqueue(1)
    assert assert_enqueued(add, args=[1]).using == far
    assert_not_enqueued(add, args=[2])


def test_a_database_that_the_test_may_not_ask_is_passed_over(far, monkeypatch):
    """As a TestCase forbids each that is not among its `databases`."""

    def forbidden(*_):
        raise DatabaseOperationForbidden("queries to 'far' are not allowed in this test")

    with monkeypatch.context() as patched:
        patched.setattr(connections[far], "cursor", forbidden)
        add.enqueue(1)
        assert_enqueued(add)
        assert drain().done == 1
