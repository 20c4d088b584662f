"""What a process holds, and until when it believes in it."""

from uuid import uuid4

from taskharbor_django.clock import steady
from taskharbor_django.context import JobContext

from .conftest import reservation


def test_every_reservation_is_heartbeated_until_it_is_settled(holdings, hold):
    token = uuid4()
    first, second = hold(reservation(token), reservation(token))
    assert holdings.tokens() == [token]
    holdings.remove(first)
    assert holdings.tokens() == [token]
    holdings.remove(second)
    assert holdings.tokens() == []


def test_a_lease_that_covers_nothing_any_more_is_told_of_once(holdings, hold):
    (running,) = hold(reservation())
    holdings.remove(running)
    assert holdings.take_emptied() == [running.token]
    assert holdings.take_emptied() == []


def test_a_reservation_that_is_known_is_not_taken_on_twice(holdings, hold):
    one = reservation()
    assert len(hold(one)) == 1
    assert hold(one) == []
    assert len(holdings) == 1


def test_a_lease_is_overdue_when_its_last_renewal_was_sent_too_long_ago(holdings, hold):
    (running,) = hold(reservation(), valid_for=-1.0)
    assert holdings.overdue() == [running.token]
    holdings.renewed([running.token], steady() + 30)
    assert holdings.overdue() == []


def test_losing_a_lease_stops_its_jobs_by_force(holdings, hold):
    stopped = []
    (running,) = hold(reservation())
    running.context = JobContext(running.reservation, runtime=None)
    running.stop = lambda why, force: stopped.append((why, force))
    assert holdings.lose(running.token) == [running]
    assert stopped == [("its lease is lost", True)]
    assert running.context.cancelled
    assert not holdings


def test_a_settled_job_of_an_old_lease_does_not_remove_the_new_run(holdings, hold):
    old, new = reservation(), reservation()
    (before,) = hold(old)
    holdings.lose(before.token)
    (after,) = hold(new)
    holdings.remove(before)
    assert holdings.find(after.token, after.job_id) is after
