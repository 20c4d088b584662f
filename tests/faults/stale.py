"""
A worker that is stopped right before it writes, and writes before all else when it goes on.

Left alone, a worker that wakes up past its lease mostly spares the write: it counts its leases as
lost and cuts connections that were silent for too long, and which of its threads comes first is
chance. What the database has to refuse is the worst of all orders. So in here nobody learns of a
loss, and no line is cut, before the write that the process was stopped with has got its answer.
Standard output says what the answer was, and how many statements it took.
"""

import importlib
import os
import threading

from django.db import connections

TOLD = "stale write"
PATIENCE = 300.0  # the time that the process is stopped counts, too

# Nobody is held back as long as no write is owed.
_free = threading.Event()
_free.set()


def place():
    """Where this process is to be stopped, empty when it is not."""
    name, _, action = os.environ.get("TASKHARBOR_FAILPOINTS", "").partition("=")
    return name if action == "stop" else ""


# -- the others ----------------------------------------------------------------------------------


def hold_others_back():
    """Let whoever would make the write needless wait for it; called before any thread works."""
    holdings = importlib.import_module("taskharbor_django.worker.holdings").Holdings
    lines = importlib.import_module("taskharbor_django.worker.lines").Lines
    holdings.lose = _after_the_write(holdings.lose)
    lines.cut_silent = _after_the_write(lines.cut_silent)


def _after_the_write(function):
    def wait_and_call(*args):
        _free.wait(PATIENCE)
        return function(*args)

    return wait_and_call


# -- the write -----------------------------------------------------------------------------------


def _rejected(answer, outcomes):
    outcomes = outcomes if isinstance(outcomes, list) else [outcomes]
    why = [type(it.error).__name__ for it in answer if not it.repeated]
    return " ".join(why) if len(why) == len(outcomes) else ""


def _not_renewed(answer, tokens):
    return "" if set(tokens) & set(answer) else "NotRenewed"


def _not_written(answer, _reports):
    return "" if answer else "NotWritten"


def _stored(_answer, _job):
    return ""  # what is refused raises


# where it stops -> the write that comes next, and why its answer is a refusal, empty if it is none
WRITES = {
    "completer.settling": ("worker.completer", "settle", _rejected),
    "atomic.called": ("drivers.database.DatabaseDriver", "settle_waiting", _rejected),
    "heartbeat.renewing": ("drivers.database.DatabaseDriver", "extend_leases", _not_renewed),
    "reports.writing": ("operations.report", "report", _not_written),
    "reports.checkpointing": ("operations.report", "save_checkpoint", _stored),
}
# The row was in somebody's hands just then: the worker tries again.
NO_ANSWER = {"JobLocked", "NotSettled"}


def writes_next():
    """Whether what comes after the stop is one of those."""
    return place() in WRITES


def owe():
    """Hold the others back until the write that comes next is answered."""
    if not writes_next():
        return
    where, name, reason = WRITES[place()]
    owner = _find(f"taskharbor_django.{where}")
    usual = getattr(owner, name)

    def settle_up(told):
        setattr(owner, name, usual)
        os.write(1, f"{TOLD}: {told}\n".encode())  # one write is never mixed with another's
        _free.set()

    def write(driver, subject, *args, **kwargs):
        statements, why = [], "interrupted"

        def count(execute, sql, params, many, context):
            answer = execute(sql, params, many, context)
            statements.append(sql)
            return answer

        with connections[driver.using].execute_wrapper(count):
            try:
                answer = usual(driver, subject, *args, **kwargs)
                why = reason(answer, subject)
            except Exception as error:
                why = type(error).__name__
                raise
            finally:
                if why not in NO_ANSWER:
                    settle_up(f"{why or 'accepted'} after {len(statements)} statements")
        return answer

    _free.clear()
    setattr(owner, name, write)


def _find(path):
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)
