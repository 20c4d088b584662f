"""Which pool a job goes to, and what is taken back from both."""

from types import SimpleNamespace

import pytest

from taskharbor_django.clock import steady
from taskharbor_django.tasks import registry
from taskharbor_django.worker.dispatch import Dispatch
from taskharbor_django.worker.waiting import WaitingLine

from .conftest import reservation

SYNC, ASYNC = "tests.testapp.worker_tasks.speak", "tests.testapp.worker_tasks.aspeak"


def pool(size):
    line = WaitingLine()
    return SimpleNamespace(
        size=size, line=line, free=size, put=line.extend, take_back=line.take_back
    )


@pytest.fixture
def pools():
    return pool(4), pool(256)


@pytest.fixture
def dispatch(pools):
    return Dispatch(*pools, isolate_all=False)


def test_a_job_goes_where_its_handler_can_run(dispatch, pools, hold):
    sync, coroutine = hold(reservation(task=SYNC), reservation(task=ASYNC))
    dispatch.put([sync, coroutine])
    assert [list(each.line) for each in pools] == [[sync], [coroutine]]
    assert dispatch.waiting == 2


def test_slots_for_coroutines_count_as_far_as_coroutines_come(dispatch, hold):
    assert (dispatch.slots, dispatch.free(sated=False)) == (4, 4)
    for _ in range(20):
        dispatch.put(hold(reservation(task=ASYNC)))
    assert (dispatch.slots, dispatch.free(sated=False)) == (260, 260)


def test_what_waited_too_long_is_taken_back_from_the_pool_that_is_late(dispatch, hold):
    late, early = hold(reservation(task=ASYNC), reservation(task=SYNC))
    late.reserved = steady() - 5
    dispatch.put([late, early])
    assert dispatch.take_back(waited=1.0) == [late]
    assert dispatch.take_back() == [early]


def test_the_tasks_of_these_tests_are_what_they_seem():
    assert (registry.get(SYNC).is_async, registry.get(ASYNC).is_async) == (False, True)
