"""What time it is: this machine's, a test's own, and the database's as last learnt."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from freezegun import freeze_time

from taskharbor_django import clock
from taskharbor_django.clock import DatabaseClock, FixedClock, LocalClock, steady
from taskharbor_django.drivers import JobRecord, MemoryDriver

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


class Ticks:
    """A steady clock in the hand of a test."""

    def __init__(self):
        self.at = 1000.0

    def __call__(self):
        return self.at

    def pass_(self, seconds):
        self.at += seconds


@pytest.fixture
def ticks(monkeypatch):
    ticks = Ticks()
    monkeypatch.setattr(clock, "steady", ticks)
    return ticks


class Server:
    """Stands for the database: tells the time, and how often it was asked."""

    def __init__(self, told, before=None):
        self.told, self.before, self.asked = told, before, 0

    def __call__(self):
        self.asked += 1
        if self.before is not None:
            self.before()
        return self.told


def test_the_local_clock_is_this_machine_s_in_utc():
    with freeze_time(NOON):
        now = LocalClock().now()
    assert (now, now.tzinfo) == (NOON, UTC)


def test_a_fixed_clock_stands_still_until_it_is_moved():
    fixed = FixedClock(NOON)
    assert fixed.now() == fixed.now() == NOON
    fixed.move(HOUR)
    assert fixed.now() == NOON + HOUR
    fixed.move(-2 * HOUR)
    assert fixed.now() == NOON - HOUR


def test_the_database_is_asked_once_and_its_time_carried_on(ticks):
    server = Server(NOON)
    database = DatabaseClock(server)
    assert database.now() == NOON
    ticks.pass_(2.5)
    assert database.now() == NOON + 2.5 * SECOND
    assert server.asked == 1


def test_the_database_is_not_asked_before_somebody_wants_to_know():
    server = Server(NOON)
    DatabaseClock(server)
    assert server.asked == 0


def test_an_answer_is_taken_for_the_middle_of_its_way(ticks):
    """It was true when the server sent it, some time between the question and its arrival."""
    database = DatabaseClock(Server(NOON, before=lambda: ticks.pass_(4)))
    assert database.now() == NOON + 2 * SECOND


def test_a_later_answer_replaces_what_was_learnt(ticks):
    server = Server(NOON)
    database = DatabaseClock(server)
    database.now()
    database.learn(NOON + HOUR, sent=ticks(), received=ticks())
    ticks.pass_(1)
    assert database.now() == NOON + HOUR + SECOND
    assert server.asked == 1


def test_a_time_that_came_with_an_answer_saves_the_question(ticks):
    server = Server(NOON)
    database = DatabaseClock(server)
    database.learn(NOON, sent=ticks() - 2, received=ticks())
    assert database.now() == NOON + SECOND
    assert server.asked == 0


def test_measuring_again_asks_again(ticks):
    server = Server(NOON)
    database = DatabaseClock(server)
    database.measure()
    server.told = NOON + HOUR
    database.measure()
    assert (database.now(), server.asked) == (NOON + HOUR, 2)


def test_a_local_clock_that_jumps_changes_nothing():
    """freezegun moves every clock that an administrator can set; the steady one goes on."""
    database = DatabaseClock(Server(NOON))
    with freeze_time(NOON - HOUR) as local:
        first = database.now()
        local.move_to(NOON + 24 * HOUR)
        second = database.now()
        local.move_to(NOON - 24 * HOUR)
        third = database.now()
    assert NOON <= first <= second <= third < NOON + HOUR


def test_the_steady_clock_does_not_follow_the_local_one():
    with freeze_time(NOON) as local:
        before = steady()
        local.tick(HOUR)
        assert 0 <= steady() - before < 600


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no such clock here")
def test_the_steady_clock_counts_the_time_in_suspend(monkeypatch):
    monkeypatch.setattr(clock.time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.5}.__getitem__)
    assert steady() == 7.5


def test_the_memory_driver_takes_the_local_clock_unless_given_another():
    driver = MemoryDriver()
    with freeze_time(NOON):
        by_local = driver.enqueue(JobRecord(task="t", delay=HOUR))
    job = driver.read(by_local)
    assert (job.created_at, job.run_at) == (NOON, NOON + HOUR)
    other = MemoryDriver(clock=FixedClock(NOON + HOUR).now)
    assert other.read(other.enqueue(JobRecord(task="t"))).created_at == NOON + HOUR


def test_an_answer_that_took_long_is_asked_for_again(ticks):
    """The first question may have had to connect: half of that would put the clock ahead."""
    ways = iter([60.0, 0.02])
    server = Server(NOON, before=lambda: ticks.pass_(next(ways)))
    database = DatabaseClock(server)
    assert database.now() == NOON + 0.01 * SECOND
    assert server.asked == 2
