"""Half past two in Berlin, each night, by ticks: where the clocks change, and in February."""

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.models import Job, Schedule
from taskharbor_django.operations.schedules import create_schedule
from taskharbor_django.operations.tick import tick
from taskharbor_django.schedules import declare
from tests.testapp.tasks import echo

pytestmark = pytest.mark.django_db

DAY, STEP = timedelta(days=1), timedelta(minutes=30)


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


# noon of the first day, how many days, and when the job has to come, all by UTC
NIGHTS = {
    "the hour that is missing in spring": (
        *(utc(2026, 3, 27, 12), 3),
        [utc(2026, 3, 28, 1, 30), utc(2026, 3, 29, 1), utc(2026, 3, 30, 0, 30)],
    ),
    "the hour that comes twice in autumn": (
        *(utc(2026, 10, 23, 12), 3),
        [utc(2026, 10, 24, 0, 30), utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)],
    ),
    "a leap year": (
        *(utc(2028, 2, 27, 12), 3),
        [utc(2028, 2, 28, 1, 30), utc(2028, 2, 29, 1, 30), utc(2028, 3, 1, 1, 30)],
    ),
    "another year": (
        *(utc(2027, 2, 27, 12), 2),
        [utc(2027, 2, 28, 1, 30), utc(2027, 3, 1, 1, 30)],
    ),
}


def nightly(begin, cron="30 2 * * *", **options):
    """A schedule that somebody has made at this moment."""
    asked = {"cron": cron, "time_zone": "Europe/Berlin", "overlap": "allow", **options}
    row = create_schedule(declare("nightly", echo.name, **asked))
    Schedule.objects.update(next_at=row.timing.after(begin))


def slots():
    return list(Job.objects.order_by("schedule_slot").values_list("schedule_slot", flat=True))


def each(step, *, since, until):
    return [since + number * step for number in range((until - since) // step + 1)]


def ticked(moments):
    """Tick at these moments; return those that made jobs, with the slots they made."""
    made, known, driver = {}, set(), DatabaseDriver()
    for now in moments:
        if tick(driver, now=now) and (new := sorted(set(slots()) - known)):
            made[now] = new
            known.update(new)
    return made


@pytest.mark.parametrize("nights", NIGHTS)
def test_each_night_has_one_job_and_it_comes_on_time(nights):
    begin, days, expected = NIGHTS[nights]
    nightly(begin)
    made = ticked(each(STEP, since=begin, until=begin + days * DAY))
    assert made == {slot: [slot] for slot in expected}


@pytest.mark.parametrize(("catch_up", "last"), [("all", 0), ("skip", -1)])
@pytest.mark.parametrize("nights", NIGHTS)
def test_who_was_away_for_all_nights_makes_the_same_jobs_or_the_last(nights, catch_up, last):
    begin, days, expected = NIGHTS[nights]
    nightly(begin, catch_up=catch_up)
    back = begin + days * DAY
    assert ticked([back, back + STEP]) == {back: expected[last:]}


def test_a_schedule_for_the_leap_day_makes_one_job_in_five_years():
    nightly(utc(2025, 1, 1), cron="30 2 29 2 *")
    ends = [utc(year, 2, 27, 12) for year in range(2025, 2030)]
    made = ticked(now for noon in ends for now in each(DAY, since=noon, until=noon + 3 * DAY))
    assert made == {utc(2028, 2, 29, 12): [utc(2028, 2, 29, 1, 30)]}
