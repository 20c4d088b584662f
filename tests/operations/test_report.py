"""Report: what a worker writes about a job that it holds."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from queue import SimpleQueue

import pytest
from django.db import OperationalError, connection, connections, transaction

from taskharbor_django.drivers import DatabaseDriver, postgresql
from taskharbor_django.exceptions import JobLocked, LeaseMismatch
from taskharbor_django.models import Job
from taskharbor_django.operations.report import report, save_checkpoint
from taskharbor_django.operations.storage import driver_for
from tests.testapp.tasks import add

from . import backend_of, hold, until, waits_for_a_lock


def save(held, data=b'"kept"'):
    driver = driver_for("default")
    save_checkpoint(driver, held.job.id, held.lease.token, data, now=driver.now())


def checkpoint_of(held):
    value = Job.objects.values_list("checkpoint", flat=True).get(pk=held.job.id)
    return None if value is None else bytes(value)


def test_a_checkpoint_is_stored_under_its_lease(db):
    held = hold(add.enqueue(1, 2))
    save(held)
    assert checkpoint_of(held) == b'"kept"'


def test_a_stale_worker_stores_no_checkpoint(db):
    driver = driver_for("default")
    held = hold(add.enqueue(1, 2))
    later = driver.now() + timedelta(hours=1)
    driver.reserve("default", now=later, lease_for=timedelta(seconds=30), limit=1)
    with pytest.raises(LeaseMismatch):
        save(held)
    assert checkpoint_of(held) is None


def save_elsewhere(held, backends):
    """On a connection of its own; says first which one it is."""
    try:
        connection.ensure_connection()
        backends.put(backend_of(connection))
        save(held)
    finally:
        connections.close_all()


def lock(held):
    list(Job.objects.select_for_update().filter(pk=held.job.id))


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_checkpoint_waits_for_whoever_holds_the_row_just_now(transactional_db):
    """Most often that is the thread which writes the progress of the same worker's jobs."""
    held, backends = hold(add.enqueue(1, 2)), SimpleQueue()
    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            lock(held)
            saved = threads.submit(save_elsewhere, held, backends)
            backend = backends.get(timeout=30)
            until(lambda: saved.done() or waits_for_a_lock(backend))
        saved.result(timeout=30)
    assert checkpoint_of(held) == b'"kept"'


@pytest.mark.postgresql
def test_a_checkpoint_does_not_wait_for_ever(transactional_db, monkeypatch):
    monkeypatch.setattr(postgresql, "LOCK_TIMEOUT", "50ms")
    held = hold(add.enqueue(1, 2))
    with ThreadPoolExecutor(1) as threads, transaction.atomic():
        lock(held)
        with pytest.raises(JobLocked):
            threads.submit(save_elsewhere, held, SimpleQueue()).result(timeout=30)
    assert checkpoint_of(held) is None


def test_a_checkpoint_does_not_take_a_lost_database_for_a_locked_row(db, monkeypatch):
    def away(*_):
        raise OperationalError("the server is away")

    held = hold(add.enqueue(1, 2))
    monkeypatch.setattr(DatabaseDriver, "waiting_for", away)
    with pytest.raises(OperationalError, match="away"):
        save(held)


def test_progress_that_comes_after_the_end_is_not_written(db):
    """The last report of a run and one of a moment before may change places."""
    driver = driver_for("default")
    held = hold(add.enqueue(1, 2))
    job_id, token = held.job.id, held.lease.token
    assert report(driver, {job_id: (token, {"progress": 100})}) == {job_id}
    driver.ack(job_id, token, now=driver.now())
    assert report(driver, {job_id: (token, {"progress": 50})}) == set()
    assert Job.objects.values_list("state", "progress").get(pk=job_id) == ("done", 100)
