"""DatabaseDriver against the contract, on whatever database the tests run on."""

import pytest
from django.db import connections, transaction

from taskharbor_django.drivers import DatabaseDriver, JobRecord, ends, moves
from taskharbor_django.drivers.conformance import DriverConformance, Stored
from taskharbor_django.exceptions import DuplicateJob
from taskharbor_django.lifecycle import JobState
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Queue


def stored(job):
    letters = list(DeadLetter.objects.filter(open_for=job.id))
    ends = Attempt.objects.filter(job=job.id).order_by("lease_version")
    lease = Lease.objects.filter(pk=job.lease).first() if job.lease else None
    return Stored.of(
        job,
        payload=bytes(job.payload),
        result=None if job.result is None else bytes(job.result),
        lease_expires_at=lease.expires_at if lease else None,
        reason=letters[0].reason if letters else "",
        dead_letters=len(letters),
        attempt_ends=tuple(ends.values_list("lease_version", "end")),
    )


@pytest.mark.django_db(transaction=True)
class TestDatabaseDriver(DriverConformance):
    def make_driver(self):
        return DatabaseDriver()

    def stored(self, driver, job_id):
        job = Job.objects.filter(pk=job_id).first()
        return job and stored(job)

    def request_cancel(self, driver, job_id, now):
        Job.objects.inflight().filter(pk=job_id).update(cancel_requested_at=now)

    def take_token(self, driver, job_id, now):
        jobs = Job.objects.inflight().filter(pk=job_id)
        ends.record_cut_off(ends.stored_rows(jobs), now, "default", error=moves.BY_FORCE)
        jobs.update(state=JobState.CANCELLED, lease=None, finished_at=now)

    def pause_queue(self, driver, queue):
        Queue.objects.create(name=queue, paused_at="2031-05-17T00:00Z")

    def drop_lease(self, driver, token):
        Lease.objects.filter(pk=token).delete()

    def cleanup_thread(self):
        connections.close_all()


@pytest.mark.django_db(transaction=True)
class TestInTheTransactionOfTheCaller:
    def test_a_refused_enqueue_leaves_the_transaction_usable(self):
        driver = DatabaseDriver()
        first, other = JobRecord(task="t"), JobRecord(task="t")
        driver.enqueue(first)
        with transaction.atomic():
            for refused in (lambda: driver.enqueue(first), lambda: driver.enqueue_many([first])):
                with pytest.raises(DuplicateJob):
                    refused()
            driver.enqueue(other)
        assert Job.objects.count() == 2

    def test_an_enqueue_vanishes_with_the_transaction(self):
        driver = DatabaseDriver()
        with transaction.atomic():
            driver.enqueue(JobRecord(task="t"))
            driver.enqueue_many([JobRecord(task="t"), JobRecord(task="t", idempotency_key="k")])
            transaction.set_rollback(True)
        assert not Job.objects.exists()
        again = JobRecord(task="t", idempotency_key="k")
        assert driver.enqueue(again) == again.id
