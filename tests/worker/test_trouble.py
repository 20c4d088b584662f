"""How long a worker leaves a database alone that cannot be used, and what ends that early."""

import pytest
from django.db import OperationalError

from taskharbor_django.worker import presence
from taskharbor_django.worker import trouble as module
from taskharbor_django.worker.holdings import Running
from taskharbor_django.worker.options import WorkerOptions
from taskharbor_django.worker.trouble import FIRST_PAUSE, LONGEST_PAUSE, WELL_FOR, Pause, Trouble
from taskharbor_django.worker.worker import Worker

from .conftest import ack, reservation

GONE = OperationalError("gone")


@pytest.fixture
def passed(monkeypatch):
    """The steady clock, as a list of one number that a test moves on."""
    now = [1_000.0]
    monkeypatch.setattr(module, "steady", lambda: now[0])
    return now


def pauses_of(pause, times):
    return [pause.grow() for _ in range(times)]


def test_the_pause_grows_and_is_never_longer_than_the_longest():
    trouble = Trouble("reserve")
    pauses = [trouble.began(GONE) for _ in range(50)]
    assert FIRST_PAUSE * 0.75 <= pauses[0] <= FIRST_PAUSE * 1.25
    assert pauses[-1] >= LONGEST_PAUSE * 0.75
    assert max(pauses) <= LONGEST_PAUSE


def test_a_log_that_raises_does_not_end_the_part_that_is_in_trouble(broken_log):
    trouble = Trouble("reserve")
    with broken_log("trouble"):
        assert trouble.began(GONE) > 0
        assert trouble.began(RuntimeError()) > 0
        assert trouble.ended()


def test_a_beat_that_goes_through_wakes_a_loop_whose_pause_has_grown(monkeypatch):
    worker = Worker(WorkerOptions(listen=False))
    monkeypatch.setattr(worker._presence, "beat", lambda: None)
    worker._beaten()
    assert not worker._wakeup.wait(0)
    for _ in range(5):
        worker._reserving.trouble.began(GONE)
    assert worker._reserving.trouble.pause.left > FIRST_PAUSE
    worker._beaten()
    assert worker._wakeup.wait(0)
    assert worker._reserving.trouble.pause.left == 0


def test_a_success_ends_the_pause_and_the_next_failure_goes_on_where_it_was(passed):
    """As on a disk that is nearly full, which lets one write through and not the next."""
    pause = Pause(jitter=0)
    assert pauses_of(pause, 3) == [0.5, 1, 2]
    for expected in (4, 8, 16, 30, 30):
        pause.end()
        assert pause.seconds == 0
        passed[0] += WELL_FOR - 0.1
        assert pause.grow() == expected


def test_what_went_well_for_a_while_begins_with_the_shortest_pause(passed):
    pause = Pause(jitter=0)
    pauses_of(pause, 5)
    pause.end()
    passed[0] += WELL_FOR / 2
    pause.end()  # it goes well all the time
    passed[0] += WELL_FOR / 2
    assert pauses_of(pause, 2) == [0.5, 1]


def test_tries_that_take_long_and_fail_are_no_good_time(passed):
    pause = Pause(jitter=0)
    for expected in (0.5, 1, 2, 4):
        assert pause.grow() == expected
        passed[0] += 10 * WELL_FOR


def test_after_one_failure_every_call_is_heard_and_after_more_none(passed):
    """One may be a single session's; others say nothing about the database's being back."""
    pause = Pause(jitter=0)
    pause.grow()
    assert (pause.failures, pause.left) == (1, 0)
    pause.grow()
    assert (pause.failures, pause.left) == (2, 1)
    passed[0] += 0.75
    assert pause.left == 0.25
    passed[0] += 1
    assert pause.left == 0
    pause.grow()
    pause.end()
    assert (pause.failures, pause.left) == (0, 0)


def test_what_flaps_is_told_of_ever_more_seldom(passed, caplog):
    """Each change is told, for what was said last has to be true; the pauses make them few."""
    caplog.set_level("INFO", logger=module.__name__)
    trouble, until = Trouble("reserve"), passed[0] + 60
    while passed[0] < until:
        passed[0] += trouble.began(GONE)
        trouble.ended()
        passed[0] += 0.1
    assert len(caplog.messages) <= 2 * 8


def test_statistics_that_cannot_be_stored_are_no_beat_that_failed(clock, monkeypatch, caplog):
    """A lease that is renewed takes no room on a full disk, a new row of statistics does."""
    worker = Worker(WorkerOptions(listen=False))
    worker.clock = clock

    def full(*_, **__):
        raise OperationalError("No space left on device")

    monkeypatch.setattr(
        "taskharbor_django.operations.workers.beat_worker", lambda *_, **__: "quiet"
    )
    monkeypatch.setattr("taskharbor_django.operations.workers.count_minutes", full)
    for _ in range(3):
        worker._beaten()
    assert worker.quiet
    assert [record.part for record in caplog.records] == ["statistics"]


def test_of_very_many_statistics_a_beat_writes_some_and_the_end_all(clock, monkeypatch):
    """A beat has a few seconds; one that takes longer would be cut off, and the next one too."""
    worker, written = Worker(WorkerOptions(listen=False)), []
    worker.clock = clock
    monkeypatch.setattr(presence, "MOST_COUNTS", 10)
    monkeypatch.setattr(
        "taskharbor_django.operations.workers.count_minutes",
        lambda _driver, _worker, counts: written.append(sorted(queue for _, queue in counts)),
    )
    queues = [f"q{number:02}" for number in range(25)]
    held = [Running(reservation(queue=queue)) for queue in queues]
    worker._presence.count([(running, ack(running)) for running in held])
    worker._presence._write_counts()
    assert written == [queues[:10]]
    worker._presence.stop(given_back=0)
    assert written == [queues[:10], queues[10:20], queues[20:]]
