"""Batches of acks: the times of each run are stored as told, whatever else is in the batch."""

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor_django import requeue
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Attempt, DeadLetter, Job
from taskharbor_django.operations import bury

from .drivers import FORMS, hold, outcome, put
from .raw import NOW

pytestmark = pytest.mark.django_db(transaction=True)

# Before and after the settle, a microsecond apart, as long ago and as far ahead as a job may be.
TIMES = [
    NOW - timedelta(days=36_500, microseconds=1),
    NOW - timedelta(microseconds=1),
    NOW,
    NOW + timedelta(microseconds=1),
    NOW + timedelta(hours=1, microseconds=999_999),
    datetime(9898, 1, 1, tzinfo=UTC),
]
FORM = pytest.mark.parametrize(
    "form", [pytest.param("set-based", marks=pytest.mark.postgresql), pytest.param("portable")]
)


def stored(held):
    found = Job.objects.in_bulk([each.job.id for each in held])
    return [(found[it.job.id].started_at, found[it.job.id].finished_at) for it in held]


@FORM
@pytest.mark.parametrize("started", [TIMES, [NOW] * 6, [None, *TIMES[1:]]])
def test_every_run_keeps_its_own_times(form, started):
    driver = FORMS[form]()
    held = hold(driver, 6)
    told = [
        outcome(OutcomeKind.ACK, each, started_at=start, finished_at=end)
        for each, start, end in zip(held, started, TIMES, strict=True)
    ]
    assert driver.settle(told, now=NOW) == []
    assert stored(held) == list(zip(started, TIMES, strict=True))


@FORM
def test_a_run_whose_end_was_not_told_ended_when_it_was_settled(form):
    driver = FORMS[form]()
    held = hold(driver, 2)
    told = [
        outcome(OutcomeKind.ACK, held[0], started_at=NOW, finished_at=NOW),
        outcome(OutcomeKind.ACK, held[1], started_at=NOW, finished_at=None),
    ]
    assert driver.settle(told, now=NOW + timedelta(seconds=1)) == []
    assert stored(held) == [(NOW, NOW), (NOW, NOW + timedelta(seconds=1))]


class TestOfWhatIsNotKept:
    """Nothing of the job is left: no row would ever lead to it again."""

    @pytest.fixture(
        params=[pytest.param("set-based", marks=pytest.mark.postgresql), pytest.param("portable")]
    )
    def driver(self, request):
        return FORMS[request.param]()

    def drop(self, driver, held, **facts):
        ack = outcome(OutcomeKind.ACK, held, keep=False, **facts)
        assert driver.settle([ack], now=NOW) == []
        assert not Job.objects.exists()
        assert not Attempt.objects.exists()
        assert not DeadLetter.objects.exists()

    def test_a_success_that_should_be_recorded_is_not(self, driver):
        (held,) = hold(driver)
        self.drop(driver, held, record=True)

    def test_a_success_is_recorded_of_those_that_stay(self, driver):
        dropped, kept = hold(driver, 2)
        outcomes = [
            outcome(OutcomeKind.ACK, dropped, keep=False, record=True),
            outcome(OutcomeKind.ACK, kept, record=True),
        ]
        assert driver.settle(outcomes, now=NOW) == []
        assert [job.pk for job in Job.objects.all()] == [kept.job.id]
        assert [attempt.job_id for attempt in Attempt.objects.all()] == [kept.job.id]

    def test_attempts_and_letters_of_an_earlier_life_go_with_it(self, driver):
        (held,) = hold(driver)
        assert driver.settle([outcome(OutcomeKind.FAIL, held)], now=NOW) == []
        self.drop(driver, self.requeued(driver))

    def test_so_does_the_letter_of_a_job_that_was_buried_before_it_ran(self, driver):
        bury(put(driver))
        self.drop(driver, self.requeued(driver))

    def requeued(self, driver):
        requeue(Job.objects.values_list("pk", flat=True))
        assert DeadLetter.objects.filter(open_for=None).count() == 1
        (held,) = driver.reserve("default", now=driver.now(), lease_for=timedelta(days=36_500))
        return held


@pytest.mark.postgresql
def test_ids_come_back_to_be_read_only_when_not_all_were_acked(monkeypatch):
    """To read them costs more than to send them: a UUID is made and hashed for each job."""
    from django.db.backends.utils import CursorWrapper

    fetched = []
    whole = CursorWrapper.__getattr__

    def watched(cursor, name):
        if name == "fetchall":
            fetched.append(name)
        return whole(cursor, name)

    monkeypatch.setattr(CursorWrapper, "__getattr__", watched)
    driver = FORMS["set-based"]()
    held = hold(driver, 3)
    acks = [outcome(OutcomeKind.ACK, each) for each in held]
    fetched.clear()
    assert driver.settle(acks[:2], now=NOW) == []
    assert fetched == []
    (again,) = driver.settle(acks[1:], now=NOW)
    assert again.repeated
    assert fetched
