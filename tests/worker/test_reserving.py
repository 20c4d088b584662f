"""What the loop makes of an answer to its reserve."""

from types import SimpleNamespace

import pytest

from taskharbor_django.worker import reserving
from taskharbor_django.worker.lines import Lines
from taskharbor_django.worker.options import WorkerOptions


@pytest.fixture
def reserve_within(clock, monkeypatch):
    """Let a reserve that brings nothing take so long; say whether all was looked at then."""

    def run(seconds):
        passed = [0.0]
        monkeypatch.setattr(reserving, "steady", lambda: passed[0])

        def reserve(*_, **__):
            passed[0] += seconds
            return []

        driver = SimpleNamespace(using="default", reserve=reserve)
        made = reserving.Reserving(
            driver,
            clock,
            Lines("default"),
            WorkerOptions(queues=("default",), listen=False),
            on_taken=lambda *_: None,
            on_lost_reply=lambda *_: None,
            on_back=lambda: None,
        )
        assert made.reserve(10) == 0
        return not made.bounded

    return run


def test_a_reserve_that_brought_nothing_and_took_long_may_not_have_looked(reserve_within):
    """It promoted and took back first: there may be jobs, and a burst must not end."""
    assert reserve_within(0.1)
    assert not reserve_within(10.0)
