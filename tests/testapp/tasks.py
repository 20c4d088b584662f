"""Tasks that the tests enqueue and run."""

from datetime import timedelta

from taskharbor_django import Priority, TemporaryError, task

from . import (  # noqa: F401  registers
    fault_tasks,
    isolated_tasks,
    process_tasks,
    worker_tasks,
    workflow_tasks,
)
from .models import Ledger

# Quotes, percent signs, placeholders and semicolons: a name is data, also in SQL.
ODD_NAME = """it's 100% "odd" %s %(x)s {0}; DROP TABLE taskharbor_job; -- ☕\\"""


@task
def add(left, right=0):
    """Add two numbers.

    Only the first line describes the task.
    """
    return left + right


@task
def echo(*args, **kwargs):
    """Return what came in."""
    return [list(args), kwargs]


@task(
    queue="reports",
    priority=Priority.HIGH,
    max_attempts=5,
    timeout=60,
    lifetime=timedelta(hours=1),
)
def report(month, *, recipients=()):
    return f"{month} for {len(recipients)}"


@task(takes_context=True)
def remember(context, key):
    return [str(context.job_id), key]


@task
async def aadd(left, right=0):
    return left + right


@task(name="testapp.write", aliases=["testapp.old_write"])
def write(name, amount=1):
    """Leave a row behind."""
    Ledger.objects.create(name=name, amount=amount)


@task(max_retries=1, retry_on=[TemporaryError])
def stumble(message="stumbled"):
    raise TemporaryError(message)


@task(name=ODD_NAME)
def odd():
    return "odd"
