"""
The jobs of a run as they are at one moment, and two ways to show them.

A terminal gets a picture that is drawn again and again, everybody else the news since the last
look. Both are made from rows of the database and nothing else: the worker is another process.
"""

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from taskharbor_django import registry
from taskharbor_django.lifecycle import ENDED, WAITING, JobState

BAR = 20
MOST = {"running": 8, "retrying": 4, "ended": 5}
COLORS = {JobState.DONE: "SUCCESS", JobState.DEAD: "ERROR", JobState.CANCELLED: "WARNING"}


@dataclass(frozen=True)
class Look:
    jobs: dict
    """the rows, by primary key"""
    horizon: datetime
    """what is scheduled for a time after this is not waited for"""
    seconds: float = 0.0

    @property
    def unfinished(self):
        settled = {*ENDED, "later"}
        return [job for job in self.jobs.values() if kind_of(job, self.horizon) not in settled]

    @property
    def finished(self):
        return not self.unfinished

    @property
    def begun(self):
        return any(job.executions for job in self.jobs.values())

    def of(self, kind):
        return [job for job in self.jobs.values() if kind_of(job, self.horizon) == kind]


def kind_of(job, horizon):
    """Its state in the words of the display."""
    if job.state == JobState.SCHEDULED and job.available_at > horizon:
        return "later"
    if job.state in WAITING and job.executions:
        return "retrying"
    return "running" if job.state == JobState.INFLIGHT else str(job.state)


def short(task):
    """A task's name without its module."""
    return task.rpartition(".")[2]


def brief(error):
    """The first line of an error, without the modules of its class."""
    return re.sub(r"^[\w.]+\.(?=\w+: )", "", error.partition("\n")[0])


def collapsed(texts):
    """Say what is said more than once with a number."""
    counts = Counter(texts)
    return [f"{text}  x{count}" if count > 1 else text for text, count in counts.items()]


# -- the picture -----------------------------------------------------------------------------------


def picture(look):
    """Lines for Screen.draw: the counts, what runs, what will be tried again, what ended last."""
    counts = Counter(kind_of(job, look.horizon) for job in look.jobs.values())
    kinds = ("ready", "running", "retrying", "done", "dead", "cancelled", "later")
    told = "  ".join(f"{kind} {counts[kind]}" for kind in kinds)
    yield "MIGRATE_LABEL", f"{look.seconds:5.1f} s   {told}"
    if not look.begun:
        yield "", "the worker is starting"
    for text in collapsed(map(_running, look.of("running")))[: MOST["running"]]:
        yield "", text
    for text in collapsed(map(_retrying, look.of("retrying")))[: MOST["retrying"]]:
        yield "NOTICE", text
    yield from _last_ended(look)


def _running(job):
    if job.progress is None:
        failed = f" again; {_failures(job)}" if job.attempts else ""
        return f"{short(job.task):<16} {_place(job)}{failed}"
    filled = BAR * job.progress // 100
    bar = f"[{'#' * filled:.<{BAR}}] {job.progress:3} %  {job.progress_message}"
    asked = ", asked to stop" if job.cancel_requested_at else ""
    return f"{short(job.task):<16} {bar}{asked}"


def _place(job):
    """Where a job runs: that is for its task to say."""
    task = registry.get(job.task)
    if task.isolation:
        return "in a process of its own"
    return "on the event loop" if task.is_async else "in a thread"


def _retrying(job):
    return f"{short(job.task):<16} {_failures(job) if job.attempts else 'snoozed'}"


def _failures(job):
    tries = f"{job.attempts} of {job.max_attempts} attempts failed"
    return f"{tries}: {brief(job.last_error)}"


def _last_ended(look):
    """The newest first; jobs of one task that ended alike take one line."""
    ended = [job for job in look.jobs.values() if job.state in ENDED]
    ended.sort(key=lambda job: job.finished_at, reverse=True)
    lines = Counter((COLORS[JobState(job.state)], _end(job)) for job in ended)
    for (color, text), count in list(lines.items())[: MOST["ended"]]:
        yield color, f"{text}  x{count}" if count > 1 else text


def _end(job):
    why = f": {brief(job.last_error)}" if job.state == JobState.DEAD else ""
    return f"{short(job.task):<16} {job.state}{why}"


# -- the news --------------------------------------------------------------------------------------


def news(before, now):
    """What has changed between two looks, a line for each kind of change."""
    told = []
    for key, job in now.jobs.items():
        told += _changes(before.jobs.get(key), job)
    told += [f"{short(job.task):<16} gone" for job in _missing(before, now)]
    return [f"{now.seconds:5.1f} s   {text}" for text in collapsed(told)]


def _missing(before, now):
    return [before.jobs[key] for key in before.jobs.keys() - now.jobs.keys()]


def _snoozes(before, job):
    return job.state == JobState.SCHEDULED and job.executions > before.executions


def _changes(before, job):
    name = f"{short(job.task):<16}"
    if before is None:
        yield f"{name} enqueued by another job"
        return
    if job.state in ENDED:
        if before.state not in ENDED:
            yield _end(job)
    elif job.attempts > before.attempts or _snoozes(before, job):
        yield _retrying(job)
    elif job.cancel_requested_at and not before.cancel_requested_at:
        yield f"{name} asked to stop"
    elif job.progress != before.progress:
        yield f"{name} {job.progress:3} %, {job.progress_message}"
