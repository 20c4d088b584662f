"""The line of jobs before the slots, and what of it begins."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from taskharbor_django.clock import steady
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.worker.async_pool import AsyncPool
from taskharbor_django.worker.holdings import CANCEL, REVOKED
from taskharbor_django.worker.pools import ThreadPool, ended_before, fault, not_ours

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
                isolated=None,
                inputs=None,
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
        if pool.at_rest and not pool.line:
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


class Gated(AsyncPool):
    """Coroutines that end, one for each `let_one_end`, and note how many there were at once."""

    def __init__(self, size, clock):
        super().__init__(size, runtime=None, clock=clock, on_finished=self._note, inputs=None)
        self.begun, self.ended, self.most = [], [], 0
        self.moved = threading.Condition()

    def start(self):
        super().start()
        self._gate = asyncio.Semaphore(0)

    def let_one_end(self):
        self._loop.call_soon_threadsafe(self._gate.release)

    def until(self, condition):
        with self.moved:
            assert self.moved.wait_for(condition, 20)

    async def _outcome(self, running):
        with self.moved:
            self.begun.append(running)
            self.most = max(self.most, len(self.begun) - len(self.ended))
            self.moved.notify_all()
        await self._gate.acquire()

    def _note(self, running, _outcome):
        with self.moved:
            self.ended.append(running)
            self.moved.notify_all()


@pytest.fixture
def gated(clock):
    pool = Gated(2, clock)
    pool.start()
    yield pool
    pool.take_back()
    for _ in range(10):
        pool.let_one_end()
    pool.until(lambda: pool.begun == pool.ended)
    assert pool.close(10)


def test_coroutines_beyond_the_slots_begin_in_their_order_as_slots_free(gated, hold):
    running = hold(*[reservation() for _ in range(5)])
    gated.put(running)
    gated.until(lambda: len(gated.begun) == 2)
    assert gated.free == -3
    for number in range(1, 6):
        gated.let_one_end()
        gated.until(lambda n=number: len(gated.ended) == n and len(gated.begun) == min(5, n + 2))
    assert gated.begun == running
    assert gated.most == 2


def test_a_coroutine_begins_without_the_variables_of_the_one_that_made_room(gated, hold):
    tenant, found = ContextVar("tenant", default=None), []

    async def note(running):
        found.append(tenant.get())
        tenant.set(running)
        await Gated._outcome(gated, running)

    gated._outcome = note
    gated.put(hold(*[reservation() for _ in range(3)]))
    gated.until(lambda: len(gated.begun) == 2)
    gated.let_one_end()
    gated.until(lambda: len(gated.begun) == 3)
    assert found == [None, None, None]


def test_a_coroutine_that_is_taken_back_does_not_begin(gated, hold):
    running = hold(*[reservation() for _ in range(5)])
    gated.put(running)
    gated.until(lambda: len(gated.begun) == 2)
    assert gated.take_back() == running[2:]
    assert gated.busy == set(running[:2])
    gated.let_one_end()
    gated.until(lambda: len(gated.ended) == 1)
    assert len(gated.begun) == 2


def test_the_slot_of_a_coroutine_that_was_left_behind_is_another_ones(gated, hold):
    running = hold(*[reservation() for _ in range(3)])
    gated.put(running)
    gated.until(lambda: len(gated.begun) == 2)
    assert gated.leave_behind(running[0])
    gated.until(lambda: gated.begun == running)
    gated.ended.append(running[0])  # nobody is told of that one


class Careless(Gated):
    """Its first coroutine cancels all tasks of the event loop, also those that have not begun."""

    async def _outcome(self, running):
        if not self.begun:
            for task in asyncio.all_tasks():
                task.cancel()
        await super()._outcome(running)

    def _note(self, running, outcome):
        self.kinds[running] = None if outcome is None else outcome.kind
        super()._note(running, outcome)


@pytest.mark.parametrize(
    ("asked", "kind"), [("", OutcomeKind.RELEASE), (CANCEL, OutcomeKind.CANCEL)]
)
def test_a_coroutine_that_is_cancelled_before_its_first_step_is_given_back(
    clock, hold, asked, kind
):
    pool = Careless(2, clock)
    pool.kinds = {}
    pool.start()
    one, two, three = hold(*[reservation() for _ in range(3)])
    two.asked = asked
    pool.put([one, two, three])
    pool.until(lambda: {one, two} <= pool.kinds.keys() and pool.begun == [one, three])
    pool.let_one_end()
    pool.until(lambda: three in pool.kinds)
    assert pool.close(10)
    assert pool.kinds[two] == kind
    assert not pool.busy


def test_a_coroutine_is_left_behind_or_ends_and_never_both(gated, hold):
    running = hold(reservation())
    gated.put(running)
    gated.until(lambda: gated.begun == running)
    gated.let_one_end()
    gated.until(lambda: gated.ended == running)
    assert not gated.leave_behind(running[0])


@pytest.mark.parametrize("raised", [ZeroDivisionError, MemoryError])
def test_what_raises_after_the_end_of_a_job_does_not_cost_its_slot(clock, hold, broken_log, raised):
    """Be it in a thread or a coroutine, and although the log raises, too."""
    ended, last = [], threading.Event()

    def careless(running, _outcome):
        ended.append(running)
        if len(ended) == 4:
            last.set()
        raise raised

    class Threads(ThreadPool):
        def _run(self, running):
            return not_ours(running)

    class Coroutines(AsyncPool):
        async def _outcome(self, running):
            return not_ours(running)

    facts = {"runtime": None, "clock": clock, "on_finished": careless, "inputs": None}
    made = [Threads(1, isolated=None, using="default", **facts), Coroutines(1, **facts)]
    with broken_log("pools"):
        for pool in made:
            pool.start()
            pool.put(hold(reservation(), reservation()))
        assert last.wait(20)
        for pool in made:
            assert pool.close(10)


def test_a_fault_of_the_worker_is_an_outcome_although_the_log_raises(clock, hold, broken_log):
    (running,) = hold(reservation())
    with broken_log("pools"):
        outcome = fault(RuntimeError("out of order"), running, clock.now())
    assert outcome.kind == OutcomeKind.RETRY


@pytest.mark.parametrize(
    ("why", "force", "kind"),
    [(CANCEL, False, OutcomeKind.CANCEL), (REVOKED, True, OutcomeKind.RELEASE)],
)
def test_a_job_that_was_cancelled_in_the_line_does_not_begin(hold, why, force, kind):
    (running,) = hold(reservation())
    assert ended_before(running, steady()) is None
    running.cancel(why, force=force)
    assert ended_before(running, steady()).kind == kind


def test_a_job_whose_lease_ran_out_in_the_line_does_not_begin(hold):
    (running,) = hold(reservation(), valid_for=30.0)
    assert ended_before(running, steady() + 29.0) is None
    assert ended_before(running, steady() + 30.0).kind == OutcomeKind.RELEASE


def test_a_job_whose_lease_was_lost_in_the_line_does_not_begin(hold, holdings):
    (running,) = hold(reservation())
    holdings.lose(running.token)
    running.forced = False
    assert ended_before(running, steady()).kind == OutcomeKind.RELEASE
