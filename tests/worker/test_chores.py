"""Workers bury and prune beside their jobs, one of them at a time."""

from datetime import timedelta
from itertools import repeat

import pytest
from django.db import OperationalError

from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.models import Chore, Job
from taskharbor_django.worker import chores
from taskharbor_django.worker.chores import Chores
from taskharbor_django.worker.lines import Lines
from tests.factories import JobFactory, job_in, utcnow

from .conftest import working

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)


@pytest.fixture
def doing():
    driver = DatabaseDriver()
    return Chores(driver, driver, Lines("default"), "me")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(chores, "LOOK_EACH", 0.05)


def test_a_worker_does_them_beside_its_jobs(quick, eventually):
    job_in("done", finished_at=utcnow() - 30 * DAY)
    overdue = job_in("scheduled", run_at=utcnow() + DAY, expires_at=utcnow() - DAY)
    with working():
        eventually(lambda: Job.objects.count() == 1)
        eventually(lambda: Job.objects.get().state == "dead")
    assert Job.objects.get() == overdue


def test_once_done_it_is_due_after_a_while(doing):
    assert not doing.turn()
    for chore in Chore.objects.all():
        assert chore.finished_at is not None
        assert chore.next_at > utcnow() + timedelta(minutes=5)


def test_a_worker_goes_on_while_something_is_left(quick, monkeypatch, eventually):
    monkeypatch.setattr(chores, "AT_A_TIME", 0.0)
    monkeypatch.setattr(chores, "EACH", DAY)
    monkeypatch.setattr("taskharbor_django.operations.prune.batch_of", lambda _: 1)
    JobFactory.create_batch(4, done=True, finished_at=utcnow() - 30 * DAY)
    with working():
        eventually(lambda: not Job.objects.exists())


def test_what_another_does_is_left_to_it(doing):
    Chore.objects.bulk_create(
        Chore(name=name, next_at=utcnow() + DAY, worker="other") for name in ("prune", "expire")
    )
    job_in("done", finished_at=utcnow() - 30 * DAY)
    assert not doing.turn()
    assert Job.objects.count() == 1


def test_work_that_takes_long_is_cut_into_turns(doing, monkeypatch):
    monkeypatch.setattr(chores, "AT_A_TIME", 0.0)
    monkeypatch.setattr(chores, "REST", 0.0)
    monkeypatch.setattr("taskharbor_django.operations.prune.batch_of", lambda _: 2)
    JobFactory.create_batch(5, done=True, finished_at=utcnow() - 30 * DAY)
    turns = 1
    while doing.turn():
        turns += 1
    assert not Job.objects.exists()
    assert turns == 4


def test_each_batch_is_followed_by_a_longer_rest(doing, monkeypatch):
    rests = []
    monkeypatch.setattr(doing._stopping, "wait", lambda pause: rests.append(pause) or False)
    # now; before and after each batch, and whether its time is up; before the end
    ticks = iter([0.0, 0.0, 1.0, 1.5, 2.0, 4.0, 4.5, 5.0])
    monkeypatch.setattr(chores, "steady", lambda: next(ticks))
    assert doing._batches([1, 2])
    assert rests == [2.0, 4.0]


def test_a_stop_is_not_kept_waiting(doing):
    doing._stopping.set()
    assert not doing._batches(repeat(1))


def test_a_database_that_is_away_is_asked_again(quick, monkeypatch, eventually, caplog):
    job_in("done", finished_at=utcnow() - 30 * DAY)
    failed = []
    claim = chores.claim_chore

    def away(*args, **options):
        if len(failed) < 2:
            failed.append(1)
            raise OperationalError("gone")
        return claim(*args, **options)

    monkeypatch.setattr(chores, "claim_chore", away)
    with working():
        eventually(lambda: not Job.objects.exists())
    assert "chores: the database cannot be used" in caplog.text
