"""What the watch does to a job, while the pools go on meanwhile."""

import threading
from types import SimpleNamespace

import pytest

from taskharbor_django.clock import steady
from taskharbor_django.worker.async_pool import AsyncPool
from taskharbor_django.worker.pools import ThreadPool
from taskharbor_django.worker.watch import Watch

from .conftest import ack, reservation

STUBBORN_AFTER = 5.0


class Relay(ThreadPool):
    """One thread with two jobs: the first ends when the watch looks at it, the second after."""

    def __init__(self, clock):
        super().__init__(
            1,
            runtime=None,
            clock=clock,
            on_finished=lambda running, _: self.finished.append(running),
            isolated=None,
            inputs=None,
            using="default",
        )
        self.finished, self.begun, self.shut_under = [], [], []
        self.go = [threading.Event(), threading.Event()]
        self.moved = threading.Condition()
        self.opened.shut = self.shut_under.append

    def _run(self, running):
        with self.moved:
            self.begun.append(running)
            self.moved.notify_all()
        assert self.go[len(self.begun) - 1].wait(20)
        return ack(running)

    def until_begun(self, count):
        with self.moved:
            assert self.moved.wait_for(lambda: len(self.begun) == count, 20)

    def go_on(self):
        """Let the thread end the first job and begin the second."""
        self.go[0].set()
        self.until_begun(2)


@pytest.fixture
def scene(clock, holdings, hold):
    """A watch, and a thread that runs the first of two jobs."""
    pool, stubborn = Relay(clock), []
    coroutines = AsyncPool(1, runtime=None, clock=clock, on_finished=lambda *_: None, inputs=None)
    watch = Watch(
        holdings,
        pool,
        coroutines,
        lambda running, _: stubborn.append(running),
        lambda: None,
        stubborn_after=STUBBORN_AFTER,
    )
    old, new = hold(reservation(), reservation())
    pool.start()
    pool.put([old, new])
    pool.until_begun(1)
    yield SimpleNamespace(watch=watch, pool=pool, stubborn=stubborn, old=old, new=new)
    for each in pool.go:
        each.set()
    pool.close(20)
    for thread in pool._threads:  # also one that was left behind
        thread.join(20)
        assert not thread.is_alive()


def meanwhile(monkeypatch, scene, question):
    """Let the thread go on to its next job right after the watch has this answer."""
    real = getattr(scene.watch, question)

    def answer(running, now):
        found = real(running, now)
        if found:
            scene.pool.go_on()
        return found

    monkeypatch.setattr(scene.watch, question, answer)


def test_a_thread_is_not_left_behind_with_the_job_that_it_drew_meanwhile(scene, monkeypatch):
    scene.old.deadline = steady() - STUBBORN_AFTER - 1
    meanwhile(monkeypatch, scene, "_is_stubborn")
    scene.watch.look()
    assert list(scene.pool.busy) == [scene.new]
    scene.pool.go[1].set()
    assert scene.pool.close(20)
    assert (scene.stubborn, scene.pool.finished) == ([], [scene.old, scene.new])


def test_the_connections_of_the_job_that_a_thread_drew_meanwhile_are_not_shut(scene, monkeypatch):
    scene.old.cancel("its lease is lost", force=True)
    scene.old.forced_at -= STUBBORN_AFTER + 1
    meanwhile(monkeypatch, scene, "_is_deaf")
    scene.watch.look()
    assert scene.pool.shut_under == []


def test_the_connections_of_a_job_that_does_not_hear_are_shut(scene):
    scene.old.cancel("its lease is lost", force=True)
    scene.old.forced_at -= STUBBORN_AFTER + 1
    thread = scene.pool.busy[scene.old]
    scene.watch.look()
    assert scene.pool.shut_under == [thread]


def test_the_connections_are_doubted_after_a_job_that_was_made_to_stop(scene, monkeypatch):
    """They may have been shut between its last query and its end."""
    doubted = []
    monkeypatch.setattr(scene.pool, "_doubt", doubted.append)
    scene.old.cancel("its lease is lost", force=True)
    scene.pool.go_on()
    assert doubted == [scene.pool.busy[scene.new]]


def test_a_job_that_does_not_stop_has_an_outcome_although_the_log_raises(scene, broken_log):
    scene.old.deadline = steady() - STUBBORN_AFTER - 1
    with broken_log("watch"), pytest.raises(ZeroDivisionError):
        scene.watch.look()
    assert scene.stubborn == [scene.old]


def test_a_look_that_fails_is_followed_by_another_although_the_log_raises(
    scene, broken_log, monkeypatch
):
    looks, again = [], threading.Event()

    def look():
        looks.append(True)
        if len(looks) == 2:
            again.set()
        raise RuntimeError

    monkeypatch.setattr(scene.watch, "look", look)
    with broken_log("watch"):
        scene.watch.start()
        assert again.wait(20)
        scene.watch.close()
