"""A lifetime that is over ends a job in any state, and takes it away from its worker."""

from datetime import timedelta

import pytest

from taskharbor_django import failpoints
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.exceptions import JobNotInflight
from taskharbor_django.failpoints import FailpointReached
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Notice
from taskharbor_django.operations import decide
from taskharbor_django.operations import expire as verb
from taskharbor_django.operations.expire import expire
from tests.factories import JobFactory, job_in, utcnow
from tests.testapp.tasks import add

from . import hold

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
OPEN = ["blocked", "scheduled", "ready", "inflight"]


@pytest.fixture
def driver():
    return DatabaseDriver()


def swept(driver, now=None):
    return sum(expire(driver, now=now or utcnow()))


@pytest.mark.parametrize("state", OPEN)
def test_it_is_buried_in_any_open_state(driver, state):
    job = job_in(state, expires_at=utcnow() - HOUR)
    assert swept(driver) == 1
    job.refresh_from_db()
    assert (job.state, job.lease, job.failure_category) == ("dead", None, "system")
    assert job.last_error == "The job was not finished within its lifetime."
    letter = DeadLetter.objects.get()
    assert (letter.open_for, letter.reason, letter.error) == (job.pk, "lifetime", job.last_error)


@pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
def test_what_has_ended_is_left_alone(driver, state):
    job = job_in(state, expires_at=utcnow() - HOUR)
    assert swept(driver) == 0
    assert Job.objects.get().state == state
    assert DeadLetter.objects.filter(reason="lifetime", job=job).count() == 0


def test_it_is_over_at_exactly_its_end(driver):
    end = utcnow()
    job_in("ready", expires_at=end)
    assert swept(driver, end - timedelta(microseconds=1)) == 0
    assert swept(driver, end) == 1


def test_without_a_lifetime_nothing_is_over(driver):
    job_in("ready", expires_at=None)
    assert swept(driver) == 0


def test_a_running_job_is_taken_away_and_its_worker_is_told(driver):
    held = hold(add.using(lifetime=HOUR).enqueue(1))
    assert swept(driver, driver.now() + 2 * HOUR) == 1
    notice = Notice.objects.get()
    assert (notice.token, notice.job_id, notice.kind) == (
        held.lease.token,
        held.job.id,
        "revoked",
    )
    late = decide.outcome(OutcomeKind.ACK, held)
    (refused,) = driver.settle([late], now=driver.now())
    assert (type(refused.error), refused.repeated) == (JobNotInflight, False)
    attempt = Attempt.objects.get()
    assert (attempt.end, attempt.lease_version) == ("lost", held.lease.version)
    assert Lease.objects.count() == 1  # its heartbeat removes it


def test_many_go_in_batches(driver, monkeypatch):
    monkeypatch.setattr(verb, "BATCH", 3)
    JobFactory.create_batch(7, expires_at=utcnow() - HOUR)
    JobFactory(expires_at=utcnow() + HOUR)
    assert list(expire(driver, now=utcnow())) == [3, 3, 1]
    assert Job.objects.filter(state="ready").count() == 1


def test_those_who_follow_a_job_hear_of_it():
    told = []
    driver = DatabaseDriver(on_end=told.extend)
    followed = job_in("ready", expires_at=utcnow() - HOUR, has_dependents=True)
    job_in("ready", expires_at=utcnow() - HOUR)
    assert swept(driver) == 2
    assert told == [followed.pk]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", ["expire.locked", "expire.moved"])
def test_a_crash_on_the_way_leaves_it_to_the_next(driver, place):
    job = job_in("inflight", expires_at=utcnow() - HOUR)

    def crash():
        raise FailpointReached

    with failpoints.armed(place, crash), pytest.raises(FailpointReached):
        swept(driver)
    job.refresh_from_db()
    assert (job.state, DeadLetter.objects.count(), Notice.objects.count()) == ("inflight", 0, 0)
    assert swept(driver) == 1


def test_one_that_ended_between_the_look_and_the_lock_is_left_alone(driver, monkeypatch):
    job = job_in("done", expires_at=utcnow() - HOUR)
    assert verb._bury(driver, [job.pk], utcnow()) == 0


def test_sweeps_side_by_side_bury_each_job_once(race, transactional_db):
    JobFactory.create_batch(40, expires_at=utcnow() - HOUR)
    race(*[lambda: swept(DatabaseDriver())] * 4)
    swept(DatabaseDriver())
    assert DeadLetter.objects.filter(open_for__isnull=False).count() == 40
