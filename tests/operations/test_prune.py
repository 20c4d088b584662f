"""What is old goes, in small batches, and what somebody needs stays."""

from datetime import timedelta
from uuid import uuid4

import pytest

from taskharbor_django import failpoints
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.exceptions import ResultNotStored
from taskharbor_django.failpoints import FailpointReached
from taskharbor_django.models import (
    Attempt,
    Chore,
    DeadLetter,
    Dependency,
    IdempotencyKey,
    Job,
    QueueMinute,
    Worker,
    Workflow,
)
from taskharbor_django.operations import JobHandle
from taskharbor_django.operations import prune as verb
from taskharbor_django.operations.chores import claim_chore, finish_chore
from taskharbor_django.operations.prune import prunable, prune, size_after
from taskharbor_django.payload import encode_value
from tests.factories import JobFactory, job_in, utcnow

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def driver():
    return DatabaseDriver()


def removed(driver, now=None):
    counts = {}
    for batch in prune(driver, now=now or utcnow()):
        counts[batch.what] = counts.get(batch.what, 0) + batch.count
    return counts


def old(state="done", days=8, **fields):
    return job_in(state, finished_at=utcnow() - days * DAY, **fields)


class TestJobs:
    @pytest.mark.parametrize("state", ["done", "cancelled"])
    def test_they_go_after_a_week(self, driver, state):
        old(state, days=8)
        young = old(state, days=6)
        assert removed(driver) == {state: 1}
        assert Job.objects.get() == young

    def test_dead_ones_stay_unless_asked(self, driver, settings):
        old("dead", days=1000)
        assert removed(driver) == {}
        settings.TASKHARBOR = {"RETENTION": {"dead": 30 * DAY}}
        assert removed(driver) == {"dead": 1}
        assert not DeadLetter.objects.exists()

    def test_none_keeps_them_for_good(self, driver, settings):
        settings.TASKHARBOR = {"RETENTION": {"done": None}}
        old(days=1000)
        assert removed(driver) == {}

    @pytest.mark.parametrize("state", ["ready", "scheduled", "blocked", "inflight"])
    def test_what_is_open_stays(self, driver, state):
        job_in(state, created_at=utcnow() - 100 * DAY)
        assert removed(driver) == {}

    def test_attempts_letters_and_edges_go_along(self, driver):
        job, other = old("cancelled"), job_in("done")
        for each in (job, other):
            Attempt.objects.create(
                job=each, lease_version=1, number=1, end="failed", finished_at=utcnow()
            )
        DeadLetter.objects.create(
            job=job, task="t", queue="q", reason="manual", died_at=utcnow(), closed_at=utcnow()
        )
        Dependency.objects.create(job=job, depends_on=other, kind="after")
        Dependency.objects.create(job=other, depends_on=job, kind="after")
        assert removed(driver) == {"cancelled": 1}
        assert Attempt.objects.get().job_id == other.pk
        assert not DeadLetter.objects.exists()
        assert not Dependency.objects.exists()

    def test_many_go_in_batches_and_a_needed_one_stops_none(self, driver, monkeypatch):
        monkeypatch.setattr(verb, "batch_of", lambda _: 3)
        for days in range(20, 10, -1):
            old(days=days)
        workflow = Workflow.objects.create(created_at=utcnow())
        needed = old(days=15, workflow_id=workflow.pk)
        counts = [batch.count for batch in prune(driver, now=utcnow())]
        assert counts == [3, 3, 3, 1]
        assert Job.objects.get() == needed

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("place", ["prune.locked", "prune.removed"])
    def test_a_crash_on_the_way_removes_all_of_it_or_nothing(self, driver, place):
        job = old("dead")
        Attempt.objects.create(job=job, lease_version=1, number=1, end="lost", finished_at=utcnow())
        Job.objects.update(state="cancelled", lease=None)

        def crash():
            raise FailpointReached

        with failpoints.armed(place, crash), pytest.raises(FailpointReached):
            removed(driver)
        assert (Job.objects.count(), Attempt.objects.count()) == (1, 1)
        assert removed(driver) == {"cancelled": 1}
        assert (Job.objects.count(), Attempt.objects.count()) == (0, 0)

    def test_batches_grow_while_they_are_quick_and_shrink_when_they_are_slow(self):
        assert [size_after(100, took, 150) for took in (0.1, 1, 5)] == [150, 100, 50]
        assert size_after(1, 5, 150) == 1

    def test_two_side_by_side_share_the_work(self, race, transactional_db, monkeypatch):
        monkeypatch.setattr(verb, "batch_of", lambda _: 5)
        JobFactory.create_batch(40, done=True, finished_at=utcnow() - 8 * DAY)
        counts = race(*[lambda: removed(DatabaseDriver()).get("done", 0)] * 3)
        assert sum(counts) == 40
        assert not Job.objects.exists()


class TestWhatIsNeeded:
    def test_an_open_idempotency_window(self, driver):
        job = old(idempotency_key="k")
        key = IdempotencyKey.objects.create(
            task=job.task, key="k", job=job, expires_at=utcnow() + HOUR
        )
        assert removed(driver) == {}
        IdempotencyKey.objects.filter(pk=key.pk).update(expires_at=utcnow() - HOUR)
        assert removed(driver) == {"done": 1, "keys": 1}

    def test_a_key_that_another_job_has_taken_over_needs_the_other(self, driver):
        job, other = old(idempotency_key="k"), job_in("done", idempotency_key="k")
        IdempotencyKey.objects.create(task=job.task, key="k", job=other, expires_at=utcnow() + HOUR)
        assert removed(driver) == {"done": 1}
        assert Job.objects.get() == other

    def test_an_unfinished_workflow(self, driver):
        workflow = Workflow.objects.create(created_at=utcnow())
        old(workflow_id=workflow.pk)
        assert removed(driver) == {}
        Workflow.objects.update(finished_at=utcnow())
        assert removed(driver) == {"done": 1, "workflows": 1}

    @pytest.mark.parametrize("state", ["blocked", "ready", "inflight", "dead"])
    def test_a_dependent_that_may_yet_run(self, driver, state):
        job, dependent = old(has_dependents=True), job_in(state)
        Dependency.objects.create(job=dependent, depends_on=job, kind="after")
        assert removed(driver) == {}
        Job.objects.filter(pk=dependent.pk).update(
            state="cancelled", lease=None, finished_at=utcnow(), dependencies_left=0
        )
        assert removed(driver) == {"done": 1}


class TestResults:
    def kept(self, **fields):
        result = encode_value(7, max_bytes=100)
        return job_in("done", result=result, **fields)

    def test_they_are_forgotten_and_the_handle_says_so(self, driver):
        job = self.kept(result_expires_at=utcnow() - HOUR)
        assert removed(driver) == {"results": 1}
        assert Job.objects.get().result is None
        with pytest.raises(ResultNotStored, match="has expired"):
            assert JobHandle.of(job.pk).result
        assert removed(driver) == {}

    def test_those_whose_time_has_not_come_and_those_without_one_stay(self, driver):
        self.kept(result_expires_at=utcnow() + HOUR)
        self.kept(result_expires_at=None)
        assert removed(driver) == {}

    def test_those_that_an_unfinished_workflow_needs_stay(self, driver):
        workflow = Workflow.objects.create(created_at=utcnow())
        self.kept(result_expires_at=utcnow() - HOUR, workflow_id=workflow.pk)
        assert removed(driver) == {}


class TestTheRest:
    def test_keys_that_expired(self, driver):
        for number, ahead in enumerate([-HOUR, HOUR]):
            IdempotencyKey.objects.create(
                task="t", key=f"k{number}", job_id=uuid4(), expires_at=utcnow() + ahead
            )
        assert removed(driver) == {"keys": 1}
        assert IdempotencyKey.objects.get().key == "k1"

    def test_statistics(self, driver, settings):
        for days in (29, 31):
            QueueMinute.objects.create(minute=utcnow() - days * DAY, queue="q", worker="w")
        assert removed(driver) == {"statistics": 1}
        settings.TASKHARBOR = {"RETENTION": {"statistics": None}}
        assert removed(driver, utcnow() + 100 * DAY) == {}

    def test_workers_that_are_long_gone(self, driver):
        for days in (6, 8):
            Worker.objects.create(
                id=f"w{days}",
                name="w",
                host="h",
                pid=1,
                version="1",
                queues="*",
                started_at=utcnow(),
                last_beat_at=utcnow() - days * DAY,
            )
        assert removed(driver) == {"workers": 1}
        assert Worker.objects.get().pk == "w6"

    def test_what_there_is_to_remove_can_be_counted_first(self, driver):
        old()
        old("cancelled")
        counts = prunable(driver, now=utcnow())
        assert (counts["done"], counts["cancelled"], counts["keys"]) == (1, 1, 0)
        assert Job.objects.count() == 2


class TestChores:
    def claim(self, driver, worker, now, until):
        return claim_chore(driver, "prune", worker=worker, now=now, until=until)

    def test_one_at_a_time_and_the_next_after_its_time(self, driver):
        now = utcnow()
        assert self.claim(driver, "a", now, now + HOUR)
        assert not self.claim(driver, "b", now, now + HOUR)
        assert self.claim(driver, "b", now + HOUR, now + 2 * HOUR)

    def test_who_finishes_says_when_it_is_due_again(self, driver):
        now = utcnow()
        self.claim(driver, "a", now, now + HOUR)
        finish_chore(driver, "prune", worker="a", now=now, next_at=now)
        assert self.claim(driver, "b", now, now + HOUR)
        finish_chore(driver, "prune", worker="a", now=now, next_at=now)
        assert Chore.objects.get().worker == "b"
        assert not self.claim(driver, "c", now, now + HOUR)

    def test_of_many_one_gets_it(self, race, transactional_db):
        now = utcnow()
        got = race(*[lambda: self.claim(DatabaseDriver(), str(uuid4()), now, now + HOUR)] * 6)
        assert got.count(True) == 1
