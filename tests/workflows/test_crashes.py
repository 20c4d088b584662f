"""A release that is split between any two of its statements: nothing half done, nothing lost."""

import re
from functools import partial
from pathlib import Path

import pytest

import taskharbor_django
from taskharbor_django import chain, chord, discard, failpoints, requeue
from taskharbor_django.failpoints import FailpointReached
from taskharbor_django.models import Job
from taskharbor_django.operations.additions import add
from taskharbor_django.worker import reports
from tests.storage.drivers import everything
from tests.testapp.workflow_tasks import collect, first, plus

from . import counts_add_up, driver, end, finish, run, take, work
from .test_adding import running
from .test_races import fail_instead

pytestmark = pytest.mark.django_db(transaction=True)

OPERATIONS = Path(taskharbor_django.__file__).parent / "operations"


def release():
    """The last member of a chord is done."""
    chord([first.s(1), first.s(2)], collect.s()).enqueue()
    one, two = map(run, take(10))
    finish([one])
    return partial(finish, [two])


def death():
    """A job dies with all that wait for it."""
    chain(first.s(1), plus.s(), plus.s()).enqueue()
    (held,) = take(1)
    return partial(finish, [fail_instead(run(held))])


def revival():
    death()()
    (dead,) = Job.objects.filter(dead_letters__reason="permanent", state="dead")
    return lambda: _moved(requeue([dead.pk]))


def discarding():
    death()()
    (dead,) = Job.objects.filter(dead_letters__reason="permanent", state="dead")
    return lambda: _moved(discard([dead.pk]))


def _moved(answer):
    assert answer.moved == 1


def submission():
    job = first.enqueue(1)
    return first.using(after=job).enqueue


def submission_below_the_dead():
    job = first.enqueue(1)
    end(job, "dead")
    return chain(first.using(after=job).s(1), plus.s()).enqueue


def adding():
    chord([first.s(1)], collect.s()).enqueue()
    (held,) = take(1)
    return lambda: running(held).add(first.s(7), key="a")


IN_SETTLE = ("settle.locked", "settle.moved", "settle.reported")
IN_ADVANCE = ("advance.read", "advance.locked", "advance.moved", "advance.counted")
PLACES = {
    release: (*IN_SETTLE, *IN_ADVANCE),
    death: (*IN_SETTLE, *IN_ADVANCE),
    revival: ("requeue.locked", "advance.read", "revive.locked"),
    discarding: ("discard.locked", "advance.read"),
    submission: ("edges.marked", "edges.named", "edges.inserted"),
    submission_below_the_dead: ("edges.marked", "edges.named", "edges.inserted"),
    adding: ("add.held", "advance.read", "add.inserted"),
}
CASES = [(scene, place) for scene, places in PLACES.items() for place in places]


def crash():
    raise FailpointReached


@pytest.mark.parametrize(("scene", "place"), CASES)
def test_all_or_nothing_and_then_again(scene, place):
    act = scene()
    before = everything()
    with failpoints.armed(place, crash), pytest.raises(FailpointReached):
        act()
    assert everything() == before
    act()
    assert everything() != before
    counts_add_up()
    work()
    counts_add_up()


def test_every_place_has_a_scene():
    files = ("advance", "dependents", "revive", "edges", "additions")
    reached = {
        name
        for file in files
        for name in re.findall(r'reach\("(.+?)"\)', (OPERATIONS / f"{file}.py").read_text())
    }
    assert reached <= {place for places in PLACES.values() for place in places}


def test_what_was_added_without_a_reply_is_not_added_again():
    workflow = chord([first.s(1)], collect.s()).enqueue()
    (held,) = take(1)
    context = running(held)
    asked = reports.addition_of(context, first.s(7), "a")
    add(driver(), held, asked)
    add(driver(), held, asked)
    assert workflow.jobs.count() == 3
