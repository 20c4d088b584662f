"""What the loop makes of an answer to its reserve."""

from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.db import OperationalError

from taskharbor_django.values import JobRecord, Lease, Reservation
from taskharbor_django.worker import reserving, watermarks
from taskharbor_django.worker.lines import Lines
from taskharbor_django.worker.options import WorkerOptions

NOW = datetime(2031, 5, 17, 9, 30, tzinfo=UTC)


@pytest.fixture
def reserving_by(clock):
    """The loop's part that reserves, by this function."""

    def make(reserve):
        return reserving.Reserving(
            SimpleNamespace(using="default", reserve=reserve),
            clock,
            Lines("default"),
            WorkerOptions(queues=("default",), listen=False),
            on_taken=lambda *_: None,
            on_lost_reply=lambda *_: None,
            on_back=lambda: None,
        )

    return make


@pytest.fixture
def reserve_within(reserving_by, monkeypatch):
    """Let a reserve that brings nothing take so long; say whether all was looked at then."""

    def run(seconds):
        passed = [0.0]
        monkeypatch.setattr(reserving, "steady", lambda: passed[0])

        def reserve(*_, **__):
            passed[0] += seconds
            return []

        made = reserving_by(reserve)
        assert made.reserve(10) == 0
        return not made.bounded

    return run


def test_a_reserve_that_brought_nothing_and_took_long_may_not_have_looked(reserve_within):
    """It promoted and took back first: there may be jobs, and a burst must not end."""
    assert reserve_within(0.1)
    assert not reserve_within(10.0)


def test_where_a_look_from_the_beginning_is_slow_the_next_one_is_not_at_once(
    reserving_by, monkeypatch
):
    """A queue that trickles beside an old snapshot: its worker must not ask without a pause."""
    passed, floors = [1_000.0], []
    monkeypatch.setattr(watermarks, "steady", lambda: passed[0])

    def reserve(*_, floor, **__):
        floors.append(floor)
        passed[0] += 0.0 if floor else 0.2
        first = JobRecord(task="t", available_at=NOW)
        return [] if floor else [Reservation(first, Lease(uuid4(), NOW))]

    made = reserving_by(reserve)
    assert made.reserve(10) == 1
    assert made.reserve(10) == 0
    assert floors == [None, (0, NOW - watermarks.BELOW)]
    assert made.bounded
    assert made.bounded_pause == reserving.BOUNDED_PAUSE


@pytest.mark.django_db
def test_whoever_calls_a_database_that_fails_again_and_again_is_left_alone(reserving_by):
    """Each NOTIFY calls the loop, and each slot that becomes free."""
    asked = []

    def reserve(*_, **__):
        asked.append(1)
        raise OperationalError("No space left on device")

    made = reserving_by(reserve)
    for _ in range(20):
        assert made.reserve(10) is None
    assert len(asked) == 2
    assert 0 < made.pause <= 1.25
    made.trouble.pause.cut_short()  # as a beat does
    assert made.reserve(10) is None
    assert len(asked) == 3
