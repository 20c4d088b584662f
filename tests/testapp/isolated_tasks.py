"""
Tasks that run in child processes, and what may go wrong in one.

A `place` is a directory: a handler leaves files there, so that a test can see how far it is.
"""

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from taskharbor_django import PermanentError, task
from taskharbor_django.context import current

from .models import Ledger

isolated = {"isolation": "process"}


def note(place, name="begun", text=None):
    """Write a file as a whole: who sees it can read it."""
    fresh = Path(place, f".{name}")
    fresh.write_text(str(os.getpid() if text is None else text))
    fresh.replace(Path(place, name))


@task(**isolated)
def give_pid(*_):
    return os.getpid()


@task
def give_pid_anywhere():
    """Isolated only in quarantine, or with --pool process."""
    return os.getpid()


@task
async def agive_pid_anywhere():
    await asyncio.sleep(0)
    return os.getpid()


@task
def leave_note(place, name):
    """Not isolated: says that a thread of the worker was free for it."""
    note(place, name)


@task(**isolated)
def give_back(value):
    return value


@task(**isolated)
def say(text):
    print(text)  # noqa: T201
    print(text, file=sys.stderr)  # noqa: T201


@task(**isolated)
def look_around():
    return {
        "path": sys.path,
        "argv": ascii(sys.argv),
        "pythonpath": os.environ.get("PYTHONPATH"),
        "cwd": str(Path.cwd()),
        "warnoptions": sys.warnoptions,
        "descriptors": sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()),
        "job": str(current.get().job_id),
        "thread": threading.current_thread() is threading.main_thread(),
    }


@task(**isolated)
def fail(text):
    raise ValueError(text)


@task(**isolated)
def refuse():
    raise PermanentError("never", code="never")


@task(**isolated)
def leave():
    raise SystemExit(5)


DEATHS = {
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
}


@task(**isolated)
def die(how):
    # No core files, and no lines of faulthandler's in the output of the tests.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    DEATHS[how]()


@task(**isolated)
def use_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 2**26
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    held = []
    while True:
        held.append(bytearray(2**20))


@task(**isolated)
def loop(place):
    note(place)
    while True:
        pass


@task(**isolated)
def sleep(place, seconds=1000):
    """A call into C that does not come back for long."""
    note(place)
    time.sleep(seconds)


@task(**isolated)
def sleep_and_clean_up(place):
    note(place)
    try:
        time.sleep(1000)
    finally:
        note(place, "cleaned")


@task(**isolated)
def hold_the_interpreter(place):
    """A call into C during which no other thread of the process can run."""
    note(place)
    ctypes.PyDLL(None).sleep(1000)


@task(**isolated)
def swallow_everything(place):
    note(place)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1000)


@task(**isolated)
def start_another(place):
    """Start a process that would outlive this one."""
    other = subprocess.Popen(["sleep", "1000"])
    note(place, "other", other.pid)
    note(place)
    other.wait()


@task(**isolated)
def fork_and_die(place):
    """Leave a copy behind that holds everything open."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    note(place, "other", pid)
    os._exit(3)


@task(takes_context=True, **isolated)
def wait_for_cancel(context, place):
    note(place)
    while True:
        context.check_cancelled()
        time.sleep(0.01)


@task(**isolated)
async def sleep_async(place):
    note(place)
    try:
        await asyncio.sleep(1000)
    finally:
        note(place, "cleaned")


@task(takes_context=True, **isolated)
async def describe_async(context):
    return [str(context.job_id), str(current.get().job_id)]


@task(takes_context=True, **isolated)
def describe(context):
    return {
        "job_id": context.job_id,
        "attempt": context.attempt,
        "fencing_token": context.fencing_token,
        "correlation_id": context.correlation_id,
        "deadline": context.deadline,
        "previous_attempt_id": context.previous_attempt_id,
        "checkpoint": context.checkpoint,
    }


@task(takes_context=True, **isolated)
def progress(context, place):
    context.set_progress(40, "on the way")
    note(place)
    wait_for(place, "seen")
    context.set_progress(90, "nearly\0 there")


@task(takes_context=True, **isolated)
def save(context, value):
    """Return what the checkpoint was before and after; or the class of what was raised."""
    before = context.checkpoint
    try:
        context.save_checkpoint(value)
    except Exception as error:  # noqa: BLE001  the test wants to know which
        return type(error).__name__
    return [before, context.checkpoint]


@task(takes_context=True, **isolated)
def save_and_die_once(context):
    """Return, the second time, what the first has left."""
    if context.attempt == 1:
        context.save_checkpoint("saved")
        os._exit(3)
    return [context.previous_attempt_id, context.checkpoint]


@task(takes_context=True, **isolated)
def save_unstorable(context):
    context.save_checkpoint(object())


@task(takes_context=True, **isolated)
def speak_later(context, place):
    """Leave a thread behind that speaks when the job is over."""

    def speak():
        wait_for(place, "over")
        context.set_progress(99)
        try:
            context.save_checkpoint("late")
        except Exception as error:  # noqa: BLE001
            note(place, "refused", type(error).__name__)

    threading.Thread(target=speak, daemon=True).start()


@task(atomic=True, **isolated)
def write_atomically(name, then=""):
    Ledger.objects.create(name=name)
    if then:
        DEATHS[then]()


@task(atomic=True, takes_context=True, **isolated)
def write_and_wait(context, name, place):
    Ledger.objects.create(name=name)
    note(place)
    while True:
        context.check_cancelled()
        time.sleep(0.01)


@task(**isolated)
def write_and_stumble(name):
    """Leave a transaction open."""
    from django.db import connection

    connection.set_autocommit(False)
    Ledger.objects.create(name=name)


@task(**isolated)
async def awrite(name):
    await Ledger.objects.acreate(name=name)


def wait_for(place, name, seconds=30):
    until = time.monotonic() + seconds
    while not Path(place, name).exists():
        if time.monotonic() > until:
            raise TimeoutError(name)
        time.sleep(0.01)
