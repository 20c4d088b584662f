"""Where the next claim of a deep queue begins."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from taskharbor_django.values import JobRecord, Lease, Reservation
from taskharbor_django.worker import watermarks
from taskharbor_django.worker.watermarks import BELOW, SLOW, UNBOUNDED_EACH, Watermarks

NOW = datetime(2031, 5, 17, 9, 30, tzinfo=UTC)


@pytest.fixture
def time(monkeypatch):
    """A steady clock that the test moves."""
    now = [1_000.0]
    monkeypatch.setattr(watermarks, "steady", lambda: now[0])
    return now


def reserved(*places):
    return [
        Reservation(
            JobRecord(task="t", priority=priority, available_at=NOW + timedelta(seconds=at)),
            Lease(uuid4(), NOW),
        )
        for priority, at in places
    ]


def test_a_claim_that_came_back_full_bounds_the_next_a_little_below_its_end(time):
    marks = Watermarks()
    assert marks.floor("mail") is None
    marks.claimed("mail", 2, reserved((-50, 1), (0, 5)))
    assert marks.floor("mail") == (0, NOW + timedelta(seconds=5) - BELOW)
    assert marks.floor("reports") is None


def test_one_claim_in_a_second_is_not_bounded(time):
    marks = Watermarks()
    assert marks.floor("mail") is None
    marks.claimed("mail", 1, reserved((0, 5)))
    time[0] += UNBOUNDED_EACH / 2
    assert marks.floor("mail") is not None
    time[0] += UNBOUNDED_EACH
    assert marks.floor("mail") is None
    marks.claimed("mail", 1, reserved((0, 6)))
    assert marks.floor("mail") is not None


def test_after_a_claim_that_came_back_short_nothing_is_bounded(time):
    marks = Watermarks()
    marks.floor("mail")
    marks.claimed("mail", 1, reserved((0, 5)))
    assert marks.floor("mail") is not None
    assert marks.bounded
    marks.claimed("mail", 2, reserved((0, 6)))
    assert marks.floor("mail") is None


def slow_search(marks, time, *places):
    """A search from the beginning that took long, as it does while an old snapshot is held."""
    assert marks.floor("mail") is None
    time[0] += 4 * SLOW
    marks.claimed("mail", len(places) + 1, reserved(*places))


def test_where_a_search_from_the_beginning_is_slow_one_in_a_second_is_enough(time):
    marks = Watermarks()
    slow_search(marks, time, (0, 5))
    for at in range(6, 9):
        time[0] += UNBOUNDED_EACH / 5
        assert marks.floor("mail") == (0, NOW + timedelta(seconds=at - 1) - BELOW)
        marks.claimed("mail", 2, reserved((0, at)))
    marks.floor("mail")
    marks.claimed("mail", 2, [])
    assert marks.floor("mail") == (0, NOW + timedelta(seconds=8) - BELOW)
    assert marks.are_kept
    time[0] += UNBOUNDED_EACH
    slow_search(marks, time)
    assert marks.floor("mail") is not None, "it has a second from the end of the slow one"


def test_a_line_that_is_slow_for_every_claim_keeps_no_bound(time):
    marks = Watermarks()
    slow_search(marks, time, (0, 5))
    assert marks.floor("mail") is not None
    time[0] += 4 * SLOW
    marks.claimed("mail", 2, [])
    assert not marks.are_kept
    assert marks.floor("mail") is None


def test_when_it_is_quick_again_a_short_claim_ends_the_bound(time):
    marks = Watermarks()
    slow_search(marks, time, (0, 5))
    time[0] += 2 * UNBOUNDED_EACH
    assert marks.floor("mail") is None
    marks.claimed("mail", 2, reserved((0, 6)))
    assert not marks.are_kept
    assert marks.floor("mail") is None


def test_slow_queues_are_forgotten_with_their_database(time):
    marks = Watermarks()
    slow_search(marks, time, (0, 5))
    marks.forget()
    assert not marks.are_kept
    assert marks.floor("mail") is None


def test_after_trouble_with_the_database_nothing_is_bounded(time):
    marks = Watermarks()
    marks.floor("mail")
    marks.claimed("mail", 1, reserved((0, 5)))
    marks.forget()
    assert marks.floor("mail") is None


def test_a_driver_that_does_not_tell_places_is_never_given_a_floor(time):
    marks = Watermarks()
    marks.floor("mail")
    marks.claimed("mail", 1, [Reservation(JobRecord(task="t"), Lease(uuid4(), NOW))])
    assert marks.floor("mail") is None
