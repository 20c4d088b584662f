"""Both forms of the driver, and the words in which tests of storage speak to them."""

from uuid import uuid4

from taskharbor_django.drivers import DatabaseDriver, FailureUpdate, JobRecord, Outcome
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import (
    Attempt,
    DeadLetter,
    Dependency,
    IdempotencyKey,
    Job,
    Lease,
    Notice,
    Workflow,
)

from .raw import LEASE, NOW

END = NOW + LEASE
"""when the leases of `hold` expire"""

FAILURE = FailureUpdate(attempts=1, last_error="no route to host")


class PortableDriver(DatabaseDriver):
    """The portable form, also on PostgreSQL."""


FORMS = {"set-based": DatabaseDriver, "portable": PortableDriver}


def put(driver, count=1, **fields):
    records = [JobRecord(**{"task": "t", "created_at": NOW, **fields}) for _ in range(count)]
    return driver.enqueue_many(records)


def take(driver, *, limit=1, now=NOW, queue="default", **options):
    return driver.reserve(queue, now=now, lease_for=LEASE, limit=limit, **options)


def hold(driver, count=1, **fields):
    """Put jobs and reserve them in one call."""
    put(driver, count, **fields)
    return take(driver, limit=count, queue=fields.get("queue", "default"))


def outcome(kind, held, **facts):
    if kind == OutcomeKind.RETRY:
        facts.setdefault("update", FAILURE)
    if kind == OutcomeKind.FAIL:
        facts.setdefault("reason", "exhausted")
    facts = {"token": held.lease.token, "version": held.lease.version, **facts}
    return Outcome(job_id=held.job.id, kind=kind, **facts)


def acks(held):
    return [outcome(OutcomeKind.ACK, each) for each in held]


def reclaim(driver, now=END):
    """Let a worker of some empty queue come by, which takes back what has expired."""
    assert take(driver, now=now, queue=f"empty-{uuid4()}") == []


def job(held):
    return Job.objects.get(pk=held if not hasattr(held, "job") else held.job.id)


def errors(rejections):
    return [type(rejection.error).__name__ for rejection in rejections]


def everything():
    """All that is stored, to say that nothing has changed."""
    models = (Job, Lease, Notice, Attempt, DeadLetter, IdempotencyKey, Dependency, Workflow)
    return {model.__name__: list(model.objects.order_by("pk").values()) for model in models}
