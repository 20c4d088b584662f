"""Handles: the job as it is now, its end, its result, and every reason why there is none."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from taskharbor_django import JobHandle
from taskharbor_django.exceptions import (
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadCorrupt,
    ResultNotReady,
    ResultNotStored,
)
from taskharbor_django.models import Job
from taskharbor_django.operations import handle as handles
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.payload import encode_value
from taskharbor_django.values import FailureUpdate, Outcome
from tests.factories import job_in
from tests.testapp.tasks import add, remember

from . import hold

TICK = timedelta(microseconds=1)


def handle_of(job):
    return JobHandle(id=job.pk, using="default")


def finish(handle, value=None, *, expires_in=None, result=None):
    """Ack the job as its worker would."""
    held, driver = hold(handle), driver_for(handle.using)
    now = driver.now()
    if result is None and value is not None:
        result = encode_value(value, max_bytes=1_000_000)
    ack = Outcome(
        job_id=handle.id,
        token=held.lease.token,
        kind="ack",
        version=held.lease.version,
        result=result,
        result_expires_at=None if expires_in is None else now + expires_in,
    )
    assert driver.settle([ack], now=now) == []


def fail(handle, text="no such order"):
    held, driver = hold(handle), driver_for(handle.using)
    update = FailureUpdate(attempts=1, last_error=text)
    driver.fail(handle.id, held.lease.token, now=driver.now(), reason="permanent", update=update)


# -- refresh ------------------------------------------------------------------------------------


def test_refresh_reads_the_job_as_it_is_now(db):
    handle = add.enqueue(1)
    assert handle.refresh().state == "ready"
    hold(handle)
    assert handle.refresh().state == "inflight"
    assert async_to_sync(handle.arefresh)().pk == handle.id


def test_a_job_that_is_gone_is_not_found(db):
    handle = add.enqueue(1)
    Job.objects.all().delete()
    for ask in (
        handle.refresh,
        lambda: handle.result,
        lambda: handle.wait(0),
        async_to_sync(handle.arefresh),
        async_to_sync(handle.aresult),
    ):
        with pytest.raises(JobNotFound, match=f"There is no job {handle.id}"):
            ask()


def test_a_handle_is_a_value(db):
    first = add.using(idempotency_key="k").enqueue(1)
    assert first == JobHandle(id=first.id, using="default", created=True)
    assert first != add.using(idempotency_key="k").enqueue(1)
    with pytest.raises(AttributeError):
        first.id = uuid4()


# -- result -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [7, "text", [1, (2, b"3")], {"a": None}, "", 0, False, []])
def test_the_result_is_what_the_handler_returned(db, value):
    handle = add.enqueue(1)
    finish(handle, value)
    assert handle.result == value
    assert async_to_sync(handle.aresult)() == value


def test_a_handler_that_returned_nothing_has_none_as_its_result(db):
    handle = add.enqueue(1)
    finish(handle)
    assert handle.result is None


@pytest.mark.parametrize("state", ["blocked", "scheduled", "ready", "inflight"])
def test_before_its_end_a_job_has_no_result(db, state):
    handle = handle_of(job_in(state))
    with pytest.raises(ResultNotReady, match=f"Job {handle.id} is {state}"):
        handle.result  # noqa: B018  reading it is the test
    with pytest.raises(ResultNotReady):
        async_to_sync(handle.aresult)()


def test_a_dead_job_raises_its_error(db):
    handle = add.enqueue(1)
    fail(handle, "no such order: " + "x" * 10_000)
    with pytest.raises(JobFailed, match=f"Job {handle.id} is dead: no such order") as caught:
        handle.result  # noqa: B018
    assert len(str(caught.value)) < 700


def test_a_cancelled_job_raises_that_it_was(db):
    handle = add.enqueue(1)
    handle.cancel()
    with pytest.raises(JobCancelled, match=f"Job {handle.id} was cancelled"):
        handle.result  # noqa: B018


def test_a_result_that_could_not_be_stored_says_so(db):
    """No bytes at all are the marker that the worker leaves."""
    handle = add.enqueue(1)
    finish(handle, result=b"")
    with pytest.raises(ResultNotStored):
        handle.result  # noqa: B018


def test_a_result_is_there_until_it_expires(db):
    handle = add.enqueue(1)
    finish(handle, 7, expires_in=timedelta(hours=1))
    assert handle.result == 7
    Job.objects.update(result_expires_at=driver_for("default").now())
    with pytest.raises(ResultNotStored):
        handle.result  # noqa: B018


@pytest.mark.parametrize("value", [7, None])
def test_a_result_expires_at_exactly_its_time(db, monkeypatch, value):
    handle = add.enqueue(1)
    finish(handle, value, expires_in=timedelta(hours=1))
    end = handle.refresh().result_expires_at
    driver = SimpleNamespace(now=lambda: end - TICK)
    monkeypatch.setattr(handles, "driver_for", lambda using: driver)  # noqa: ARG005
    assert handle.result == value
    driver.now = lambda: end
    with pytest.raises(ResultNotStored):
        handle.result  # noqa: B018


def test_bytes_that_are_no_result_are_corrupt(db):
    handle = add.enqueue(1)
    finish(handle, result=b"\xff\xff")
    with pytest.raises(PayloadCorrupt):
        handle.result  # noqa: B018


class Reversing:
    def encode(self, value):
        return encode_value(value, max_bytes=1_000)[::-1]

    def decode(self, data):
        return handles.decode_value(data[::-1])


def test_the_codec_of_the_settings_reads_the_result(db, settings):
    settings.TASKHARBOR = {"PAYLOAD_CODEC": Reversing}
    handle = add.enqueue(1)
    finish(handle, result=Reversing().encode({"a": 7}))
    assert handle.result == {"a": 7}


# -- wait ---------------------------------------------------------------------------------------


class Time:
    """Time in the hand of a test: a pause passes at once, and may bring something with it."""

    def __init__(self):
        self.at, self.pauses, self.during = 1000.0, [], {}

    def steady(self):
        return self.at

    def sleep(self, pause):
        self.pauses.append(pause)
        self.at += pause
        self.during.get(len(self.pauses), lambda: None)()

    async def asleep(self, pause):
        # The other coroutines have their turn, as in a real pause.
        await asyncio.sleep(0)
        await sync_to_async(self.sleep)(pause)


def no_blocking(pause):
    raise AssertionError("the event loop was blocked")


@pytest.fixture
def passing(monkeypatch):
    passing = Time()
    monkeypatch.setattr(handles, "steady", passing.steady)
    monkeypatch.setattr(handles, "time", SimpleNamespace(sleep=passing.sleep))
    return passing


@pytest.fixture
def apassing(passing, monkeypatch):
    monkeypatch.setattr(handles, "time", SimpleNamespace(sleep=no_blocking))
    monkeypatch.setattr(handles, "asyncio", SimpleNamespace(sleep=passing.asleep))
    return passing


@pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
def test_a_job_that_has_ended_is_not_waited_for(db, passing, state):
    handle = handle_of(job_in(state))
    assert handle.wait(0).state == handle.wait().state == state
    assert async_to_sync(handle.await_)(0).state == state
    assert passing.pauses == []


def test_waiting_looks_again_until_the_job_has_ended(db, passing):
    handle = add.enqueue(1)
    passing.during = {1: lambda: hold(handle), 3: lambda: finish_held(handle)}
    assert handle.wait().state == "done"
    assert len(passing.pauses) == 3


def finish_held(handle):
    job, driver = handle.refresh(), driver_for(handle.using)
    driver.ack(job.pk, job.lease, now=driver.now())


def test_pauses_grow_from_a_fiftieth_of_a_second_to_a_second(db, passing):
    handle = add.enqueue(1)
    passing.during = {20: handle.cancel}
    assert handle.wait().state == "cancelled"
    assert passing.pauses[0] == handles.FIRST_PAUSE == 0.02
    assert passing.pauses == sorted(passing.pauses)
    assert passing.pauses[-1] == handles.LONGEST_PAUSE == 1.0


@pytest.mark.parametrize("timeout", [1, 1.0, timedelta(seconds=1)], ids=str)
def test_waiting_ends_when_the_time_is_over(db, passing, timeout):
    handle = add.enqueue(1)
    with pytest.raises(TimeoutError, match="has not ended yet"):
        handle.wait(timeout)
    assert sum(passing.pauses) == pytest.approx(1)


def test_an_end_in_the_last_instant_still_counts(db, passing):
    """The last look comes after the last pause."""
    handle = add.enqueue(1)
    with suppress(TimeoutError):
        handle.wait(1)
    last = len(passing.pauses) - 1
    passing.pauses, passing.during = [], {last: handle.cancel}
    assert handle.wait(1).state == "cancelled"
    assert sum(passing.pauses) == pytest.approx(1)


def test_no_time_at_all_is_one_look(db, passing):
    with pytest.raises(TimeoutError):
        add.enqueue(1).wait(0)
    assert sum(passing.pauses) == 0


@pytest.mark.parametrize("timeout", [-1, "soon", True])
def test_a_time_that_is_none_is_refused(db, timeout):
    handle = add.enqueue(1)
    with pytest.raises(ValueError, match=r"is negative|must be a timedelta"):
        handle.wait(timeout)
    with pytest.raises(ValueError, match=r"is negative|must be a timedelta"):
        async_to_sync(handle.await_)(timeout)


def test_one_thread_waits_while_another_settles(race):
    handle = add.enqueue(1)
    job, _ = race(lambda: handle.wait(60), lambda: finish(handle, 7))
    assert job.state == "done"
    assert handle.result == 7


# -- async twins --------------------------------------------------------------------------------


def test_waiting_lets_the_other_coroutines_run(db, apassing):
    handle = add.enqueue(1)
    looked = asyncio.Event()

    async def settle():
        await looked.wait()
        await sync_to_async(finish)(handle, 7)

    async def both():
        return await asyncio.gather(handle.await_(10), settle())

    apassing.during = {2: looked.set}
    job, _ = async_to_sync(both)()
    assert job.state == "done"
    assert len(apassing.pauses) >= 2


def test_the_async_twin_ends_when_the_time_is_over(db, apassing):
    handle = add.enqueue(1)
    with pytest.raises(TimeoutError, match="has not ended yet"):
        async_to_sync(handle.await_)(1)
    assert sum(apassing.pauses) == pytest.approx(1)


def test_the_async_twins_do_not_touch_the_database_in_the_event_loop(db):
    """Django raises there, so that an answer shows that it was asked elsewhere."""
    handle = remember.enqueue("key")

    async def life():
        first = await handle.arefresh()
        asked = await handle.acancel()
        last = await handle.await_(0)
        return first.state, asked, last.state, await handle.acancel(force=True)

    assert async_to_sync(life)() == ("ready", True, "cancelled", False)


# -- from an id that was kept ------------------------------------------------------------------


@pytest.mark.parametrize("form", [lambda job_id: job_id, str])
def test_a_handle_is_made_of_an_id_that_was_kept(db, form):
    first = add.enqueue(2, 3)
    again = JobHandle.of(form(first.id))
    assert (again.id, again.using, again.created) == (first.id, "default", False)
    assert again.state == "ready"
    assert again.arguments == ((2, 3), {})


@pytest.mark.parametrize("nonsense", ["", "17", 17, None, object()])
def test_what_is_no_id_has_no_handle(nonsense):
    with pytest.raises(InvalidJob, match="is no job"):
        JobHandle.of(nonsense)


def test_the_handle_of_a_job_that_never_was_has_no_state(db):
    with pytest.raises(JobNotFound):
        _ = JobHandle.of(uuid4()).state
