"""Handlers for tests that run a worker; `gates` let a test hold them where it wants."""

import asyncio
import logging
import threading
from collections import defaultdict

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from taskharbor_django import PermanentError, Snooze, task

from .models import Ledger

speech = logging.getLogger("tests.speech")

gates = defaultdict(threading.Event)
seen = defaultdict(list)


def reset():
    gates.clear()
    seen.clear()


@task(takes_context=True)
def hold(context, gate):
    """Run until the test opens the gate, or the job should stop."""
    seen[gate].append(context)
    while not gates[gate].wait(0.01):
        context.check_cancelled()
    return "let go"


@task(takes_context=True, timeout=0.5)
def endless(context):
    seen["endless"].append(threading.get_ident())
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: BLE001, S112  what a careless handler does
            continue


@task(timeout=0.5)
def stuck(gate):
    """One call into C: no exception can be raised before it returns."""
    seen["stuck"].append(threading.get_ident())
    gates[gate].wait(120)


@task(timeout=0.5)
def stuck_in_query():
    """Leave the connection in the midst of something when the time is up."""
    with transaction.atomic():
        Ledger.objects.create(name="half", amount=1)
        seen["session"].append(connection.connection)  # kept, so that its id stays taken
        while True:
            sum(range(100))


@task(timeout=0.5)
def stuck_in_transaction(gate):
    """The same in the midst of a transaction, which it would commit in the end."""
    with transaction.atomic():
        Ledger.objects.update(amount=2)
        seen["stuck"].append(threading.get_ident())
        gates[gate].wait(120)


@task(timeout=0.5)
def stuck_in_a_long_query():
    with connection.cursor() as cursor:
        seen["session"].append(connection.connection)
        seen["stuck"].append(threading.get_ident())
        numbers = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        cursor.execute(numbers + "SELECT count(*) FROM (SELECT x FROM n LIMIT 10000000000)")


@task
def session():
    """Say which connection this thread uses, and that it is clean."""
    Ledger.objects.count()
    return {
        "atomic": connection.in_atomic_block or not connection.get_autocommit(),
        "id": id(connection.connection),
    }


@task
def leak():
    """Leave a transaction open, as a handler should not."""
    connection.set_autocommit(False)
    Ledger.objects.create(name="leaked", amount=1)


@task
def leak_lock(name):
    """Leave a transaction open that holds a line of the ledger."""
    connection.set_autocommit(False)
    Ledger.objects.filter(name=name).update(amount=2)


@task(atomic=True)
def book(name, amount):
    Ledger.objects.create(name=name, amount=amount)
    return name


@task(atomic=True)
def book_and_fail(name):
    Ledger.objects.create(name=name, amount=1)
    raise ValueError("after the write")


@task(takes_context=True, max_attempts=5, backoff={"strategy": "constant", "initial": 0.01})
def snooze_once(context):
    if context.attempt == 1:
        raise Snooze(0.01)
    return context.attempt


@task(takes_context=True, max_attempts=3, backoff={"strategy": "constant", "initial": 0.01})
def stepwise(context, steps):
    """Do one step in each attempt, from the checkpoint on."""
    done = context.checkpoint or 0
    context.save_checkpoint(done + 1)
    context.set_progress(100 * (done + 1) / steps, f"step {done + 1}")
    if done + 1 < steps:
        raise ValueError("another step to go")
    return done + 1, context.previous_attempt_id is not None


@task
def bury():
    raise PermanentError("never", code="never")


@task
def unstorable():
    return object()


@task
async def meet(number):
    seen["met"].append(number)
    while len(seen["met"]) < 20:  # noqa: ASYNC110  all twenty must be here at once
        await asyncio.sleep(0.001)
    return number


@task
def speak(text):
    """Say it once another says something, too."""
    seen["speakers"].append(text)
    while len(seen["speakers"]) < 2:
        gates["never"].wait(0.001)
    speech.info(text)


@task
async def aspeak(text):
    seen["speakers"].append(text)
    while len(seen["speakers"]) < 2:  # noqa: ASYNC110  both must be here at once
        await asyncio.sleep(0.001)
    speech.info(text)


@task
async def anothing(*_):
    await asyncio.sleep(0)


@task
def backend():
    """Say which process of PostgreSQL serves this thread."""
    Ledger.objects.count()
    return connection.connection.info.backend_pid


@task
async def acount():
    return await Ledger.objects.acount()


@task
async def iterate():
    """Be in the midst of a query until the test opens the gate, and then read on."""
    seen = 0
    async for _ in Ledger.objects.aiterator(chunk_size=5):
        seen += 1
        while not gates["iterate"].is_set():  # noqa: ASYNC110  a thread opens it
            await asyncio.sleep(0.01)
    return seen


@task
async def abackend():
    await Ledger.objects.acount()
    return await sync_to_async(lambda: connection.connection.info.backend_pid)()


@task(timeout=0.3)
async def sleepy():
    await asyncio.sleep(60)
