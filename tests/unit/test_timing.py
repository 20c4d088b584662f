"""Slots: what a definition alone says, also where clocks change."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest

from taskharbor_django.timing import EPOCH, Timing, timing_of

BERLIN = "Europe/Berlin"


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


def berlin(cron):
    return timing_of(cron=cron, time_zone=BERLIN)


def slots(timing, moment, count):
    return list(islice(timing.slots(moment), count))


class TestCron:
    def test_a_slot_is_after_the_moment_and_never_at_it(self):
        timing = timing_of(cron="0 3 * * *", time_zone="UTC")
        assert timing.after(utc(2031, 5, 17, 3)) == utc(2031, 5, 18, 3)
        assert timing.after(utc(2031, 5, 17, 2, 59, 59, 999_999)) == utc(2031, 5, 17, 3)

    def test_times_are_those_of_the_zone_in_summer_and_winter(self):
        timing = berlin("0 9 * * *")
        assert timing.after(utc(2026, 7, 1)) == utc(2026, 7, 1, 7)
        assert timing.after(utc(2026, 1, 1)) == utc(2026, 1, 1, 8)

    def test_without_a_zone_it_is_that_of_the_project(self, settings):
        settings.TIME_ZONE = "America/New_York"
        assert timing_of(cron="0 0 * * *").after(utc(2026, 1, 1)) == utc(2026, 1, 1, 5)

    def test_spaces_do_not_matter(self):
        assert timing_of(cron="  0   3 * *  MON ", time_zone="UTC").cron == "0 3 * * MON"

    def test_a_leap_day_comes_in_leap_years_only(self):
        timing = timing_of(cron="0 0 29 2 *", time_zone="UTC")
        assert slots(timing, utc(2026, 3, 1), 2) == [utc(2028, 2, 29), utc(2032, 2, 29)]
        assert timing.after(utc(2096, 3, 1)) == utc(2104, 2, 29)


class TestClocksThatGoForward:
    """In Berlin, on 29 March 2026, 02:00 is followed by 03:00, which is 01:00 UTC."""

    def test_a_time_in_the_gap_comes_at_its_end_once(self):
        found = slots(berlin("30 2 * * *"), utc(2026, 3, 28, 12), 2)
        assert found == [utc(2026, 3, 29, 1), utc(2026, 3, 30, 0, 30)]

    def test_several_times_in_the_gap_are_one_slot(self):
        found = slots(berlin("0,15,30 2,3 * * *"), utc(2026, 3, 28, 12), 4)
        gap_end = utc(2026, 3, 29, 1)
        quarter = timedelta(minutes=15)
        assert found == [gap_end, gap_end + quarter, gap_end + 2 * quarter, utc(2026, 3, 30)]

    def test_a_star_counts_real_time(self):
        found = slots(berlin("*/30 * * * *"), utc(2026, 3, 29, 0, 15), 3)
        assert found == [utc(2026, 3, 29, 0, 30), utc(2026, 3, 29, 1), utc(2026, 3, 29, 1, 30)]

    def test_a_day_is_not_missing(self):
        assert len(berlin("30 2 * * *").come(utc(2026, 3, 28), utc(2026, 3, 31), 9)) == 3


class TestClocksThatGoBack:
    """In Berlin, on 25 October 2026, 02:00 to 03:00 comes twice: at 00:00 and at 01:00 UTC."""

    def test_a_time_in_the_hour_that_comes_twice_comes_once(self):
        found = slots(berlin("30 2 * * *"), utc(2026, 10, 24, 12), 2)
        assert found == [utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)]

    @pytest.mark.parametrize("minute", [0, 10, 29, 30, 31, 59])
    def test_asked_in_the_second_hour_it_has_passed(self, minute):
        found = berlin("30 2 * * *").after(utc(2026, 10, 25, 1, minute))
        assert found == utc(2026, 10, 26, 1, 30)

    def test_a_star_has_slots_in_both_hours(self):
        found = slots(berlin("*/30 * * * *"), utc(2026, 10, 24, 23, 45), 5)
        assert found == [utc(2026, 10, 25) + n * timedelta(minutes=30) for n in range(5)]


class TestFixedRate:
    def test_slots_are_multiples_from_the_anchor(self):
        timing = timing_of(fixed_rate=90, anchor=utc(2026, 1, 1, 0, 0, 10))
        found = slots(timing, utc(2026, 1, 1), 3)
        assert [slot.minute * 60 + slot.second for slot in found] == [10, 100, 190]

    def test_the_anchor_is_midnight_unless_another_is_given(self):
        timing = timing_of(fixed_rate=timedelta(hours=6))
        assert timing.after(utc(2031, 5, 17, 7, 1)) == utc(2031, 5, 17, 12)
        assert (timing.after(utc(2031, 5, 17, 7, 1)) - EPOCH) % timedelta(hours=6) == timedelta(0)

    def test_a_slot_is_after_the_moment(self):
        timing = timing_of(fixed_rate=3600)
        assert timing.after(utc(2031, 5, 17, 7)) == utc(2031, 5, 17, 8)

    def test_an_anchor_may_be_ahead_and_in_another_zone(self):
        anchor = datetime.fromisoformat("2040-01-01T00:20:00+02:00")
        timing = timing_of(fixed_rate=3600, anchor=anchor)
        assert timing.after(utc(2031, 5, 17, 7)) == utc(2031, 5, 17, 7, 20)

    def test_the_end_of_the_calendar_is_the_end(self):
        timing = timing_of(fixed_rate=timedelta(days=300))
        assert timing.after(datetime.max.replace(tzinfo=UTC)) is None
        end = timing_of(cron="0 0 1 1 *", time_zone="UTC")
        assert end.after(utc(9999, 6, 1)) is None


def test_a_fixed_delay_has_no_slots_of_its_own():
    assert timing_of(fixed_delay=60).after(utc(2031, 5, 17)) is None


class TestWhatHasCome:
    def test_nothing_and_one(self):
        timing = timing_of(cron="0 * * * *", time_zone="UTC")
        first = utc(2031, 5, 17, 9)
        assert timing.come(first, first - timedelta(microseconds=1), 5) == []
        assert timing.come(first, first, 5) == [first]

    def test_the_latest_of_many(self):
        timing = timing_of(cron="0 * * * *", time_zone="UTC")
        first, now = utc(2031, 5, 17, 9), utc(2031, 5, 17, 21, 30)
        assert timing.come(first, now, 1) == [utc(2031, 5, 17, 21)]
        assert timing.come(first, now, 3) == [utc(2031, 5, 17, hour) for hour in (19, 20, 21)]
        assert timing.come(first, now, 13) == [utc(2031, 5, 17, hour) for hour in range(9, 22)]
        assert timing.come(first, now, 99) == [utc(2031, 5, 17, hour) for hour in range(9, 22)]

    @pytest.mark.parametrize("cron", ["* * * * *", "*/7 * * * *", "13 4 * * 2", "0 0 1 * *"])
    def test_years_of_it_are_not_walked_through(self, cron, monkeypatch):
        timing = berlin(cron)
        asked = []
        walked = Timing.slots

        def counted(self, moment):
            for slot in walked(self, moment):
                asked.append(slot)
                yield slot

        monkeypatch.setattr(Timing, "slots", counted)
        found = timing.come(utc(2020, 1, 1), utc(2026, 1, 1, 12), 5)
        assert len(asked) < 400
        following = slots(timing, found[-1] - timedelta(seconds=1), 2)
        assert following[0] == found[-1] <= utc(2026, 1, 1, 12) < following[1]
        assert slots(timing, found[0] - timedelta(seconds=1), 5) == found


# The first and the last moment of Python's calendar lie beyond it in UTC.
FIRST = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
LAST = datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))
REFUSED = [
    ({}, "give one of cron, fixed_rate and fixed_delay"),
    ({"cron": "* * * * *", "fixed_rate": 5}, "give one of"),
    ({"cron": "* * * *"}, "has not the five fields"),
    ({"cron": "0 * * * * *"}, "has not the five fields"),
    ({"cron": 7}, "must be text of at most 200 characters"),
    ({"cron": ["*"]}, "must be text of at most 200 characters"),
    ({"cron": "1," * 300 + "1 * * * *"}, "must be text of at most 200 characters"),
    ({"cron": "60 * * * *"}, "cannot be read: Bad minute"),
    ({"cron": "0-4000000000 * * * *"}, "cannot be read: Bad minute"),
    ({"cron": "*/0 * * * *"}, "cannot be read: Bad minute"),
    ({"cron": "1/1/1 * * * *"}, "cannot be read: Bad minute"),
    ({"cron": "* 24 * * *"}, "cannot be read: Bad hour"),
    ({"cron": "0 0 30 2 *"}, "cannot be read: Bad day-of-month"),
    ({"cron": "0 0 * * XYZ"}, "cannot be read: Bad day-of-week"),
    ({"cron": "* * * * *", "time_zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
    ({"cron": "* * * * *", "time_zone": "../../etc/passwd"}, "there is no time zone"),
    ({"cron": "* * * * *", "time_zone": "Europe"}, "there is no time zone 'Europe'"),
    ({"cron": "* * * * *", "time_zone": 7}, "there is no time zone 7"),
    ({"cron": "* * * * *", "time_zone": "localtime"}, "there is no time zone 'localtime'"),
    ({"cron": "* * * * *", "time_zone": "posixrules"}, "there is no time zone 'posixrules'"),
    ({"cron": "* * * * *", "anchor": EPOCH}, "only fixed_rate has one"),
    ({"fixed_rate": 60, "time_zone": "UTC"}, "only cron has one"),
    ({"fixed_rate": 0.5}, "fixed_rate: must be a second or more"),
    ({"fixed_delay": "soon"}, "fixed_delay: must be a timedelta"),
    ({"fixed_delay": -5}, "fixed_delay: .* is negative"),
    ({"fixed_rate": 60, "anchor": FIRST}, "anchor: .* is outside the years"),
    ({"fixed_rate": 60, "anchor": LAST}, "anchor: .* is outside the years"),
    ({"fixed_rate": 60, "anchor": "noon"}, "anchor: must be a datetime"),
    ({"fixed_rate": 60, "anchor": datetime(2026, 1, 1)}, "with a time zone"),  # noqa: DTZ001
]


@pytest.mark.parametrize(("given", "why"), REFUSED)
def test_what_is_no_definition_is_refused_and_why(given, why):
    with pytest.raises(ValueError, match=why):
        timing_of(**given)


def test_what_never_comes_is_refused(monkeypatch):
    monkeypatch.setattr("taskharbor_django.timing._cron_slots", lambda *_: iter(()))
    with pytest.raises(ValueError, match="never comes"):
        timing_of(cron="0 0 29 2 *")
