"""A handler in a thread can be stopped; the runtime around it cannot be hit."""

import threading

import pytest

from taskharbor_django.worker.interrupts import Interrupted, Interruptible


def in_thread(function):
    """Run in a thread; return what it returned, or the exception it ended with."""
    result = []

    def run():
        try:
            result.append(function())
        except BaseException as error:  # noqa: BLE001  it is what the test looks at
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def test_a_loop_is_interrupted_through_except_exception():
    stretch, started = Interruptible(), threading.Event()

    def handler():
        stretch.enter()
        started.set()
        while True:
            try:
                sum(range(100))
            except Exception:  # noqa: BLE001, S112  what a careless handler does
                continue

    thread, result = in_thread(handler)
    started.wait(10)
    assert stretch.interrupt()
    thread.join(10)
    assert isinstance(result[0], Interrupted)


def test_past_the_end_of_the_handler_nothing_is_sent():
    stretch = Interruptible()
    stretch.enter()
    stretch.leave()
    assert not stretch.interrupt()


def test_before_the_handler_nothing_is_sent():
    assert not Interruptible().interrupt()


@pytest.mark.parametrize("turn", range(50))
def test_an_interrupt_at_the_last_moment_is_raised_before_or_taken_back(turn):
    stretch, entered = Interruptible(), threading.Event()

    def handler():
        outside = "handler"
        try:
            try:
                stretch.enter()
                entered.set()
                sum(range(turn * 40))
            finally:
                stretch.leave()
        except Interrupted:
            stretch.leave()
        outside = "runtime"
        for _ in range(2000):
            outside = "runtime"
        return outside

    thread, result = in_thread(handler)
    entered.wait(10)
    stretch.interrupt()
    thread.join(10)
    assert result == ["runtime"]
