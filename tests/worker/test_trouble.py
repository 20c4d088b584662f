"""How long a worker leaves a database alone that cannot be used, and what ends that early."""

from django.db import OperationalError

from taskharbor_django.worker.options import WorkerOptions
from taskharbor_django.worker.trouble import FIRST_PAUSE, LONGEST_PAUSE, Trouble
from taskharbor_django.worker.worker import Worker

GONE = OperationalError("gone")


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
    worker._reserving.trouble.began(GONE)
    worker._beaten()
    assert worker._wakeup.wait(0)
