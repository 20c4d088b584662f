"""The backend for Django's task API, on the API that this Django has."""

import inspect
import math
import pickle
import sys
import threading
from copy import copy
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.db.models import F, IntegerChoices, TextChoices

from taskharbor_django import JobHandle, Priority, bury, cancel, discard, registry, requeue
from taskharbor_django.backend import HarborTask, TaskHarborBackend, api, options, results
from taskharbor_django.backend.declared import declared, discover
from taskharbor_django.exceptions import InvalidPayload
from taskharbor_django.models import Job
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.testing import drain as drain_here
from taskharbor_django.values import is_rank
from tests.operations import hold, undone
from tests.programs import run_program
from tests.testapp import api_tasks as tasks
from tests.testapp import tasks as own_tasks
from tests.testapp.models import Ledger
from tests.worker.conftest import drain, working

BACKEND = "taskharbor_django.backend.TaskHarborBackend"
DUMMY = f"{api.BaseTaskBackend.__module__.rpartition('.')[0]}.dummy.DummyBackend"
LOGGER = api.BaseTaskBackend.__module__.removesuffix(".backends.base")
READY, RUNNING = api.TaskResultStatus.READY, api.TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = api.TaskResultStatus.FAILED, api.TaskResultStatus.SUCCESSFUL
LATER = datetime(2098, 5, 17, 9, 30, tzinfo=UTC)

in_transaction = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def forget():
    tasks.seen.clear()


@pytest.fixture
def own_registry(monkeypatch):
    """Tasks of the test are forgotten after it."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    before = dict(declared)
    yield
    declared.clear()
    declared.update(before)


@pytest.fixture
def heard():
    """Django's signals as they come: (signal, sender, result)."""
    heard, receivers = [], []

    def listen(name, signal):
        def receiver(sender, task_result, **_):
            heard.append((name, sender, copy(task_result)))

        receivers.append((signal, receiver))
        signal.connect(receiver)

    listen("enqueued", api.task_enqueued)
    listen("started", api.task_started)
    listen("finished", api.task_finished)
    yield heard
    for signal, receiver in receivers:
        signal.disconnect(receiver)


def job_of(result):
    return Job.objects.get(pk=result.id)


def done(result):
    """The result once nothing is left to do."""
    drain()
    result.refresh()
    return result


# -- what Django asks of every backend ----------------------------------------------------------


def test_it_supports_all_there_is():
    backend = api.task_backends["default"]
    assert type(backend) is TaskHarborBackend
    assert [
        backend.supports_defer,
        backend.supports_async_task,
        backend.supports_get_result,
        backend.supports_priority,
    ] == [True] * 4


def test_a_task_is_of_the_class_that_the_backend_names():
    assert type(tasks.add) is HarborTask
    assert tasks.add.get_backend() is api.task_backends["default"]
    assert (tasks.add.name, tasks.add.module_path) == ("add", "tests.testapp.api_tasks.add")
    assert tasks.add.call(1, 2) == 3
    assert async_to_sync(tasks.aadd.acall)(1, right=2) == 3


@in_transaction
def test_enqueue_stores_a_job_and_returns_a_result():
    result = tasks.add.enqueue(1, right=2)
    assert (result.task, result.status, result.backend) == (tasks.add, READY, "default")
    assert (result.args, result.kwargs) == ([1], {"right": 2})
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None,) * 3
    assert not result.is_finished
    with pytest.raises(ValueError, match="not finished yet"):
        result.return_value  # noqa: B018  reading it is the test
    job = job_of(result)
    assert (job.task, job.queue, job.state) == ("tests.testapp.api_tasks.add", "default", "ready")
    assert result.enqueued_at == job.created_at


@in_transaction
@pytest.mark.parametrize(
    "task",
    [
        tasks.add,
        tasks.report.using(priority=-7),
        tasks.add.using(run_after=LATER, queue_name="reports"),
        tasks.add.using(tags={"shop": "harbor"}, timeout=5),
    ],
    ids=["plain", "priority", "later", "options"],
)
def test_the_result_is_the_same_from_enqueue_and_from_get_result(task):
    result = task.enqueue(5)
    assert (
        task.get_result(result.id) == result == api.task_backends["default"].get_result(result.id)
    )
    assert result.task == task


@committed
def test_the_result_is_the_same_after_the_run():
    result = done(tasks.add.using(run_after=LATER - timedelta(days=36_000)).enqueue(2, 3))
    again = tasks.add.get_result(result.id)
    assert again == result
    assert (again.status, again.return_value, again.is_finished) == (SUCCESSFUL, 5, True)
    assert again.enqueued_at <= again.started_at == again.last_attempted_at <= again.finished_at
    assert (again.attempts, len(again.worker_ids), again.errors) == (1, 1, [])


@in_transaction
def test_async_twins_do_the_same():
    async def walk():
        result = await tasks.aadd.aenqueue(1)
        await result.arefresh()
        return result, await tasks.aadd.aget_result(result.id)

    result, again = async_to_sync(walk)()
    assert (result, result.status) == (again, READY)


@in_transaction
@pytest.mark.parametrize("result_id", ["", "no id", "'; --", None, 7])
def test_an_id_that_is_none_does_not_exist(result_id):
    with pytest.raises(api.TaskResultDoesNotExist):
        api.task_backends["default"].get_result(result_id)


@in_transaction
def test_results_that_are_not_there_do_not_exist():
    backend = api.task_backends["default"]
    for result_id in (str(uuid4()), str(own_tasks.add.enqueue(1).id)):
        with pytest.raises(api.TaskResultDoesNotExist):
            backend.get_result(result_id)
        with pytest.raises(api.TaskResultDoesNotExist):
            async_to_sync(backend.aget_result)(result_id)


@in_transaction
def test_the_result_of_another_task_is_a_mismatch():
    result = tasks.add.enqueue(1)
    with pytest.raises(Exception, match="Task does not match") as caught:
        tasks.echo.get_result(result.id)
    assert type(caught.value).__name__ == "TaskResultMismatch"


def test_a_backend_that_does_not_exist_is_refused():
    with pytest.raises(Exception, match="The connection 'unknown' doesn't exist") as caught:
        tasks.add.using(backend="unknown")
    assert type(caught.value).__name__.startswith("InvalidTaskBackend")


@in_transaction
def test_a_queue_that_the_backend_does_not_offer_is_refused():
    with pytest.raises(api.InvalidTask, match="Queue 'unknown' is not valid for backend"):
        tasks.add.using(queue_name="unknown")


@in_transaction
def test_a_backend_without_queues_takes_every_queue(settings):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": []}}
    result = tasks.add.using(queue_name="whatever").enqueue(1)
    assert job_of(result).queue == "whatever"
    assert tasks.add.get_result(result.id).task.queue_name == "whatever"
    with pytest.raises(api.InvalidTask, match="no queue name"):
        tasks.add.using(queue_name="not a name")


def test_a_context_must_be_the_first_argument():
    with pytest.raises(api.InvalidTask, match="first argument of 'context'"):
        tasks.task(takes_context=True)(without_context)


def without_context(word):
    return word


@in_transaction
def test_changed_copies_leave_the_task_as_it_was():
    changed = tasks.add.using(priority=5).using(queue_name="reports").using(run_after=LATER)
    assert (changed.priority, changed.queue_name, changed.run_after) == (5, "reports", LATER)
    assert (tasks.add.priority, tasks.add.queue_name, tasks.add.run_after) == (0, "default", None)
    assert registry.get(tasks.add.module_path).queue == "default"
    with pytest.raises((AttributeError, TypeError)):
        tasks.add.priority = 7


@pytest.mark.skipif(django.VERSION < (6, 1), reason="earlier ones cannot be pickled")
def test_a_task_survives_pickle():
    assert pickle.loads(pickle.dumps(tasks.report)) == tasks.report  # noqa: S301  our own


# -- priorities, times, queues ------------------------------------------------------------------


@in_transaction
@pytest.mark.parametrize("priority", [-100, -99, -1, 0, 1, 37, 100])
def test_a_priority_is_mapped_exactly(priority):
    result = tasks.add.using(priority=priority).enqueue(1)
    assert job_of(result).priority == -priority
    assert tasks.add.get_result(result.id).task.priority == priority


@in_transaction
def test_the_higher_priority_is_reserved_first():
    results = {priority: tasks.add.using(priority=priority).enqueue(1) for priority in (-1, 50, 3)}
    own = own_tasks.add.using(priority=Priority.CRITICAL).enqueue(1)
    taken = [str(hold_next()) for _ in range(4)]
    assert taken == [str(own.id), results[50].id, results[3].id, results[-1].id]


def hold_next():
    driver = driver_for("default")
    (reservation,) = driver.reserve("default", now=driver.now(), lease_for=timedelta(seconds=30))
    return reservation.job.id


@in_transaction
def test_run_after_is_when_the_job_may_run():
    result = tasks.add.using(run_after=LATER).enqueue(1)
    job = job_of(result)
    assert (job.state, job.run_at, result.status) == ("scheduled", LATER, READY)


# -- traps --------------------------------------------------------------------------------------


def nested():
    def inner():
        return None

    return inner


class Callable:
    def __call__(self):
        return None


@pytest.mark.parametrize(
    "function", [lambda: None, nested(), Callable(), Callable, print], ids=lambda it: repr(it)[:20]
)
def test_what_a_worker_could_not_find_by_name_is_refused(function):
    with pytest.raises(api.InvalidTask, match="module level"):
        tasks.task()(function)


@pytest.mark.parametrize("priority", ["5", "high", 101, -101, 0.5, math.nan, True, 10**30])
def test_a_priority_that_is_none_is_refused(priority):
    assert not is_rank(priority)
    with pytest.raises(api.InvalidTask, match="whole number between -100 and 100"):
        tasks.add.using(priority=priority)


def test_a_whole_float_is_a_priority():
    assert tasks.add.using(priority=5.0).priority == 5


@pytest.mark.parametrize(
    "moment", [timedelta(hours=1), "tomorrow", 7, LATER.date(), LATER.timetz()]
)
def test_run_after_must_be_a_moment(moment):
    with pytest.raises(api.InvalidTask, match="run_after must be an aware datetime, not"):
        tasks.add.using(run_after=moment)


def test_run_after_must_have_a_time_zone():
    with pytest.raises(api.InvalidTask, match="aware datetime"):
        tasks.add.using(run_after=LATER.replace(tzinfo=None))


@in_transaction
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (math.nan, "argument 1: nan is not JSON"),
        ([1, {"x": math.inf}], "argument 1: inf is not JSON"),
        ("a\0b", "argument 1 holds a NUL character"),
        ({"a\0b": 1}, "argument 1 holds a NUL character"),
        ({1: "x"}, "argument 1 has the key 1"),
        ({"deep": {None: 1}}, "argument 1 has the key None"),
        (b"\xff", "argument 1 holds bytes that are no UTF-8"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_what_json_cannot_keep_is_refused_by_name(value, complaint):
    with pytest.raises(InvalidPayload, match=complaint):
        tasks.echo.enqueue(value)
    assert not Job.objects.exists()


@in_transaction
def test_a_circle_is_refused():
    circle = []
    circle.append(circle)
    with pytest.raises(InvalidPayload, match="argument 'it' is nested deeper"):
        tasks.echo.enqueue(it=circle)


@in_transaction
@pytest.mark.parametrize(
    "value", [object(), {1, 2}, LATER, uuid4()], ids=lambda it: type(it).__name__
)
def test_a_type_that_json_has_not_is_a_type_error_as_in_django(value):
    with pytest.raises(TypeError, match=r"Unsupported type: argument 1 holds a \w+"):
        tasks.echo.enqueue([value])
    assert not Job.objects.exists()


@in_transaction
def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(InvalidPayload, match="missing a required argument"):
        tasks.add.enqueue()


@committed
def test_arguments_arrive_as_in_every_other_backend():
    result = tasks.echo.enqueue((1, 2), b"text", {"k": (None, True)}, word="☕")
    expected = [[[1, 2], "text", {"k": [None, True]}], {"word": "☕"}]
    assert [result.args, result.kwargs] == expected
    assert done(result).return_value == expected


class Status(TextChoices):
    PAID = "paid"


class Level(IntegerChoices):
    HIGH = 7


@committed
def test_members_of_enumerations_arrive_as_what_they_are_to_json():
    result = tasks.echo.enqueue(Status.PAID, [Level.HIGH], {Status.PAID: Level.HIGH})
    assert result.args == ["paid", [7], {"paid": 7}]
    assert done(result).return_value == [result.args, {}]


def give_back(what):
    return {"pair": (1, ("two",)), "day": LATER.date(), "nothing": object()}[what]


@committed
def test_what_is_returned_is_json_where_json_can_say_it(own_registry):
    task = tasks.task()(give_back)
    pair, day, nothing = map(task.enqueue, ("pair", "day", "nothing"))
    assert done(pair).return_value == [1, ["two"]]
    day.refresh()
    nothing.refresh()
    assert (day.return_value, nothing.return_value) == (LATER.date(), None)


# -- running ------------------------------------------------------------------------------------


@committed
def test_a_worker_runs_sync_and_async_tasks():
    results = [tasks.add.enqueue(1, 2), tasks.aadd.enqueue(3, right=4)]
    assert [done(result).return_value for result in results] == [3, 7]


@committed
@pytest.mark.parametrize("task", [tasks.tell, tasks.atell], ids=["sync", "async"])
def test_a_task_may_take_the_context(task):
    result = done(task.enqueue("hello"))
    (context,) = tasks.seen
    assert result.return_value[:2] == ["hello", 1]
    assert isinstance(context, api.TaskContext)
    assert (context.attempt, str(context.job.job_id)) == (1, result.id)
    told = context.task_result
    assert (told.status, told.args, told.enqueued_at) == (RUNNING, ["hello"], result.enqueued_at)
    assert told.worker_ids == result.worker_ids
    assert told.started_at is not None


@committed
def test_every_attempt_leaves_its_error_and_its_worker():
    result = tasks.stumble.enqueue("oh")
    with working():
        JobHandle.of(result.id).wait(20)
    result.refresh()
    assert (result.status, result.attempts, len(result.worker_ids)) == (FAILED, 2, 2)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert all("ValueError: oh" in error.traceback for error in result.errors)
    assert result.started_at < result.last_attempted_at < result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018  reading it is the test


@committed
def test_errors_of_earlier_attempts_stay_with_a_success():
    result = tasks.third_time.enqueue()
    with working():
        JobHandle.of(result.id).wait(20)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [LookupError, LookupError]


@committed
def test_an_exception_class_of_a_module_can_be_found():
    result = done(tasks.book.enqueue("x"))
    (error,) = result.errors
    assert (result.status, error.exception_class) == (FAILED, ValueError)
    assert not Ledger.objects.exists()  # the options said that it is atomic


@in_transaction
def test_a_running_job_is_running():
    result = tasks.add.enqueue(1)
    hold(JobHandle.of(result.id))
    result.refresh()
    assert (result.status, result.attempts) == (RUNNING, 1)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at


@in_transaction
def test_a_cancelled_job_has_failed_and_says_why():
    result = tasks.add.enqueue(1)
    cancel([result.id])
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 0)
    assert [it.exception_class.__name__ for it in result.errors] == ["JobCancelled"]


@committed
def test_a_requeued_job_is_ready_again_with_its_history():
    result = done(tasks.book.enqueue("x"))
    assert requeue([result.id]).moved == 1
    result.refresh()
    assert (result.status, len(result.errors), result.finished_at) == (READY, 1, None)


@committed
def test_a_lost_lease_is_an_error_of_the_result():
    result = tasks.add.enqueue(1)
    hold(JobHandle.of(result.id), lease_for=timedelta(microseconds=1))
    hold(JobHandle.of(result.id))
    result.refresh()
    assert (result.status, result.attempts) == (RUNNING, 2)
    assert [it.exception_class.__name__ for it in result.errors] == ["LeaseExpired"]


@in_transaction
def test_erased_arguments_are_no_reason_to_fail():
    result = tasks.add.enqueue(1)
    Job.objects.filter(pk=result.id).update(payload=b"\0erased")
    assert tasks.add.get_result(result.id).args == []


@in_transaction
def test_an_end_after_a_failed_attempt_is_an_error_of_its_own():
    result = tasks.book.using(max_attempts=2).enqueue("x")
    drain_here()
    result.refresh()
    assert (result.status, len(result.errors)) == (READY, 1)
    bury([result.id])
    result.refresh()
    assert [it.exception_class.__name__ for it in result.errors] == ["ValueError", "JobFailed"]


@in_transaction
def test_an_end_that_left_an_attempt_is_told_of_once():
    result = tasks.book.using(max_attempts=2).enqueue("x")
    drain_here()
    Job.objects.filter(pk=result.id).update(expires_at=F("run_at"))
    assert drain_here(until=timedelta(hours=1)).dead == 1
    result.refresh()
    assert [it.exception_class.__name__ for it in result.errors] == ["ValueError", "JobFailed"]
    assert "lifetime" in result.errors[-1].traceback


@committed
def test_a_job_that_is_not_kept_has_no_result():
    result = tasks.fleeting.enqueue()
    drain()
    with pytest.raises(api.TaskResultDoesNotExist):
        result.refresh()


@in_transaction
def test_a_worker_that_was_faster_than_the_answer_is_no_error(monkeypatch):
    monkeypatch.setattr(results, "read", lambda *_: None)
    result = tasks.fleeting.enqueue()
    assert (result.status, result.task, JobHandle.of(result.id).state) == (
        READY,
        tasks.fleeting,
        "ready",
    )


@committed
def test_an_expired_result_is_none():
    result = done(tasks.add.enqueue(1))
    Job.objects.filter(pk=result.id).update(result_expires_at=result.finished_at)
    assert tasks.add.get_result(result.id).return_value is None


# -- options ------------------------------------------------------------------------------------


def test_options_below_the_decorator_are_those_of_the_job():
    own = registry.get(tasks.stumble.module_path)
    assert (own.max_attempts, own.backoff.strategy, own.priority) == (2, "constant", 0)
    assert registry.get(tasks.report.module_path).priority == -10
    assert registry.get(tasks.report.module_path).queue == "reports"


@pytest.mark.skipif(not tasks.TAKES_OPTIONS, reason="this Django's decorator takes none")
@in_transaction
def test_options_in_the_decorator_are_those_of_the_job():
    job = job_of(tasks.patient.enqueue())
    assert (job.max_attempts, job.timeout) == (4, timedelta(seconds=17))
    with pytest.raises(api.InvalidTask, match="has no option 'patience'"):
        tasks.task(patience=7)(without_context)


@pytest.mark.skipif(tasks.TAKES_OPTIONS, reason="this Django's decorator takes options")
def test_django_6_0_has_no_options_in_its_decorator():
    assert "kwargs" not in inspect.signature(tasks.task).parameters


@options(max_attempts=-1)
def badly_marked():
    return None


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(api.InvalidTask, match="has no option 'patience'; there are aliases"):
        options(patience=7)
    with pytest.raises(api.InvalidTask, match=r"using\(\) has no option 'patience'"):
        tasks.add.using(patience=7)
    with pytest.raises(api.InvalidTask, match="max_attempts must be a whole number"):
        tasks.task()(badly_marked)


@in_transaction
def test_one_call_may_ask_for_what_our_own_tasks_may():
    once = tasks.add.using(idempotency_key="k", tags={"a": "b"}, timeout=5, max_attempts=7)
    first, second = once.enqueue(1), once.using(priority=3).enqueue(1)
    assert first == second
    job = job_of(first)
    assert (job.tags, job.timeout, job.max_attempts) == ({"a": "b"}, timedelta(seconds=5), 7)


@in_transaction
def test_options_of_the_backend_are_defaults_of_its_tasks(settings, own_registry):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 9}}}
    made = tasks.task()(without_context)
    assert job_of(made.enqueue("x")).max_attempts == 9


def test_the_check_names_what_is_wrong_with_the_settings():
    wrong = TaskHarborBackend(
        "x", {"BACKEND": BACKEND, "QUEUES": ["a b"], "OPTIONS": {"max_attemps": 1}}
    )
    assert [problem.id for problem in wrong.check()] == ["taskharbor.E011", "taskharbor.E012"]
    assert TaskHarborBackend("x", {"BACKEND": BACKEND}).check() == []


def test_the_check_wants_the_app_to_be_installed(monkeypatch):
    monkeypatch.setattr("django.apps.apps.is_installed", lambda _: False)
    (problem,) = TaskHarborBackend("x", {"BACKEND": BACKEND}).check()
    assert problem.id == "taskharbor.E010"


@in_transaction
def test_a_job_in_a_queue_that_no_backend_offers_belongs_to_its_task(heard):
    result = tasks.add.enqueue(1)
    Job.objects.update(queue="elsewhere")
    assert results._alias_for(tasks.add, "elsewhere") == "default"
    assert tasks.add.get_result(result.id).task.queue_name == "elsewhere"


# -- transactions and signals -------------------------------------------------------------------


@committed
def test_a_rollback_takes_the_job_and_the_signal_with_it(heard):
    with undone():
        result = tasks.add.enqueue(1)
    assert heard == []
    with pytest.raises(api.TaskResultDoesNotExist):
        result.refresh()


@committed
def test_signals_have_the_backend_as_sender_and_come_after_the_commit(heard):
    with transaction.atomic():
        result = tasks.add.enqueue(1, 2)
        assert heard == []
    assert [name for name, _, _ in heard] == ["enqueued"]
    assert heard[0][2] == result
    done(result)
    assert [name for name, _, _ in heard] == ["enqueued", "started", "finished"]
    assert {sender for _, sender, _ in heard} == {TaskHarborBackend}
    _, (_, _, begun), (_, _, ended) = heard
    assert (begun.id, begun.status, begun.args) == (result.id, RUNNING, [1, 2])
    assert ended == result


@committed
def test_the_row_is_durable_when_the_end_is_told(heard):
    states = []

    def look(sender, task_result, **_):
        states.append(Job.objects.get(pk=task_result.id).state)

    api.task_finished.connect(look)
    try:
        done(tasks.add.enqueue(1))
        done(tasks.book.enqueue("x"))
    finally:
        api.task_finished.disconnect(look)
    assert states == ["done", "dead"]
    assert [it.status for name, _, it in heard if name == "finished"] == [SUCCESSFUL, FAILED]


@committed
def test_an_async_task_is_told_of_too(heard):
    done(tasks.aadd.enqueue(1, 2))
    assert [(name, it.status) for name, _, it in heard] == [
        ("enqueued", READY),
        ("started", RUNNING),
        ("finished", SUCCESSFUL),
    ]


@committed
def test_a_cancel_is_an_end(heard):
    result = tasks.add.enqueue(1)
    cancel([result.id])
    assert [(name, it.status) for name, _, it in heard][1:] == [("finished", FAILED)]


@committed
def test_what_had_finished_does_not_finish_again_when_it_is_discarded(heard):
    result = done(tasks.book.enqueue("x"))
    assert discard([result.id]).moved == 1
    assert [name for name, _, _ in heard] == ["enqueued", "started", "finished"]


@committed
def test_django_logs_each_step(caplog):
    caplog.set_level("DEBUG", LOGGER)
    result = done(tasks.add.enqueue(1))
    assert [it.getMessage() for it in caplog.records if it.name == LOGGER] == [
        f"Task id={result.id} path={tasks.add.module_path} enqueued backend=default",
        f"Task id={result.id} path={tasks.add.module_path} state=RUNNING",
        f"Task id={result.id} path={tasks.add.module_path} state=SUCCESSFUL",
    ]


@committed
def test_a_receiver_that_fails_changes_nothing(heard, caplog):
    def refuse(sender, task_result, **_):
        raise RuntimeError("no")

    signals = (api.task_enqueued, api.task_started, api.task_finished)
    for signal in signals:
        signal.connect(refuse)
    try:
        result = done(tasks.add.enqueue(1, 2))
    finally:
        for signal in signals:
            signal.disconnect(refuse)
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 3, 1)
    assert [name for name, _, _ in heard] == ["enqueued", "started", "finished"]


@committed
def test_a_slow_receiver_does_not_hold_up_outcomes(heard):
    gate = threading.Event()

    def wait(sender, task_result, **_):
        gate.wait(30)

    api.task_finished.connect(wait)
    try:
        results = [tasks.add.enqueue(number) for number in range(5)]
        with working():
            for result in results:
                assert JobHandle.of(result.id).wait(20).state == "done"
            gate.set()
    finally:
        api.task_finished.disconnect(wait)
    assert len([name for name, _, _ in heard if name == "finished"]) == 5


# -- finding tasks ------------------------------------------------------------------------------


def test_making_a_task_registers_it():
    assert tasks.add.module_path in registry
    assert registry.get(tasks.add.module_path).function is tasks.add.func


def test_tasks_of_other_backends_are_found_in_tasks_modules(settings, own_registry, monkeypatch):
    settings.TASKS = {
        "default": {"BACKEND": DUMMY},
        "harbor": {"BACKEND": BACKEND},
    }
    other = tasks.task()(without_context)
    assert type(other) is api.Task
    assert other.module_path not in registry
    monkeypatch.setattr(own_tasks, "other", other, raising=False)
    discover()
    assert other.module_path in registry


@in_transaction
def test_a_queue_of_another_backend_need_not_be_one_here(settings, own_registry, monkeypatch):
    settings.TASKS = {
        "default": {"BACKEND": DUMMY, "QUEUES": []},
        "harbor": {"BACKEND": BACKEND, "QUEUES": []},
    }
    other = tasks.task(queue_name="high priority")(without_context)
    monkeypatch.setattr(own_tasks, "other", other, raising=False)
    discover()
    result = other.using(backend="harbor", queue_name="high").enqueue("x")
    assert job_of(result).queue == "high"
    with pytest.raises(api.InvalidTask, match="'high priority' is no queue name; use 1-128 of "):
        other.using(backend="harbor")


@options(aliases=["shop.tasks.former"])
def renamed(context, word):
    return [word, context.attempt]


@committed
def test_a_renamed_task_serves_the_jobs_of_its_former_name(own_registry, heard):
    task = tasks.task(takes_context=True)(renamed)
    result = task.enqueue("x")
    Job.objects.filter(pk=result.id).update(task="shop.tasks.former")
    assert done(result).return_value == ["x", 1]
    assert task.get_result(result.id) == result
    assert [name for name, _, _ in heard] == ["enqueued", "started", "finished"]


@in_transaction
def test_a_task_of_another_backend_can_be_sent_here(settings, own_registry, monkeypatch):
    settings.TASKS = {"default": {"BACKEND": DUMMY}, "harbor": {"BACKEND": BACKEND}}
    other = tasks.task()(without_context)
    result = other.using(backend="harbor", priority=4).enqueue("x")
    assert (result.backend, result.task.backend, job_of(result).priority) == (
        "harbor",
        "harbor",
        -4,
    )
    assert other.using(backend="harbor").get_result(result.id) == result


def test_it_can_be_imported_before_the_apps_are_ready():
    program = """
from django.conf import settings
settings.configure(TASKS={"default": {"BACKEND": "taskharbor_django.backend.TaskHarborBackend"}})
from taskharbor_django.backend import TaskHarborBackend, api
from django.apps import apps
backend = api.task_backends["default"]
print(type(backend) is TaskHarborBackend, apps.ready)
"""
    assert run_program(program) == "True False\n"


def test_without_the_api_it_says_what_is_missing(monkeypatch):
    for name in [*sys.modules]:
        if name.partition(".")[0] == "django_tasks" or name.startswith(
            ("django.tasks", "taskharbor_django.backend")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "django.tasks", None)
    monkeypatch.setitem(sys.modules, "django_tasks", None)
    with pytest.raises(ImproperlyConfigured, match=r"needs Django 6\.0"):
        import taskharbor_django.backend  # noqa: F401  that is the test
