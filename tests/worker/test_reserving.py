"""What the loop makes of an answer to its reserve."""

from types import SimpleNamespace

import pytest
from django.db import OperationalError

from taskharbor_django.worker import reserving
from taskharbor_django.worker.lines import Lines
from taskharbor_django.worker.options import WorkerOptions


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
