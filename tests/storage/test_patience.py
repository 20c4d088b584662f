"""Who would have to be waited for is left out, and the others are not kept from going on."""

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from taskharbor_django.drivers import DatabaseDriver, ground, postgresql
from taskharbor_django.drivers import database as database_module
from taskharbor_django.drivers.patience import Patience, patience, unless_held
from taskharbor_django.failpoints import armed
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Job

from .drivers import END, FORMS, acks, hold, outcome, put, take
from .raw import NOW
from .sessions import execute
from .test_transient import bad_luck

pytestmark = pytest.mark.django_db(transaction=True)


class Hurrying(DatabaseDriver):
    hurries = True


class Verb:
    """Refuses batches in which somebody is held; notes each try and how long it could wait."""

    def __init__(self, *held):
        self.held = set(held)
        self.tries = []
        self.patience = []

    def __call__(self, items):
        self.tries.append(list(items))
        self.patience.append(patience())
        if self.held.intersection(items):
            cause = bad_luck()[0]
            raise OperationalError(*cause.args) from cause
        return set(items)


def done(driver, items, verb):
    return set().union(*unless_held(driver, items, verb, Patience.SHORT))


class TestUnlessHeld:
    def test_all_go_together_when_nobody_is_held(self):
        verb = Verb()
        assert done(Hurrying(), range(500), verb) == set(range(500))
        assert (len(verb.tries), verb.patience) == (1, [Patience.SHORT])
        assert patience() == Patience.USUAL

    @pytest.mark.parametrize("held", [0, 250, 499])
    def test_one_that_is_held_is_left_alone(self, held):
        verb = Verb(held)
        assert done(Hurrying(), range(500), verb) == set(range(500)) - {held}

    def test_only_the_first_try_waits(self):
        verb = Verb(3)
        done(Hurrying(), range(8), verb)
        assert verb.patience[0] == Patience.SHORT
        assert set(verb.patience[1:]) == {Patience.NONE}

    def test_how_often_it_is_refused_is_bounded(self):
        verb = Verb(*range(500))
        assert done(Hurrying(), range(500), verb) == set()
        assert len(verb.tries) == 2 * (500).bit_length()

    def test_where_most_are_held_the_others_come_through_by_and_by(self):
        left, turns = set(range(100)), 0
        free = {number for number in left if number % 10 == 7}
        while free & left:
            left -= done(Hurrying(), sorted(left), Verb(*set(range(100)) - free))
            turns += 1
            assert turns < 1_000
        assert left == set(range(100)) - free

    def test_where_nobody_can_be_hurried_it_is_tried_once(self):
        class Slow(DatabaseDriver):
            hurries = False

        verb = Verb(1)
        assert done(Slow(), range(8), verb) == set()
        assert len(verb.tries) == 1

    def test_another_refusal_is_raised(self):
        def refuse(_items):
            raise DatabaseError("disk full")

        with pytest.raises(DatabaseError, match="disk full"):
            done(Hurrying(), range(8), refuse)
        assert patience() == Patience.USUAL

    def test_in_a_transaction_the_refusal_is_the_callers(self):
        verb = Verb(1)
        with transaction.atomic(), pytest.raises(OperationalError):
            done(Hurrying(), range(8), verb)
        assert (len(verb.tries), verb.patience) == (1, [Patience.USUAL])


def followed(driver, count=1):
    held = hold(driver, count)
    Job.objects.update(has_dependents=True)
    return held


class Limits(list):
    """Which limit this database has for a wait, each time that an end is told."""

    def __call__(self, _ids):
        if connection.vendor == "postgresql":
            self.append(execute("SHOW lock_timeout")[0][0])
        else:
            with DatabaseDriver().short_waits():
                self.append(execute("SELECT @@innodb_lock_wait_timeout")[0][0])


@pytest.mark.postgresql
@pytest.mark.mariadb
class TestLimits:
    """What a database is told for each of them."""

    @pytest.fixture
    def told(self):
        return Limits()

    @pytest.fixture
    def driver(self, told):
        return DatabaseDriver(on_end=told)

    @property
    def numbers(self):
        if connection.vendor == "postgresql":
            return postgresql.SHORT_TIMEOUT, postgresql.LEAST_TIMEOUT, postgresql.LOCK_TIMEOUT
        return ground.SHORT_WAIT, ground.NO_WAIT, ground.LOCK_WAIT

    def test_a_settle_waits_a_little_for_who_follows(self, driver, told):
        assert driver.settle(acks(followed(driver)), now=NOW) == []
        assert told == [self.numbers[0]]

    @pytest.mark.parametrize("gone", [False, True])
    def test_taking_back_does_not_wait(self, driver, told, gone):
        held = followed(driver)
        if gone:
            execute("DELETE FROM taskharbor_lease")
            assert driver.sweep(now=END, max_lease_losses=1) == 1
        else:
            assert take(driver, now=END, max_lease_losses=1) == []
        assert told == [self.numbers[1]]
        assert Job.objects.get(pk=held[0].job.id).state == "dead"

    def test_in_the_transaction_of_a_handler_it_is_as_ever(self, driver, told):
        (held,) = followed(driver)
        with transaction.atomic():
            driver.settle_waiting(outcome(OutcomeKind.ACK, held), now=NOW)
        assert told == [self.numbers[2]]


class TestALateClaim:
    """A lease counts from the caller's `now`: what was slow before it would use it up."""

    @pytest.fixture(
        params=[pytest.param("set-based", marks=pytest.mark.postgresql), pytest.param("portable")]
    )
    def driver(self, request):
        return FORMS[request.param]()

    @pytest.fixture
    def passing(self, monkeypatch):
        """Let so many seconds pass between the first look and the claim."""
        time = [0.0]
        monkeypatch.setattr(database_module, "steady", lambda: time[0])

        def pass_by(seconds):
            return armed("reserve.peeked", lambda: time.__setitem__(0, time[0] + seconds))

        return pass_by

    @pytest.mark.parametrize("slow", ["due", "expired"])
    def test_is_not_made(self, driver, passing, slow):
        if slow == "due":
            put(driver, run_at=END)
        else:
            hold(driver)
        with passing(8):  # of thirty
            assert take(driver, now=END) == []
        assert set(Job.objects.values_list("state", flat=True)) == {"ready"}
        with passing(8):  # there is nothing left that could be slow
            assert len(take(driver, now=END)) == 1

    def test_that_is_not_too_late_is_made(self, driver, passing):
        hold(driver)
        with passing(7):
            assert len(take(driver, now=END)) == 1
