"""The line of jobs before the threads, and what of it begins."""

import threading

import pytest

from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.worker.holdings import CANCEL, REVOKED
from taskharbor_django.worker.pools import ThreadPool, ended_before

from .conftest import reservation


@pytest.fixture
def pool(clock):
    """A pool whose threads note what they draw, and run nothing."""
    drawn = []

    class Noting(ThreadPool):
        def _run(self, running):
            drawn.append(running)

    made = Noting(
        4,
        runtime=None,
        clock=clock,
        on_finished=lambda *_: None,
        holds=lambda _: True,
        isolated=None,
        using="default",
    )
    made.drawn = drawn
    made.start()
    yield made
    assert made.close(10)


def test_what_is_taken_back_was_not_drawn(pool, hold):
    """By the threads, which draw while it is being taken."""
    for _ in range(200):
        pool.drawn.clear()
        running = hold(*[reservation() for _ in range(40)])
        pool.put(running)
        taken = pool.take_back()
        until_at_rest(pool)
        assert len(taken) + len(pool.drawn) == 40
        assert set(taken).isdisjoint(pool.drawn)


def until_at_rest(pool):
    for _ in range(2_000):
        if pool.at_rest and not pool.waiting:
            return
        threading.Event().wait(0.005)
    raise AssertionError("the threads did not come to rest")


def test_a_pool_with_a_running_job_is_not_at_rest(clock, hold):
    begun, go = threading.Event(), threading.Event()

    class Waiting(ThreadPool):
        def _run(self, running):
            begun.set()
            go.wait(20)

    pool = Waiting(
        2,
        runtime=None,
        clock=clock,
        on_finished=lambda *_: None,
        holds=lambda _: True,
        isolated=None,
        using="default",
    )
    pool.start()
    pool.put(hold(reservation()))
    assert begun.wait(20)
    assert not pool.at_rest
    go.set()
    until_at_rest(pool)
    assert pool.close(10)


@pytest.mark.parametrize(
    ("why", "force", "kind"),
    [(CANCEL, False, OutcomeKind.CANCEL), (REVOKED, True, OutcomeKind.RELEASE)],
)
def test_a_job_that_was_cancelled_in_the_line_does_not_begin(hold, why, force, kind):
    (running,) = hold(reservation())
    assert ended_before(running, lambda _: True) is None
    running.cancel(why, force=force)
    assert ended_before(running, lambda _: True).kind == kind


def test_a_job_whose_lease_ran_out_in_the_line_does_not_begin(hold):
    (running,) = hold(reservation())
    assert ended_before(running, lambda _: False).kind == OutcomeKind.RELEASE
