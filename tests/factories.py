"""
Rows as the app itself would have left them: a job in every state, and what hangs on it.

`JobFactory(dead=True)` or `job_in("dead")` gives a job that satisfies every constraint of its
state, with its lease row or its dead letter beside it.
"""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import factory
from factory.django import DjangoModelFactory

from taskharbor_django.lifecycle import DeadReason, FailureCategory, JobState
from taskharbor_django.models import DeadLetter, Job, Lease
from taskharbor_django.payload import encode_call

from .testapp.models import Ledger

LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)


def utcnow():
    return datetime.now(UTC)


class LedgerFactory(DjangoModelFactory):
    class Meta:
        model = Ledger

    name = factory.Sequence(lambda number: f"entry {number}")
    amount = 1


class LeaseFactory(DjangoModelFactory):
    """A lease that stands; give `expires_at` for one that does not."""

    class Meta:
        model = Lease

    token = factory.LazyFunction(uuid4)
    call = factory.SelfAttribute("token")
    worker = "worker-1"
    acquired_at = factory.LazyFunction(utcnow)
    expires_at = factory.LazyAttribute(lambda lease: lease.acquired_at + LEASE)


class DeadLetterFactory(DjangoModelFactory):
    """The open letter of a dead job; `closed=True` for one that somebody dealt with."""

    class Meta:
        model = DeadLetter

    job = factory.SubFactory("tests.factories.JobFactory", dead=True, letter=None)
    open_for = factory.SelfAttribute("job.pk")
    task = factory.SelfAttribute("job.task")
    queue = factory.SelfAttribute("job.queue")
    reason = DeadReason.EXHAUSTED
    category = FailureCategory.TEMPORARY
    error_class = "taskharbor_django.exceptions.TemporaryError"
    error = factory.SelfAttribute("job.last_error")
    attempts = factory.SelfAttribute("job.attempts")
    died_at = factory.LazyAttribute(lambda letter: letter.job.finished_at or utcnow())

    class Params:
        closed = factory.Trait(open_for=None, closed_at=factory.LazyFunction(utcnow))


class JobFactory(DjangoModelFactory):
    """A job that is ready; one trait for each other state."""

    class Meta:
        model = Job
        skip_postgeneration_save = True

    task = "tests.testapp.tasks.add"
    queue = "default"
    payload = encode_call((1, 2), {}, max_bytes=1_000)
    state = JobState.READY
    seq = factory.Sequence(lambda number: number)
    max_attempts = 3
    created_at = factory.LazyFunction(utcnow)
    updated_at = factory.SelfAttribute("created_at")
    available_at = factory.LazyAttribute(lambda job: job.run_at or job.created_at)
    expires_at = factory.LazyAttribute(lambda job: job.available_at + timedelta(days=7))

    class Params:
        # A run that took a minute, as its worker reported it.
        ran = factory.Trait(
            executions=1,
            lease_version=1,
            started_at=factory.SelfAttribute("created_at"),
            finished_at=factory.LazyAttribute(lambda job: job.started_at + timedelta(minutes=1)),
        )
        ready = factory.Trait()
        blocked = factory.Trait(state=JobState.BLOCKED, dependencies_left=1)
        scheduled = factory.Trait(
            state=JobState.SCHEDULED,
            run_at=factory.LazyAttribute(lambda job: job.created_at + HOUR),
        )
        inflight = factory.Trait(
            state=JobState.INFLIGHT,
            executions=1,
            lease_version=1,
            lease=factory.LazyFunction(uuid4),
            lease_row=factory.RelatedFactory(LeaseFactory, token=factory.SelfAttribute("..lease")),
        )
        done = factory.Trait(ran=True, state=JobState.DONE, lease=factory.LazyFunction(uuid4))
        dead = factory.Trait(
            ran=True,
            state=JobState.DEAD,
            lease=factory.LazyFunction(uuid4),
            attempts=factory.SelfAttribute("max_attempts"),
            last_error="stumbled",
            failure_category=FailureCategory.TEMPORARY,
            failed_at=factory.SelfAttribute("finished_at"),
            letter=factory.RelatedFactory(DeadLetterFactory, factory_related_name="job"),
        )
        cancelled = factory.Trait(
            state=JobState.CANCELLED, finished_at=factory.SelfAttribute("created_at")
        )


def job_in(state, **fields):
    """A job in the named state."""
    return JobFactory(**{str(state): True}, **fields)
