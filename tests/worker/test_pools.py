"""The line of jobs before the threads, and what of it begins."""

import threading

import pytest

from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.worker.holdings import CANCEL, REVOKED
from taskharbor_django.worker.pools import ThreadPool, ended_before

from .conftest import reservation


@pytest.fixture
def pool_that(clock):
    """Make pools whose threads do with a job what they are told, and run nothing."""
    made = []

    def make(do, size):
        class Pool(ThreadPool):
            def _run(self, running):
                do(running)

        made.append(
            Pool(
                size,
                runtime=None,
                clock=clock,
                on_finished=lambda *_: None,
                holds=lambda _: True,
                isolated=None,
                using="default",
            )
        )
        made[-1].start()
        return made[-1]

    yield make
    for pool in made:
        assert pool.close(10)


def test_what_is_taken_back_was_not_drawn(pool_that, hold):
    """By the threads, which draw while it is being taken."""
    drawn = []
    pool = pool_that(drawn.append, size=4)
    for _ in range(200):
        drawn.clear()
        running = hold(*[reservation() for _ in range(40)])
        pool.put(running)
        taken = pool.take_back()
        until_at_rest(pool)
        assert len(taken) + len(drawn) == 40
        assert set(taken).isdisjoint(drawn)


def until_at_rest(pool):
    for _ in range(2_000):
        if pool.at_rest and not pool.waiting:
            return
        threading.Event().wait(0.005)
    raise AssertionError("the threads did not come to rest")


def test_a_pool_with_a_running_job_is_not_at_rest(pool_that, hold):
    begun, go = threading.Event(), threading.Event()

    def wait(_running):
        begun.set()
        go.wait(20)

    pool = pool_that(wait, size=2)
    pool.put(hold(reservation()))
    assert begun.wait(20)
    assert not pool.at_rest
    go.set()
    until_at_rest(pool)


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
