"""What code may declare as a schedule."""

from datetime import timedelta

import pytest

from taskharbor_django import schedule, schedules, task
from taskharbor_django.exceptions import InvalidSchedule
from taskharbor_django.schedules import by_decorator, declare
from tests.testapp.tasks import add, echo


@pytest.fixture(autouse=True)
def own_declarations(monkeypatch):
    monkeypatch.setattr(schedules, "_declared", {})


def names():
    return [declared.name for declared in by_decorator()]


class TestTheDecorator:
    def test_it_declares_and_leaves_the_task_as_it_is(self):
        assert schedule(fixed_rate=60, args=[1, 2])(add) is add
        (declared,) = by_decorator()
        assert (declared.name, declared.task, declared.args) == (add.name, add.name, (1, 2))
        assert declared.timing.interval == timedelta(minutes=1)

    def test_several_of_one_task_need_names(self):
        schedule(fixed_rate=60)(echo)
        with pytest.raises(InvalidSchedule, match=r"two schedules are called .* give one a name="):
            schedule(fixed_rate=90)(echo)
        schedule(name="slower", fixed_rate=90)(echo)
        assert names() == [echo.name, "slower"]

    def test_two_tasks_cannot_share_a_name(self):
        schedule(name="nightly", fixed_rate=60)(echo)
        with pytest.raises(InvalidSchedule, match="'nightly'"):
            schedule(name="nightly", fixed_rate=60, args=[1])(add)

    def test_a_module_that_is_loaded_again_replaces_its_own(self):
        schedule(fixed_rate=60, args=[1])(add)
        schedule(fixed_rate=60, args=[2])(add)
        (declared,) = by_decorator()
        assert declared.args == (2,)

    def test_it_stands_above_task(self):
        with pytest.raises(InvalidSchedule, match="stands above @task"):

            @task
            @schedule(fixed_rate=60)
            def upside_down(): ...

    def test_arguments_must_fit_the_task(self):
        with pytest.raises(InvalidSchedule, match="missing a required argument: 'left'"):
            schedule(fixed_rate=60)(add)


REFUSED = [
    ({"name": ""}, "name: '' has not"),
    ({"name": "n" * 256}, "has not 1-255 characters"),
    ({"task": "a\0b"}, "task: holds a NUL"),
    ({"args": "abc"}, "args: must be a list or tuple"),
    ({"kwargs": [1]}, "kwargs: must be a dict of names"),
    ({"kwargs": {1: 2}}, "kwargs: must be a dict of names"),
    ({"queue": "a b"}, "queue: 'a b' is no queue name; use 1-128 of "),
    ({"priority": 101}, "priority: 101 is not a rank"),
    ({"jitter": -1}, "jitter: .* is negative"),
    ({"catch_up": "some"}, "catch_up: must be 'skip' or 'all', not 'some'"),
    ({"overlap": "deny"}, "overlap: must be 'skip' or 'allow', not 'deny'"),
    ({"catch_up": "all"}, "it needs overlap='allow'"),
    ({"fixed_rate": None}, "give one of cron"),
    ({"every": 5}, "a schedule has no option 'every'; there are anchor, args, "),
]


@pytest.mark.parametrize(("given", "why"), REFUSED)
def test_what_does_not_fit_is_refused_and_why(given, why):
    options = {"name": "nightly", "task": "t", "fixed_rate": 60} | given
    with pytest.raises(InvalidSchedule, match=why):
        declare(options.pop("name"), options.pop("task"), **options)


def test_none_is_the_same_as_not_given():
    given = dict.fromkeys(["args", "kwargs", "queue", "priority", "catch_up", "overlap", "jitter"])
    declared = declare("n", "t", fixed_rate=60, **given)
    assert (declared.args, declared.queue, declared.overlap) == ((), "", "skip")
