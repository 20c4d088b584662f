"""The testing kit, in each style of test that a project may have."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction
from django.test import TestCase, TransactionTestCase
from freezegun import freeze_time

from taskharbor_django import (
    JobHandle,
    Snooze,
    chain,
    chord,
    group,
    pytest_plugin,
    registry,
    signals,
    task,
)
from taskharbor_django.models import Attempt, Job, Lease
from taskharbor_django.testing import (
    aassert_enqueued,
    aassert_not_enqueued,
    adrain,
    assert_enqueued,
    assert_not_enqueued,
    capture_on_commit,
    drain,
    run_inline,
    travel,
)
from tests.programs import ROOT, run_program
from tests.testapp import api_tasks, worker_tasks, workflow_tasks
from tests.testapp.models import Ledger
from tests.testapp.tasks import aadd, add, remember, report, stumble, write

DAY = timedelta(days=1)

in_transaction = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


@pytest.fixture(
    params=[
        pytest.param("rolled back", marks=in_transaction),
        pytest.param("committed", marks=committed),
    ]
)
def either(request):
    """Both kinds of database tests: in a transaction that is rolled back, and without one."""
    return request.param


@task(name="tests.kit.break", max_attempts=2)
def break_query():
    Ledger.objects.create(name="before", amount=1)
    Ledger.objects.create(pk=Ledger.objects.get().pk, name="again", amount=1)


@task(name="tests.kit.endless")
def endless():
    endless.enqueue()


@task(name="tests.kit.snooze")
def snooze():
    raise Snooze(60)


@task(name="tests.kit.interrupt")
def interrupt():
    raise KeyboardInterrupt


# -- drain --------------------------------------------------------------------------------------


def test_drain_runs_what_is_ready_in_order_and_says_what_became_of_it(either):
    later = write.using(priority=50).enqueue("second")
    first = write.enqueue("first")
    waits = write.using(delay=60).enqueue("waits")
    drained = drain()
    assert [job.id for job in drained.jobs] == [first.id, later.id]
    assert (drained.done, len(drained), drained.errors) == (2, 2, [])
    assert [job.state for job in (first, later, waits)] == ["done", "done", "scheduled"]
    assert list(Ledger.objects.order_by("pk").values_list("name", flat=True)) == ["first", "second"]
    assert not Lease.objects.exists()


def test_drain_takes_the_queues_that_it_is_told(either):
    default, reports = add.enqueue(1), report.enqueue("May")
    assert len(drain("reports")) == 1
    assert (default.state, reports.state) == ("ready", "done")


def test_drain_runs_async_tasks_tasks_with_a_context_and_atomic_ones(either):
    jobs = [aadd.enqueue(1, 2), remember.enqueue("k"), worker_tasks.book.enqueue("b", 1)]
    assert drain(raises=True).done == 3
    assert [job.result for job in jobs] == [3, [str(jobs[1].id), "k"], "b"]


def test_a_failure_is_what_it_is_in_a_worker(either):
    job = stumble.enqueue("oh")
    drained = drain()
    assert (drained.retried, [str(error) for error in drained.errors]) == (1, ["oh"])
    assert (job.state, job.refresh().attempts, Attempt.objects.count()) == ("scheduled", 1, 1)
    assert len(drain()) == 0
    assert drain(until=DAY).dead == 1
    assert (job.state, job.refresh().attempts) == ("dead", 2)


def test_drain_can_raise_what_a_handler_raises(either):
    job = stumble.enqueue("oh")
    with pytest.raises(Exception, match=r"^oh$"):
        drain(raises=True)
    assert job.state == "scheduled"


def test_an_interrupt_of_the_person_at_the_keyboard_is_always_raised(either):
    interrupt.enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain()


def test_until_runs_what_is_due_by_then_in_the_order_of_its_time(either):
    late, early = add.using(delay=2 * DAY).enqueue(1), add.using(delay=DAY).enqueue(2)
    never = add.using(delay=30 * DAY, lifetime=90 * DAY).enqueue(3)
    assert [job.id for job in drain(until=3 * DAY).jobs] == [early.id, late.id]
    assert never.state == "scheduled"
    until = never.refresh().run_at
    assert drain(until=until).done == 1


def test_a_snoozed_job_waits(either):
    job = snooze.enqueue()
    drained = drain()
    assert (drained.released, drained.errors, job.state) == (1, [], "scheduled")


def test_a_job_of_an_unknown_task_is_given_back(either):
    job = add.enqueue(1)
    Job.objects.update(task="gone.away")
    assert (drain().released, job.state) == (1, "scheduled")


def test_a_query_that_fails_does_not_end_the_test(either):
    job = break_query.enqueue()
    drained = drain()
    assert isinstance(drained.errors[0], IntegrityError)
    assert (drained.retried, job.state) == (1, "scheduled")
    assert Ledger.objects.count() == (0 if either == "rolled back" else 1)


def test_jobs_without_end_are_told_from_many(either):
    endless.enqueue()
    with pytest.raises(AssertionError, match="20 jobs have run and more are waiting"):
        drain(limit=20)


def test_progress_and_checkpoints_are_kept(either):
    job = worker_tasks.stepwise.enqueue(2)
    drain(until=DAY)
    row = job.refresh()
    assert (row.progress, row.progress_message, job.result) == (100, "step 2", (2, True))


def test_workflows_run_to_their_end(either):
    flow = chain(add.s(1, 2), add.s(3)).enqueue()
    together = chord(group(add.s(1), add.s(2)), workflow_tasks.total.s()).enqueue()
    drain(raises=True)
    assert (flow.state, flow.results, together.results) == ("done", [6], [3])


def test_a_job_may_add_others_to_its_workflow(either):
    flow = chain(workflow_tasks.fan_out.s(2), workflow_tasks.mark.si("end")).enqueue()
    drain(raises=True)
    assert flow.state == "done"


def test_tasks_of_djangos_own_api_run_too(either):
    result = api_tasks.tell.enqueue("word")
    drain(raises=True)
    result.refresh()
    assert (result.return_value, result.worker_ids) == (["word", 1, result.id], ["drain"])


def test_signals_are_sent(either):
    moves = []

    def hear(move, **_):
        moves.append((move.verb, move.state))

    signals.acked.connect(hear)
    signals.retried.connect(hear)
    try:
        add.enqueue(1)
        stumble.enqueue()
        drain()
    finally:
        signals.acked.disconnect(hear)
        signals.retried.disconnect(hear)
    assert moves == [("ack", "done"), ("retry", "scheduled")]


# -- inline -------------------------------------------------------------------------------------


def test_inside_run_inline_enqueue_runs_the_job(either):
    with run_inline():
        job = add.enqueue(1, 2)
        assert job.result == 3
        assert write.enqueue_many([("a",), ("b",)]) == 2
        assert Ledger.objects.count() == 2
        flow = chain(add.s(1), add.s(2)).enqueue()
        assert flow.results == [3]
        assert api_tasks.add.enqueue(1).status == "SUCCESSFUL"
    assert add.enqueue(1).state == "ready"


def test_inline_raises_what_the_handler_raises_unless_told_not_to(either):
    with run_inline(), pytest.raises(Exception, match=r"^oh$"):
        stumble.enqueue("oh")
    Job.objects.all().delete()
    with run_inline(raises=False):
        assert stumble.enqueue("oh").state == "scheduled"


def test_what_waits_for_the_commit_runs_with_it(either):
    with run_inline():
        with capture_on_commit() if either == "rolled back" else transaction.atomic():
            write.enqueue_on_commit("later")
            assert not Job.objects.exists()
        assert Ledger.objects.count() == 1


@run_inline()
def place_order():
    return add.enqueue(20, 22).result


def test_run_inline_decorates_too(either):
    assert place_order() == 42


@in_transaction
def test_a_handler_that_enqueues_does_not_wait_for_what_it_enqueued(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    states = []

    @task(name="tests.kit.outer")
    def outer():
        states.append(add.enqueue(1).state)

    with run_inline():
        outer.enqueue()
    assert states == ["ready"]
    assert_enqueued(add, state="done")


# -- assertions ---------------------------------------------------------------------------------


@in_transaction
def test_assert_enqueued_finds_a_job_by_what_matters():
    job = report.using(tags={"order": "A-7"}, priority=-3).enqueue("May", recipients=["ann"])
    for asked in (
        {},
        {"args": ["May"]},
        {"kwargs": {"month": "May"}},
        {"kwargs": {"recipients": ["ann"]}},
        {"queue": "reports", "state": "ready", "priority": -3},
        {"tags__order": "A-7", "count": 1},
    ):
        assert assert_enqueued(report, **asked) == JobHandle.of(job.id)
    assert assert_enqueued("tests.testapp.tasks.report").id == job.id
    assert assert_enqueued().id == job.id
    assert_not_enqueued(add)
    assert_not_enqueued(report, args=["June"])
    assert_not_enqueued(report, args=["May", "too", "many"])
    assert_not_enqueued(report, queue="default")


@in_transaction
def test_an_argument_that_was_left_out_has_its_default():
    add.enqueue(1)
    assert_enqueued(add, kwargs={"right": 0})


@in_transaction
def test_what_is_missing_is_told_with_what_is_there():
    with pytest.raises(AssertionError, match=r"^No such job was enqueued; there are no jobs of"):
        assert_enqueued(add)
    add.enqueue(1, right=2)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(add, args=[7])
    assert str(caught.value) == (
        "No such job was enqueued. Jobs of tests.testapp.tasks.add:\n"
        "  tests.testapp.tasks.add(1, right=2), default, ready"
    )
    with pytest.raises(AssertionError, match="1 such jobs were enqueued, not 2"):
        assert_enqueued(add, count=2)
    with pytest.raises(AssertionError, match="A job like this was enqueued"):
        assert_not_enqueued(add)
    add.enqueue_many([(number,) for number in range(20)])
    with pytest.raises(AssertionError, match=r"21 jobs like this were enqueued(?s:.*)…$"):
        assert_not_enqueued()
    with pytest.raises(ValueError, match="assert_not_enqueued"):
        assert_enqueued(add, count=0)


@in_transaction
def test_jobs_that_cannot_be_read_are_found_by_their_task():
    add.enqueue(1)
    Job.objects.update(task="gone.away", payload=b"?")
    assert_enqueued("gone.away")
    assert_not_enqueued("gone.away", args=[1])


@in_transaction
def test_tasks_of_djangos_own_api_are_found():
    api_tasks.add.enqueue(1, right=2)
    assert_enqueued(api_tasks.add, args=[1], kwargs={"right": 2}, count=1)
    assert_not_enqueued(api_tasks.add, args=[2])


# -- time travel --------------------------------------------------------------------------------


def test_jobs_live_by_frozen_time(either):
    with freeze_time("2098-05-17 09:30") as frozen:
        job = add.using(delay=DAY).enqueue(1)
        row = job.refresh()
        assert row.created_at == datetime(2098, 5, 17, 9, 30, tzinfo=UTC)
        assert row.run_at == row.created_at + DAY
        assert len(drain()) == 0
        frozen.tick(DAY)
        assert (drain().done, job.result) == (1, 1)
        assert job.refresh().finished_at == datetime(2098, 5, 18, 9, 30, tzinfo=UTC)


def test_travel_goes_so_much_further(either):
    job = add.using(delay=6 * DAY).enqueue(1)
    assert len(drain()) == 0
    with travel(6 * DAY + timedelta(minutes=1)):
        assert drain().done == 1
    with travel(datetime(2099, 1, 1, tzinfo=UTC)) as frozen:
        frozen.move_to("2099-01-02")
        assert add.enqueue(1).refresh().created_at == datetime(2099, 1, 2, tzinfo=UTC)
    assert job.state == "done"


def test_a_job_that_is_too_old_dies_as_it_would(either):
    job = add.enqueue(1)
    with travel(8 * DAY):
        assert drain().dead == 1
    assert job.refresh().last_error == "The job was not finished within its lifetime."


# -- styles of tests ----------------------------------------------------------------------------


class InTestCase(TestCase):
    def test_drain_and_assertions(self):
        add.enqueue(1, 2)
        assert_enqueued(add, args=[1, 2])
        assert drain().done == 1

    def test_on_commit(self):
        with capture_on_commit():
            add.enqueue_on_commit(1)
            assert_not_enqueued(add)
        assert_enqueued(add)

    def test_callbacks_can_be_kept(self):
        with capture_on_commit(execute=False) as callbacks:
            add.enqueue_on_commit(1)
        assert len(callbacks) == 1
        assert_not_enqueued(add)

    async def test_async(self):
        await aadd.aenqueue(1, 2)
        await aassert_enqueued(aadd, args=[1])
        assert (await adrain()).done == 1
        await aassert_not_enqueued(add)

    async def test_async_inline(self):
        with run_inline():
            job = await aadd.aenqueue(1, 2)
        assert (await job.arefresh()).state == "done"


class InTransactionTestCase(TransactionTestCase):
    def test_drain_and_assertions(self):
        with transaction.atomic():
            add.enqueue_on_commit(1)
        assert_enqueued(add)
        assert drain().done == 1

    async def test_async(self):
        await aadd.aenqueue(1, 2)
        assert (await adrain()).done == 1


def test_the_fixture_is_the_kit(taskharbor):
    add.enqueue(1)
    taskharbor.assert_enqueued(add)
    assert taskharbor.drain().done == 1


@committed
def test_the_fixture_goes_with_transactions(taskharbor):
    add.enqueue(1)
    assert taskharbor.drain().done == 1


def test_the_other_fixture_runs_jobs_inline(taskharbor_inline):
    assert add.enqueue(1, 2).result == 3
    taskharbor_inline.assert_enqueued(add)


def test_the_plugin_imports_neither_django_nor_models():
    program = (
        "import sys, taskharbor_django.pytest_plugin;"
        "print([m for m in sys.modules if m.partition('.')[0] == 'django'"
        " or m.startswith(('taskharbor_django.models', 'taskharbor_django.testing'))])"
    )
    assert run_program(program) == "[]\n"


def test_the_plugin_is_an_entry_point():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\ntaskharbor = "{pytest_plugin.__name__}"' in text
