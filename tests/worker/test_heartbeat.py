"""The heartbeat goes on, whatever is raised around it."""

import threading
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.db import OperationalError

from taskharbor_django.clock import steady
from taskharbor_django.worker.heartbeat import LAST_BEATS, Heartbeat
from taskharbor_django.worker.lines import Lines

from .conftest import LEASE, reservation

pytestmark = pytest.mark.django_db(transaction=True)


class Beating(Heartbeat):
    """A heartbeat whose beats do what a test says; `until` waits for so many of them."""

    def __init__(self, holdings, driver=None, **options):
        super().__init__(
            driver or Silent(),
            holdings,
            clock=None,
            lease=LEASE,
            interval=timedelta(seconds=0.01),
            lines=Lines("default"),
            **{"on_beat": lambda: None, "on_found": lambda *_: None} | options,
        )
        self.beats, self.moved = 0, threading.Condition()

    def beat(self):
        with self.moved:
            self.beats += 1
            self.moved.notify_all()

    def until(self, beats):
        with self.moved:
            return self.moved.wait_for(lambda: self.beats >= beats, 20)


class Silent:
    using = "default"


def test_a_lost_lease_whose_log_line_raises_does_not_end_the_heartbeat(holdings, hold, broken_log):
    lost = hold(reservation(), reservation(), valid_for=0.0)
    heartbeat = Beating(holdings)
    with broken_log("heartbeat"):
        heartbeat.start()
        assert heartbeat.until(beats=4)
        heartbeat.close()
    assert not any(running.held for running in lost)


def test_what_fails_after_a_beat_does_not_end_the_heartbeat(holdings):
    def fail():
        raise RuntimeError("no place for the health file")

    heartbeat = Beating(holdings, on_turn=fail)
    heartbeat.start()
    assert heartbeat.until(beats=3)
    heartbeat.close()


def test_a_heartbeat_that_is_closed_ends_although_each_turn_fails(holdings):
    def fail():
        raise RuntimeError("no place for the health file")

    heartbeat = Beating(holdings, on_turn=fail)
    heartbeat._stopping = True
    heartbeat.start()
    heartbeat.join(20)
    assert not heartbeat.is_alive()
    assert heartbeat.beats == LAST_BEATS


def test_a_beat_that_fails_and_cannot_be_logged_is_followed_by_another(holdings, broken_log):
    class Failing(Beating):
        def beat(self):
            super().beat()
            raise OperationalError("gone")

    heartbeat = Failing(holdings)
    with broken_log("trouble"):
        heartbeat.start()
        assert heartbeat.until(beats=2)
        heartbeat.close()


def test_a_beat_that_a_doubt_calls_for_calls_nobody(holdings, clock):
    """A reserve that fails raises a doubt: the beat would let it fail again at once."""
    told, answers = [], [None, None, OperationalError("gone"), None]

    def measure():
        if answer := answers.pop(0):
            raise answer

    clock.measure = measure
    heartbeat = Heartbeat(
        Silent(),
        holdings,
        clock,
        lease=LEASE,
        interval=timedelta(seconds=10),
        lines=Lines("default"),
        on_beat=lambda: told.append(len(answers)),
        on_found=lambda *_: None,
    )
    assert heartbeat._turn() == 0  # on time
    assert heartbeat._turn() == 0  # called for
    assert told == [3]
    assert heartbeat._turn() > 0  # failed
    assert heartbeat._turn() == 0  # the database is back, and all are to know
    assert told == [3, 0]


def test_each_beat_that_is_on_time_calls_though_it_began_a_little_sooner_after_the_last(
    holdings, clock
):
    told, now = [], [100.0]
    clock.measure = lambda: None
    heartbeat = Beating(holdings, on_beat=lambda: told.append(now[0]))
    heartbeat._clock, heartbeat._interval = clock, 10.0
    with patch(f"{Heartbeat.__module__}.steady", lambda: now[0]):
        for _ in range(3):
            Heartbeat.beat(heartbeat)
            now[0] += 9.875
    assert told == [100.0, 109.875, 119.75]


def test_a_beat_that_takes_long_is_followed_by_the_next_as_soon(holdings):
    class Slow(Beating):
        def _turn_safely(self):
            self.beat()
            past[0] += 7.0
            return 0.0

        def _wait(self, pause):
            waited.append(pause)
            self._stopping = len(waited) > 2

    past, waited = [0.0], []
    heartbeat = Slow(holdings)
    heartbeat._interval = 10.0
    with patch(f"{Heartbeat.__module__}.steady", lambda: past[0]):
        heartbeat.run()
    assert waited == [10.0, 3.0, 3.0]


class Forgetful(Silent):
    def extend_leases(self, _tokens, *, now, lease_for):
        return {}


def test_a_lease_that_is_gone_is_lost_unless_all_under_it_has_ended(holdings, hold, clock):
    """It may have been a settle that emptied it; the completer is told by the next one."""
    lease = reservation().lease
    ended, runs = hold(
        *(replace(it, lease=lease) for it in (reservation(), reservation())),
    )
    heartbeat = Beating(holdings, Forgetful())
    heartbeat._clock = clock
    ended.ended = runs.ended = True
    heartbeat._renew([lease.token], [], steady())
    assert ended.held
    assert runs.held
    runs.ended = False
    heartbeat._renew([lease.token], [], steady())
    assert not ended.held
    assert not runs.held


class Knowing(Silent):
    """Has one job that a reserve without a reply took; renews what it is asked to, if it can."""

    def __init__(self, *renewals):
        self.found, self.renewals = [reservation()], list(renewals)

    def held(self, _token, *, now):
        return self.found

    def extend_leases(self, tokens, *, now, lease_for):
        answer = self.renewals.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(tokens) if answer else {}


def test_what_a_reserve_had_taken_is_asked_for_until_it_is_taken_on(holdings, clock):
    """Not only until it was found: to renew it may fail, and to take it on, too."""
    driver, taken = Knowing(OperationalError("gone"), True, True), []

    def take_on(reserved, _valid_until):
        taken.append(reserved)
        if len(taken) == 1:
            raise RuntimeError

    heartbeat = Beating(holdings, driver, on_found=take_on)
    heartbeat._clock = clock
    heartbeat.doubt(uuid4())
    with pytest.raises(OperationalError):
        heartbeat._ask_for_doubtful(steady())
    assert not taken
    with pytest.raises(RuntimeError):
        heartbeat._ask_for_doubtful(steady())
    heartbeat._ask_for_doubtful(steady())
    heartbeat._ask_for_doubtful(steady())
    assert taken == [driver.found, driver.found]


def test_what_a_reserve_had_taken_is_renewed_before_it_begins_and_believed_in_as_any_other(
    holdings, clock
):
    """From before the beat was sent on, which comes before it asks what time it is there."""
    driver, taken, measured = Knowing(True), [], []
    clock.measure = lambda: measured.append(steady())

    def take_on(reserved, valid_until):
        taken.append((reserved, driver.renewals, valid_until))

    heartbeat = Beating(holdings, driver, on_found=take_on)
    heartbeat._clock = clock
    heartbeat.doubt(uuid4())
    sent = steady()
    Heartbeat.beat(heartbeat)
    ((reserved, renewals, valid_until),) = taken
    assert reserved == driver.found
    assert renewals == []
    assert sent <= valid_until - LEASE.total_seconds() <= measured[0]


def test_what_a_reserve_had_taken_and_lost_since_is_left_alone(holdings, clock):
    driver, taken = Knowing(False), []
    heartbeat = Beating(holdings, driver, on_found=lambda *found: taken.append(found))
    heartbeat._clock = clock
    heartbeat.doubt(uuid4())
    heartbeat._ask_for_doubtful(steady())
    assert not taken
    assert not heartbeat._doubtful
