"""Tasks of Django's own API, or of the package that had it first."""

import django

from taskharbor_django.backend import options

from .models import Ledger

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

seen = []

# Django 6.0 has no options of backends in its decorator.
TAKES_OPTIONS = django.VERSION[:2] != (6, 0)


@task
def add(left, right=0):
    return left + right


@task(priority=10, queue_name="reports")
def report(month):
    return f"report of {month}"


@task
async def aadd(left, right=0):
    return left + right


@task(takes_context=True)
def tell(context, word):
    seen.append(context)
    return [word, context.attempt, context.task_result.id]


@task(takes_context=True)
async def atell(context, word):
    seen.append(context)
    return [word, context.attempt]


@task
@options(max_attempts=2, backoff={"strategy": "constant", "initial": 0.01, "jitter": "none"})
def stumble(message):
    raise ValueError(message)


@task(takes_context=True)
@options(max_attempts=3, backoff={"strategy": "constant", "initial": 0.01, "jitter": "none"})
def third_time(context):
    if context.attempt < 3:
        raise LookupError(f"attempt {context.attempt}")
    return context.attempt


@task
@options(atomic=True, max_attempts=1)
def book(name):
    Ledger.objects.create(name=name, amount=1)
    raise ValueError("after the write")


@task
def echo(*args, **kwargs):
    return [list(args), kwargs]


@task
@options(keep=False)
def fleeting():
    return "gone"


if TAKES_OPTIONS:

    @task(max_attempts=4, timeout=17)
    def patient():
        return None
