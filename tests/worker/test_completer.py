"""No outcome is dropped while its lease stands, and none blocks the others."""

import logging
from uuid import uuid4

import pytest
from django.db import DataError, OperationalError

from taskharbor_django.exceptions import (
    JobLocked,
    JobNotInflight,
    LeaseExpired,
    LeaseMismatch,
    NotSettled,
)
from taskharbor_django.lifecycle import FailureCategory, OutcomeKind
from taskharbor_django.values import Lease, Rejection, Reservation
from taskharbor_django.worker import completer as completer_module
from taskharbor_django.worker import trouble
from taskharbor_django.worker.completer import Completer

from .conftest import ScriptedDriver, ack, reservation


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(trouble, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(completer_module, "LOCKED_PAUSE", 0.01)
    monkeypatch.setattr(completer_module, "disconnect", lambda _using: None)
    monkeypatch.setattr(completer_module.Lines, "connect", lambda *_, **__: None)


@pytest.fixture
def settled_by(holdings, clock):
    """Give outcomes to a completer with that driver; return the jobs it reported as settled."""
    started = []

    def run(driver, *running):
        settled = []
        completer = Completer(driver, holdings, clock, settled.extend)
        for each in running:
            completer.put(each, ack(each))
        completer.start()
        started.append(completer)
        assert completer.drain(10)
        return [each.job_id for each, _ in settled]

    yield run
    for completer in started:
        completer.close()


@pytest.fixture
def one_turn(holdings, clock):
    """Give outcomes to a completer that turns once, in this thread; return it and the settled."""

    def run(driver, *running):
        settled = []
        completer = Completer(
            driver, holdings, clock, lambda pairs: settled.extend(r.job_id for r, _ in pairs)
        )
        for each in running:
            completer.put(each, ack(each))
        completer._settle_gathered()
        return completer, settled

    return run


@pytest.fixture
def pass_time(monkeypatch):
    """Let the completer's clock go on by so many seconds, and by no others."""
    now = [1_000.0]
    monkeypatch.setattr(completer_module, "monotonic", lambda: now[0])

    def go_on(seconds):
        now[0] += seconds

    return go_on


def jobs_of(driver):
    return [[outcome.job_id for outcome in batch] for batch in driver.batches]


def rejecting(error, *, repeated=False):
    return lambda outcomes: [Rejection(outcomes[0], error, repeated)]


def test_what_gathered_is_settled_in_one_batch(settled_by, hold):
    driver = ScriptedDriver()
    running = hold(*(reservation() for _ in range(20)))
    assert settled_by(driver, *running) == [each.job_id for each in running]
    assert [len(batch) for batch in driver.batches] == [20]


def test_a_settled_job_is_held_no_longer(settled_by, hold, holdings):
    settled_by(ScriptedDriver(), *hold(reservation()))
    assert not holdings


@pytest.mark.parametrize("error", [JobLocked(), LeaseExpired()])
def test_a_lock_or_a_renewal_on_its_way_only_delays(settled_by, hold, error, monkeypatch):
    monkeypatch.setattr(completer_module, "EXPIRED_PAUSE", 0.01)
    driver = ScriptedDriver(rejecting(error), rejecting(error))
    running = hold(reservation())
    assert settled_by(driver, *running) == [running[0].job_id]
    assert len(driver.batches) == 3


@pytest.mark.parametrize("error", [JobLocked(), LeaseExpired()])
def test_what_has_to_wait_keeps_nothing_else_waiting(settled_by, hold, error, monkeypatch):
    monkeypatch.setattr(completer_module, "EXPIRED_PAUSE", 0.01)
    driver = ScriptedDriver(rejecting(error))
    first, *others = hold(*(reservation() for _ in range(3)))
    settled = settled_by(driver, first, *others)
    assert settled == [each.job_id for each in (*others, first)]
    assert [len(batch) for batch in driver.batches] == [3, 1]


def test_what_stays_locked_is_tried_ever_later_and_not_with_each_batch(one_turn, hold, pass_time):
    """Somebody forgot to commit: a dozen statements for its row must not come 20 times a second."""
    locked, *others = hold(*(reservation() for _ in range(41)))
    driver = Refusing(locked.job_id, JobLocked())
    completer, settled = one_turn(driver, locked)
    for other in others:
        pass_time(0.5)
        completer.put(other, ack(other))
        completer._settle_gathered()
    assert settled == [it.job_id for it in others]
    tries = sum(locked.job_id in jobs for jobs in jobs_of(driver))
    assert 10 < tries < 20  # in 20 seconds, of 40 turns
    assert 0 < completer._pause <= completer_module.LONGEST_LOCKED_PAUSE
    driver.refused = None
    completer.hurry()
    completer._settle_gathered()
    assert settled[-1] == locked.job_id
    assert completer._pause is None


def test_the_next_that_is_locked_is_tried_soon_again(one_turn, hold, pass_time):
    first, second = hold(reservation(), reservation())
    driver = ScriptedDriver(*[rejecting(JobLocked())] * 5)
    completer, settled = one_turn(driver, first)
    while not settled:
        pass_time(completer_module.LONGEST_LOCKED_PAUSE)
        completer._settle_gathered()
    driver = completer._driver = ScriptedDriver(rejecting(JobLocked()))
    completer.put(second, ack(second))
    completer._settle_gathered()
    assert completer._pause == pytest.approx(completer_module.LOCKED_PAUSE)


def test_two_runs_of_a_job_in_one_batch_have_each_their_own_fate(settled_by, hold):
    """The first one's reply was lost; the second has met a lock."""
    first = reservation()
    again = Reservation(first.job, Lease(uuid4(), first.lease.expires_at, version=2))

    def answer(outcomes):
        return [Rejection(outcomes[1], JobLocked()), Rejection(outcomes[0], JobNotInflight(), True)]

    driver = ScriptedDriver(answer)
    assert len(settled_by(driver, *hold(first), *hold(again))) == 2
    assert [[it.token for it in batch] for batch in driver.batches] == [
        [first.lease.token, again.lease.token],
        [again.lease.token],
    ]


def test_a_database_that_is_away_only_delays(settled_by, hold):
    driver = ScriptedDriver(OperationalError("gone"), OperationalError("gone"))
    running = hold(reservation(), reservation())
    assert len(settled_by(driver, *running)) == 2


def test_a_full_batch_that_has_to_wait_does_not_stop_the_next(one_turn, hold, monkeypatch):
    monkeypatch.setattr(completer_module, "LARGEST_BATCH", 2)
    locks = [lambda outcomes: [Rejection(outcome, JobLocked()) for outcome in outcomes]] * 5
    driver = ScriptedDriver(locks[0], [], *locks)
    first, second, third = hold(*(reservation() for _ in range(3)))
    completer, settled = one_turn(driver, first, second, third)
    assert jobs_of(driver) == [[first.job_id, second.job_id], [third.job_id]]
    assert settled == [third.job_id]
    assert not completer.drain(0)


def test_a_database_that_is_away_is_left_alone_however_much_has_gathered(
    one_turn, hold, monkeypatch
):
    monkeypatch.setattr(completer_module, "LARGEST_BATCH", 2)
    driver = ScriptedDriver(OperationalError("gone"))
    running = hold(*(reservation() for _ in range(5)))
    completer, settled = one_turn(driver, *running)
    assert (len(driver.batches), settled) == (1, [])
    completer._settle_gathered()
    assert sorted(settled) == sorted(each.job_id for each in running)
    assert completer.drain(0)


def test_the_first_outcome_after_all_others_were_lost_waits_for_no_pause(one_turn, hold, holdings):
    lost, later = hold(reservation()), hold(reservation())
    driver = ScriptedDriver(OperationalError("gone"))
    completer, _ = one_turn(driver, *lost)
    assert not completer.drain(0)
    holdings.lose(lost[0].token)
    completer._settle_gathered()
    assert completer.drain(0)
    completer._wake.clear()
    completer.put(later[0], ack(later[0]))
    assert completer._wake.is_set()


def test_however_long_it_is_away_each_turn_asks_once(one_turn, hold, monkeypatch):
    monkeypatch.setattr(completer_module, "LARGEST_BATCH", 4)
    driver = ScriptedDriver(*[OperationalError("gone")] * 20)
    running = hold(*(reservation() for _ in range(9)))
    completer, settled = one_turn(driver, *running)
    for turn in range(2, 21):
        completer._settle_gathered()
        assert len(driver.batches) == turn
    assert set(completer.unsettled()) == set(running)
    completer._settle_gathered()
    assert sorted(settled) == sorted(each.job_id for each in running)
    assert (completer.unsettled(), completer.drain(0)) == ({}, True)


class Refusing(ScriptedDriver):
    """Refuses the outcome of one job, for as long as it is told to."""

    def __init__(self, refused, error):
        super().__init__()
        self.refused, self._error = refused, error

    def settle(self, outcomes, *, now):
        super().settle(outcomes, now=now)
        return [Rejection(it, self._error) for it in outcomes if it.job_id == self.refused]


class Failing(ScriptedDriver):
    """A database that can be used, but not for some batches."""

    def __init__(self, is_refused):
        super().__init__()
        self.is_refused = is_refused

    def settle(self, outcomes, *, now):
        super().settle(outcomes, now=now)
        if self.is_refused([outcome.job_id for outcome in outcomes]):
            raise OperationalError("canceling statement due to statement timeout")
        return []


def test_a_batch_that_failed_comes_again_behind_the_others(one_turn, hold, monkeypatch):
    monkeypatch.setattr(completer_module, "LARGEST_BATCH", 2)
    first, *others = hold(*(reservation() for _ in range(5)))
    driver = Failing(lambda ids: first.job_id in ids)
    completer, settled = one_turn(driver, first, *others)
    assert settled == []
    completer._settle_gathered()
    assert settled == [each.job_id for each in others[1:]]


def test_new_ones_that_fail_and_fail_keep_none_from_coming_again(one_turn, hold, monkeypatch):
    monkeypatch.setattr(completer_module, "LARGEST_BATCH", 2)
    first, *others = hold(*(reservation() for _ in range(2)))
    driver = Failing(lambda ids: len(ids) > 1)
    completer, settled = one_turn(driver, first, *others)
    for _ in range(10):
        for each in hold(reservation(), reservation()):
            completer.put(each, ack(each))
        completer._settle_gathered()
    assert first.job_id in settled


def test_a_batch_that_is_too_much_at_once_is_halved(settled_by, hold):
    running = hold(*(reservation() for _ in range(20)))
    driver = Failing(lambda ids: len(ids) > 5)
    assert sorted(settled_by(driver, *running)) == sorted(each.job_id for each in running)
    sizes = [len(batch) for batch in driver.batches]
    assert sizes[:2] == [20, 20]  # once more as it is: mostly it is the database that was away
    assert max(sizes[2:]) == 10


class Full(Exception):
    sqlstate = "53100"


def full():
    error = OperationalError("could not extend file: No space left on device")
    error.__cause__ = Full()
    return error


def test_what_no_outcome_can_help_divides_no_batch_and_sets_none_aside(one_turn, hold):
    """A disk that is nearly full lets some through and not the next, whichever that is."""
    running = hold(*(reservation() for _ in range(4)))
    driver = ScriptedDriver(full(), full(), full())
    completer, settled = one_turn(driver, *running)
    for _ in range(2):
        completer._settle_gathered()
    assert [len(batch) for batch in driver.batches] == [4, 4, 4]
    alone, other = hold(reservation(), reservation())
    driver.answers = [full(), [], [], full()]
    completer.put(alone, ack(alone))
    completer._settle_gathered()  # the new one fails
    completer.put(other, ack(other))
    completer._settle_gathered()  # others go, and it fails again
    assert not completer._aside
    completer._settle_gathered()
    assert settled[-1] == alone.job_id


def test_an_outcome_that_fails_while_others_go_makes_them_wait_no_longer_each_time(
    one_turn, hold, monkeypatch
):
    monkeypatch.setattr(completer_module, "FAILED_PAUSE", 0.0)
    (bad,) = hold(reservation())
    completer, _ = one_turn(Failing(lambda ids: bad.job_id in ids), bad)
    for _ in range(10):
        (other,) = hold(reservation())
        completer.put(other, ack(other))
        completer._settle_gathered()
    assert completer.trouble.pause.failures <= 1


def test_after_an_outcome_was_set_aside_others_wait_for_nothing(one_turn, hold, pass_time):
    bad, first, second = hold(*(reservation() for _ in range(3)))
    completer, settled = one_turn(Failing(lambda ids: bad.job_id in ids), bad)
    completer.put(first, ack(first))
    completer._settle_gathered()
    assert list(completer.unsettled()) == [bad]
    completer._wake.clear()
    completer.put(second, ack(second))
    assert completer._wake.is_set()
    completer._settle_gathered()
    assert settled == [first.job_id, second.job_id]


def test_each_outcome_that_was_set_aside_has_its_own_time(one_turn, hold, pass_time):
    """One after the other comes that cannot be settled; the first could be by now."""
    first, second = hold(reservation(), reservation())
    driver = ScriptedDriver(rejecting(NotSettled()), rejecting(NotSettled()))
    completer, settled = one_turn(driver, first)
    pass_time(0.9 * completer_module.FAILED_PAUSE)
    completer.put(second, ack(second))
    completer._settle_gathered()
    assert settled == []
    pass_time(0.2 * completer_module.FAILED_PAUSE)
    completer._settle_gathered()
    assert settled == [first.job_id]
    assert list(completer.unsettled()) == [second]


def test_one_outcome_for_which_the_database_always_fails_waits_alone(one_turn, hold, pass_time):
    running = hold(*(reservation() for _ in range(5)))
    bad = running[3]
    driver = Failing(lambda ids: bad.job_id in ids)
    completer, settled = one_turn(driver, *running)
    for _ in range(10):
        completer._settle_gathered()
    assert sorted(settled) == sorted(each.job_id for each in running if each is not bad)
    assert list(completer.unsettled()) == [bad]
    tries = len(driver.batches)
    (later,) = hold(reservation())
    completer.put(later, ack(later))
    completer._settle_gathered()
    assert jobs_of(driver)[tries:] == [[later.job_id]]
    driver.is_refused = lambda _: False
    pass_time(completer_module.FAILED_PAUSE)
    completer._settle_gathered()
    assert settled[-1] == bad.job_id
    assert completer.drain(0)


def test_what_came_just_before_the_end_is_settled(holdings, clock, hold):
    driver = ScriptedDriver()
    completer = Completer(driver, holdings, clock, lambda _settled: None)
    (running,) = hold(reservation())
    completer.put(running, ack(running))
    completer._closing = True  # as `close` does, between two turns
    completer.run()
    assert jobs_of(driver) == [[running.job_id]]
    assert not holdings


def test_a_repeated_outcome_is_a_success(settled_by, hold):
    running = hold(reservation())
    driver = ScriptedDriver(rejecting(JobNotInflight(), repeated=True))
    assert settled_by(driver, *running) == [running[0].job_id]


@pytest.mark.parametrize("error", [JobNotInflight(), LeaseMismatch()])
def test_what_is_somebody_elses_is_given_up(settled_by, hold, holdings, error):
    running = hold(reservation(), reservation())
    assert settled_by(ScriptedDriver(rejecting(error)), *running) == [running[1].job_id]
    assert not holdings


def test_an_outcome_of_a_lost_lease_is_not_even_sent(settled_by, hold, holdings):
    running = hold(reservation())
    holdings.lose(running[0].token)
    driver = ScriptedDriver()
    assert settled_by(driver, *running) == []
    assert driver.batches == []


@pytest.fixture
def too_late(holdings):
    """The jobs whose outcome came too late, in their order."""
    found = []

    def count(*, running, **_):
        found.append(running.job_id)

    completer_module.too_late.connect(count, sender=holdings)
    yield found
    completer_module.too_late.disconnect(count, sender=holdings)


def test_an_outcome_that_is_refused_is_counted_as_too_late(settled_by, hold, too_late):
    refused, other = hold(reservation(), reservation())
    settled_by(ScriptedDriver(rejecting(LeaseMismatch())), refused, other)
    assert too_late == [refused.job_id]


def test_an_outcome_of_a_lost_lease_is_counted_once_however_often_the_others_are_tried(
    settled_by, hold, holdings, too_late
):
    lost, other = hold(reservation(), reservation())
    holdings.lose(lost.token)
    driver = ScriptedDriver(OperationalError("gone"), OperationalError("gone"))
    assert settled_by(driver, lost, other) == [other.job_id]
    assert too_late == [lost.job_id]


def test_what_only_has_to_wait_or_was_repeated_is_not_too_late(
    settled_by, hold, too_late, monkeypatch
):
    monkeypatch.setattr(completer_module, "EXPIRED_PAUSE", 0.01)
    answers = (JobLocked(), False), (LeaseExpired(), False), (JobNotInflight(), True)
    driver = ScriptedDriver(*(rejecting(error, repeated=it) for error, it in answers))
    settled_by(driver, *hold(reservation()))
    assert too_late == []


def test_who_counts_badly_stops_nobody(settled_by, hold, holdings, caplog):
    def count(**_):
        raise ZeroDivisionError

    completer_module.too_late.connect(count, sender=holdings)
    driver = ScriptedDriver(rejecting(LeaseMismatch()))
    refused, other = hold(reservation(), reservation())
    assert settled_by(driver, refused, other) == [other.job_id]


class TestFaultsOfOthers:
    """A filter of the log, a listener: whatever they raise ends no thread and drops no outcome."""

    def test_a_lost_lease_that_cannot_be_logged(
        self, settled_by, hold, holdings, broken_log, caplog
    ):
        caplog.set_level(logging.INFO)
        lost, other = hold(reservation(), reservation())
        holdings.lose(lost.token)
        with broken_log("completer"):
            assert settled_by(ScriptedDriver(), lost, other) == [other.job_id]

    def test_an_outcome_given_up_that_cannot_be_logged(self, settled_by, hold, broken_log):
        driver = ScriptedDriver(rejecting(LeaseMismatch()))
        given_up, other = hold(reservation(), reservation())
        with broken_log("completer"):
            assert settled_by(driver, given_up, other) == [other.job_id]
        assert len(driver.batches) == 1

    def test_a_listener_that_raises(self, holdings, clock, hold, caplog):
        def deaf(_settled):
            raise ZeroDivisionError

        driver = ScriptedDriver()
        completer = Completer(driver, holdings, clock, deaf)
        (running,) = hold(reservation())
        completer.put(running, ack(running))
        completer._settle_gathered()
        assert completer.drain(0)
        assert (len(driver.batches), len(holdings)) == (1, 0)
        assert "could not be told of" in caplog.text

    def test_a_turn_that_fails(self, settled_by, hold, monkeypatch, caplog):
        monkeypatch.setattr(completer_module, "EXPIRED_PAUSE", 0.01)
        gather, faults = Completer._gather, [ZeroDivisionError()] * 3

        def faulty(completer):
            gather(completer)
            if faults:
                raise faults.pop()

        monkeypatch.setattr(Completer, "_gather", faulty)
        running = hold(*(reservation() for _ in range(3)))
        assert settled_by(ScriptedDriver(), *running) == [each.job_id for each in running]
        assert faults == []
        assert "the next comes" in caplog.text


def test_one_outcome_whose_end_cannot_be_told_waits_alone(one_turn, hold, pass_time):
    running = hold(*(reservation() for _ in range(5)))
    bad, broken = running[3], True

    class Faulty(ScriptedDriver):
        def settle(self, outcomes, *, now):
            super().settle(outcomes, now=now)
            if broken and bad.job_id in {outcome.job_id for outcome in outcomes}:
                raise KeyError("a fault of ours")
            return []

    driver = Faulty()
    completer, settled = one_turn(driver, *running)
    others = [each.job_id for each in running if each is not bad]
    assert settled == others
    assert list(completer.unsettled()) == [bad]
    tries = len(driver.batches)
    (later,) = hold(reservation())
    completer.put(later, ack(later))
    completer._settle_gathered()
    assert jobs_of(driver)[tries:] == [[later.job_id]]
    assert not completer.drain(0)
    broken = False
    pass_time(completer_module.FAILED_PAUSE)
    completer._settle_gathered()
    assert settled == [*others, later.job_id, bad.job_id]
    assert completer.drain(0)


def test_one_outcome_that_the_database_refuses_does_not_block_its_batch(one_turn, hold):
    """Not even until the next turn, in which the completer would halve a batch that failed."""
    running = hold(*(reservation() for _ in range(5)))
    bad = running[3].job_id

    class Picky(ScriptedDriver):
        def settle(self, outcomes, *, now):
            super().settle(outcomes, now=now)
            if any(o.job_id == bad and o.kind == OutcomeKind.ACK for o in outcomes):
                raise DataError("value out of range")
            return []

    driver = Picky()
    _, settled = one_turn(driver, *running)
    assert settled == [each.job_id for each in running]
    (plain,) = driver.batches[-1] if len(driver.batches[-1]) == 1 else driver.batches[-2]
    fails = [o for batch in driver.batches for o in batch if o.kind == OutcomeKind.FAIL]
    assert [(o.job_id, o.update.category) for o in fails] == [(bad, FailureCategory.SYSTEM)]
    assert plain.job_id in {each.job_id for each in running}
