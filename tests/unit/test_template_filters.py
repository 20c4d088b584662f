"""How the admin writes numbers and durations."""

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor_django.operations.figures import Count
from taskharbor_django.templatetags.taskharbor import minus, number, plus, rank, since, span

NOW = datetime(2031, 5, 17, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 ms"),
        (0.25, "250 ms"),
        (1.25, "1.2 s"),
        (59.9, "59.9 s"),
        (61, "1 min 1 s"),
        (3_600, "1 h 0 min"),
        (86_400, "24 h 0 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert span(timedelta(seconds=seconds)) == text


def test_a_priority_has_the_name_of_its_level():
    assert [rank(it) for it in (-100, -50, 0, 50, 100)] == [
        "critical",
        "high",
        "normal",
        "low",
        "bulk",
    ]
    assert rank(7) == "7"


def test_a_time_and_a_duration_are_a_time():
    assert minus(plus(NOW, timedelta(days=1)), NOW) == timedelta(days=1)


def test_a_time_is_past_or_ahead():
    assert since(NOW - timedelta(seconds=61), NOW) == "1 min 1 s ago"
    assert since(NOW + timedelta(seconds=61), NOW) == "in 1 min 1 s"


def test_nothing_is_written_as_nothing():
    assert (span(None), since(None, NOW), minus(None, NOW), minus(NOW, None)) == (
        "",
        "",
        None,
        None,
    )


def test_a_capped_count_has_a_plus():
    assert (number(1234567), number(Count(10_000, True))) == ("1,234,567", "10,000+")
