"""Which queues a worker looks into, and in which order."""

from taskharbor_django.worker.loop import SECOND_LOOK
from taskharbor_django.worker.options import ALL_QUEUES
from taskharbor_django.worker.queues import Queues


class Driver:
    """Knows which queues have ready jobs, and counts how often it was asked."""

    def __init__(self, *names):
        self.names = list(names)
        self.asked = 0

    def ready_queues(self):
        self.asked += 1
        return list(self.names)


def test_named_queues_are_looked_into_in_their_order_and_never_asked_for():
    driver = Driver("c")
    queues = Queues(driver, ["b", "a"])
    queues.woken({"c"}, SECOND_LOOK)
    assert queues.in_turn() == queues.in_turn() == ["b", "a"]
    assert driver.asked == 0


def test_all_queues_take_turns_and_are_asked_for_once_in_a_while():
    driver = Driver("a", "b", "c")
    queues = Queues(driver, [ALL_QUEUES])
    begun = [queues.in_turn()[0] for _ in range(4)]
    assert sorted(begun[:3]) == ["a", "b", "c"]
    assert begun[3] == begun[0]
    assert driver.asked == 1


def test_a_call_is_followed_at_once_and_all_are_looked_at_anew_after_it():
    driver = Driver("a")
    queues = Queues(driver, [ALL_QUEUES])
    queues.in_turn()
    queues.idle_pause(1.0)
    driver.names.append("mail")
    queues.woken({"mail"}, SECOND_LOOK)
    assert queues.in_turn() == ["mail"]
    assert driver.asked == 1
    assert sorted(queues.in_turn()) == ["a", "mail"]
    assert driver.asked == 2


def test_calls_for_one_queue_do_not_keep_the_others_waiting():
    """A worker that is busy, or whose called queue is paused, hears of the next call at once."""
    queues = Queues(Driver("a", "b"), [ALL_QUEUES])
    seen = []
    for _ in range(4):
        queues.woken({"a"}, SECOND_LOOK)
        seen.append(queues.in_turn())
    assert {tuple(look) for look in seen} == {("a", "b"), ("b", "a")}
    queues.idle_pause(1.0)
    for narrowed in (True, False, True, False):
        queues.woken({"a"}, SECOND_LOOK)
        assert (queues.in_turn() == ["a"]) is narrowed
        assert queues.narrowed is narrowed
        queues.idle_pause(1.0)


def test_a_queue_that_is_called_while_others_have_jobs_takes_its_turn_though_it_was_unknown():
    driver = Driver("a")
    queues = Queues(driver, [ALL_QUEUES])
    queues.in_turn()
    queues.woken({"mail"}, SECOND_LOOK)
    assert sorted(queues.in_turn()) == ["a", "mail"]
    assert driver.asked == 1


def test_the_look_after_a_call_is_soon_and_the_next_one_at_its_usual_time():
    queues = Queues(Driver("a"), [ALL_QUEUES])
    queues.woken(set(), SECOND_LOOK)
    assert queues.idle_pause(1.0) == SECOND_LOOK
    assert 0.75 <= queues.idle_pause(1.0) <= 1.0


def test_with_nothing_ready_one_queue_is_looked_into_to_promote_what_is_due():
    assert Queues(Driver(), [ALL_QUEUES]).in_turn() == ["default"]
