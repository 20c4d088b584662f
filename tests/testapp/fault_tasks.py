"""
Tasks for the fault tests. Each signs what it does with job, fencing number, attempt and pid.

First a line in the append-only file that TASKHARBOR_TRAIL names, then a row in a table, so that
neither a lost database nor a lost file can hide an effect.
"""

import asyncio
import ctypes
import json
import os
import resource
import signal
import sys
import time
from functools import cache
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection

from taskharbor_django import PermanentError, Snooze, task

from .models import Ledger, Trail

SOON = {"strategy": "constant", "initial": 0.05, "jitter": "none"}
LOOK_EACH = 0.01

traced = {"takes_context": True, "backoff": SOON}


# -- signing -------------------------------------------------------------------------------------


@cache
def _file(path):
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def append(facts):
    """One write to a file that was opened for appending is never mixed with another's."""
    if path := os.environ.get("TASKHARBOR_TRAIL"):
        os.write(_file(path), json.dumps(facts).encode() + b"\n")


def true_time():
    """What time it is, also where a test lets the clock be wrong; TASKHARBOR_BOOTED says how."""
    booted = os.environ.get("TASKHARBOR_BOOTED")
    return time.clock_gettime(time.CLOCK_BOOTTIME) + float(booted) if booted else time.time()


def sign(context, mark):
    facts = {
        "mark": mark,
        "job": str(context.job_id),
        "fence": context.fencing_token,
        "attempt": context.attempt,
        "pid": os.getpid(),
        "at": true_time(),
    }
    append(facts)
    Trail.objects.create(**facts)


asign = sync_to_async(sign)


def lines():
    """What all jobs have signed so far; a line that is being written does not count."""
    text = Path(os.environ["TASKHARBOR_TRAIL"]).read_text("ascii")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for(path):
    while not Path(path).exists():
        time.sleep(LOOK_EACH)


# -- well-behaved --------------------------------------------------------------------------------


@task(**traced)
def touch(context):
    sign(context, "START")
    sign(context, "END")
    return context.fencing_token


@task(**traced)
async def atouch(context):
    await asign(context, "START")
    await asign(context, "END")
    return context.fencing_token


@task(isolation="process", **traced)
def touch_apart(context):
    return touch.function(context)


@task(**traced)
def hold(context, go):
    """Go on until the file is there."""
    sign(context, "START")
    wait_for(go)
    sign(context, "END")
    return context.fencing_token


@task(**traced)
def linger(context, go):
    """Have done everything, and return when the file is there."""
    sign(context, "START")
    sign(context, "END")
    wait_for(go)
    return context.fencing_token


@task(**traced)
async def ahold(context, go):
    await asign(context, "START")
    while not Path(go).exists():  # noqa: ASYNC110, ASYNC240  other processes know files only
        await asyncio.sleep(LOOK_EACH)
    await asign(context, "END")
    return context.fencing_token


@task(isolation="process", **traced)
def hold_apart(context, go):
    return hold.function(context, go)


@task(atomic=True, **traced)
def book(context):
    """The lines of all its runs are in the file, the rows of the accepted one in the table."""
    sign(context, "START")
    sign(context, "END")
    return context.fencing_token


@task(**traced)
def resist(context, go):
    """Nothing stops it before the file is there; it signs that it is still at work."""
    sign(context, "START")
    while not Path(go).exists():
        try:
            append_still(context)
            time.sleep(LOOK_EACH)
        except BaseException:  # noqa: BLE001, S112  what it is for
            continue
    sign(context, "END")


def append_still(context):
    facts = {"mark": "STILL", "job": str(context.job_id), "fence": context.fencing_token}
    append({**facts, "attempt": context.attempt, "pid": os.getpid(), "at": time.time()})


# -- a first run that comes too late -------------------------------------------------------------


@task(max_attempts=5, **traced)
def outrun(context, how, go):
    """The first run does what it is told; the second holds until the file is there."""
    sign(context, "START")
    if context.fencing_token == 1:
        return FIRST_RUNS[how](context)
    context.set_progress(77, "second")
    context.save_checkpoint("second")
    sign(context, "READY")
    wait_for(go)
    sign(context, "END")
    return "second"


def _ack(context):
    sign(context, "END")
    return "first"


def _retry(context):
    raise ValueError("first")


def _fail(context):
    raise PermanentError("first")


def _snooze(context):
    raise Snooze(3600)


def _cancel(context):
    while True:
        context.check_cancelled()
        time.sleep(LOOK_EACH)


def _progress(context):
    context.set_progress(11, "first")
    _heartbeat(context)


def _heartbeat(context):
    """Long enough for a heartbeat or a SIGTERM, and never done."""
    while True:
        time.sleep(LOOK_EACH)


def _checkpoint(context):
    try:
        context.save_checkpoint("first")
    except Exception as error:
        sign(context, type(error).__name__)
        raise
    sign(context, "SAVED")


FIRST_RUNS = {
    "ack": _ack,
    "retry": _retry,
    "fail": _fail,
    "exhaust": _retry,
    "snooze": _snooze,
    "release": _heartbeat,
    "cancel": _cancel,
    "heartbeat": _heartbeat,
    "progress": _progress,
    "checkpoint": _checkpoint,
}


# -- poison --------------------------------------------------------------------------------------


def _segfault():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def _kill_worker_and_self():
    """In quarantine the worker is the parent of this process."""
    # Between the two no other thread may run: the one that hears of the death gives the job back.
    sys.setswitchinterval(60.0)
    if os.getppid() != 1 and "taskharbor_django.worker.child" in _command_line():
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _command_line():
    return Path("/proc/self/cmdline").read_text().split("\0")


DEATHS = {
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": _segfault,
    "everything": _kill_worker_and_self,
}


@task(max_attempts=2, **traced)
def poison(context, how, company=0):
    """Die, the first time in the company of so many other runs of this process."""
    sign(context, "START")
    while len({line["job"] for line in lines() if line["pid"] == os.getpid()}) <= company:
        if context.fencing_token > 1:
            break
        time.sleep(LOOK_EACH)
    DEATHS[how]()


@task(max_attempts=2, **traced)
async def apoison(context, how):
    await asign(context, "START")
    DEATHS[how]()


@task(max_attempts=2, isolation="process", **traced)
def poison_apart(context, how):
    poison.function(context, how)


# -- without an end ------------------------------------------------------------------------------

short = {"timeout": 0.5, "max_attempts": 1}


@task(**traced, **short)
def spin(context):
    sign(context, "START")
    while True:
        pass


@task(isolation="process", **traced, **short)
def spin_apart(context):
    spin.function(context)


@task(**traced, **short)
async def aspin(context):
    """Never ends, but lets others run."""
    await asign(context, "START")
    while True:  # noqa: ASYNC110  what it is for
        await asyncio.sleep(0)


@task(**traced)
async def aspin_once(context):
    """Let others run, the second time no longer."""
    await asign(context, "START")
    while context.fencing_token == 1:  # noqa: ASYNC110  what it is for
        await asyncio.sleep(LOOK_EACH)
    await asign(context, "END")


@task(**traced, **short)
async def ablock(context):
    """Never ends, and lets no other coroutine run."""
    await asign(context, "START")
    while True:
        pass


@task(**traced, **short)
async def ablock_in_c(context):
    """The same in a call that no exception can end."""
    await asign(context, "START")
    time.sleep(3600)  # noqa: ASYNC251  what it is for


# -- strange ends --------------------------------------------------------------------------------


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Leaving(Exception):
    """An attempt to end whoever wants to know what happened."""

    def __str__(self):  # noqa: PLE0307  what it is for
        sys.exit(3)

    @property
    def code(self):
        sys.exit(3)


class Spiteful(Exception):
    @property
    def code(self):
        raise RuntimeError("no code")


def _recurse():
    return _recurse()


def _raiser(error):
    def raise_it():
        raise error

    return raise_it


ENDS = {
    "SystemExit": _raiser(SystemExit(3)),
    "KeyboardInterrupt": _raiser(KeyboardInterrupt()),
    "GeneratorExit": _raiser(GeneratorExit()),
    "RecursionError": _recurse,
    "Unreadable": _raiser(Unreadable()),
    "Leaving": _raiser(Leaving()),
    "Spiteful": _raiser(Spiteful()),
    "Snooze": _raiser(Snooze("soon")),
}


@task(max_attempts=1, **traced)
def stumble(context, how):
    sign(context, "START")
    ENDS[how]()


@task(max_attempts=1, isolation="process", **traced)
def stumble_apart(context, how):
    stumble.function(context, how)


@task(max_attempts=1, **traced)
async def astumble(context, how):
    await asign(context, "START")
    ENDS[how]()


@task(max_attempts=1, **traced)
async def astumble_aside(context, how):
    """The exception is that of another coroutine, for which this one waits."""
    await asign(context, "START")

    async def aside():
        ENDS[how]()

    await asyncio.create_task(aside())


def bad_backoff(_attempt, _initial, _maximum):
    raise RuntimeError("no delay")


@task(takes_context=True, max_attempts=2, backoff=bad_backoff)
def stumble_badly(context):
    sign(context, "START")
    raise ValueError("and nobody knows when to try again")


@task(takes_context=True, max_attempts=2, backoff=bad_backoff, isolation="process")
def stumble_badly_apart(context):
    stumble_badly.function(context)


@task(takes_context=True, max_attempts=2, backoff=bad_backoff)
async def astumble_badly(context):
    await asign(context, "START")
    raise ValueError("and nobody knows when to try again")


@task(**traced)
async def aleak(context):
    """Leave a transaction open that has written."""
    await asign(context, "START")
    await asign(context, "END")
    await sync_to_async(_leak)()


def _leak():
    connection.set_autocommit(False)
    Ledger.objects.create(name="leaked")


# -- memory --------------------------------------------------------------------------------------

kept = []


@task(**traced)
def grow(context, megabytes):
    """Keep memory for good."""
    sign(context, "START")
    kept.append(bytearray(os.urandom(2**20)) * megabytes)
    sign(context, "END")


# -- the mix -------------------------------------------------------------------------------------


@task(**traced)
def slow(context, seconds):
    sign(context, "START")
    time.sleep(seconds)
    sign(context, "END")


@task(max_attempts=3, **traced)
def fail_once(context):
    """Fail as long as no failure is recorded; a lost run is none."""
    sign(context, "START")
    if context.reservation.job.attempts == 0:
        raise ValueError("the first time")
    sign(context, "END")


@task(max_attempts=3, **traced)
def fail_always(context):
    sign(context, "START")
    raise ValueError("each time")


@task(**traced)
def snooze_once(context):
    sign(context, "START")
    if context.checkpoint is None:
        context.save_checkpoint("snoozed")
        raise Snooze(0.05)
    sign(context, "END")


@task(**traced)
def have_children(context, count):
    """Enqueue others, each once however often this runs."""
    sign(context, "START")
    for number in range(count):
        key = f"{context.job_id}/{number}"
        touch.using(idempotency_key=key).enqueue()
    sign(context, "END")


@task(atomic=True, **traced)
def have_children_atomically(context, count):
    """The same without keys: they are there when this is done, and not before."""
    sign(context, "START")
    for _ in range(count):
        touch.enqueue()
    sign(context, "END")


# -- workflows -----------------------------------------------------------------------------------


@task(**traced)
def gather(context, values):
    """The end of a chord: how many there were."""
    sign(context, "START")
    sign(context, "END")
    return len(values)


@task(**traced)
def spread(context, count):
    """Add others to the workflow, each once however often this runs."""
    sign(context, "START")
    for number in range(count):
        context.add(touch.s(), key=str(number))
    sign(context, "END")


# -- hostile data --------------------------------------------------------------------------------


def _deep(levels=5_000):
    value = []
    for _ in range(levels):
        value = [value]
    return value


HOSTILE = {
    "nul": lambda: "a\0b",
    "surrogate": lambda: "a\ud800b",
    "nan": lambda: float("nan"),
    "large number": lambda: 2**70,
    "large": lambda: "x" * 20_000_000,
    "deep": _deep,
}


@task(max_attempts=1, **traced)
def utter(context, what, where):
    """Put a hostile value where the runtime has to store it."""
    sign(context, "START")
    value = HOSTILE[what]()
    answer = UTTERANCES[where](context, value)
    sign(context, "END")
    return answer


@task(max_attempts=1, isolation="process", **traced)
def utter_apart(context, what, where):
    return utter.function(context, what, where)


def _raise(context, value):
    raise ValueError(value)


def _raise_code(context, value):
    raise PermanentError("hostile", code=value)


def _tell_progress(context, value):
    context.set_progress(50, value)
    return "told"


def _save(context, value):
    try:
        context.save_checkpoint(value)
    except Exception as error:  # noqa: BLE001  the answer says which
        return type(error).__name__
    return "saved"


UTTERANCES = {
    "result": lambda _, value: value,
    "result key": lambda _, value: {str(value) if value == 2**70 else value: 1},
    "error": _raise,
    "code": _raise_code,
    "progress": _tell_progress,
    "checkpoint": _save,
}
