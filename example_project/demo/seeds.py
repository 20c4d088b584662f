"""
A busy day as rows: ended jobs, waiting ones, and an incident among the dead letters.

The rows are written past enqueue and the worker, because nobody wants to wait for a day. What is
dead, ready or scheduled here can be run by a worker of the example.
"""

import random
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from uuid import uuid4

from taskharbor_django.drivers.moves import fingerprint
from taskharbor_django.lifecycle import JobState
from taskharbor_django.models import Attempt, DeadLetter, Job, QueueMinute
from taskharbor_django.payload import encode_call

SHOP = "example_project.shop.tasks"
BATCH = 2_000
WORKER = "seed"
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DOWN = timedelta(minutes=25)  # so long the mail server is away
# task -> its queue, the arguments of its n-th call, its share of the day
TASKS = {
    "send_offer": ("mail", lambda n: (f"customer{n}@shop.example", "anchor"), 60),
    "count_visit": ("default", lambda _n: (1,), 20),
    "convert": ("default", lambda n: (Decimal(n), "CHF"), 12),
    "import_prices": ("default", lambda _n: ("anchor 12.50",), 3),
    "pick": ("warehouse", lambda _n: (1,), 5),
}
# state -> its share of the jobs that are not dead
SHARES = {
    JobState.DONE: 86,
    JobState.READY: 9,
    JobState.SCHEDULED: 3,
    JobState.CANCELLED: 2,
}


@dataclass(frozen=True)
class Incident:
    """One kind of error, and how many jobs died of it."""

    task: str
    error_class: str
    error: str
    share: int
    reason: str = "exhausted"
    category: str = "temporary"
    attempts: int = 3
    end: str = "failed"
    since: timedelta = 55 * MINUTE  # so that all of them died within the last hour


INCIDENTS = [
    Incident(
        "send_offer",
        "ConnectionRefusedError",
        "ConnectionRefusedError: [Errno 111] mail.shop.example:25 refused message {n}",
        84,
        since=DOWN,
    ),
    Incident("pick", "OperationalError", "OperationalError: scanner {n} is out of battery", 6),
    Incident(
        "import_prices",
        "PermanentError",
        "PermanentError: line {n} of the price list is unreadable",
        5,
        "permanent",
        "permanent",
        attempts=1,
    ),
    Incident("convert", "JobTimeout", "The job ran longer than 30 s.", 3, category="timeout"),
    Incident(
        "count_visit",
        "",
        "The worker stopped renewing its lease before the job ended.",
        2,
        "lease_lost",
        "system",
        end="lost",
    ),
]
TRACEBACK = """Traceback (most recent call last):
  File "example_project/shop/tasks.py", line 81, in {task}
    outside.deliver(order)
  File "example_project/shop/outside.py", line 40, in deliver
    connection.send(message)
{error}
"""


def jobs(number, now, chance):
    """Jobs of the last day that are not dead, one after another."""
    names, facts = list(TASKS), list(TASKS.values())
    states, shares = list(SHARES), list(SHARES.values())
    for seq in range(number):
        (name,) = chance.choices(names, [each[2] for each in facts])
        (state,) = chance.choices(states, shares)
        yield _job(name, state, seq, now=now, chance=chance)


def _payload(name, number):
    return encode_call(TASKS[name][1](number), {}, max_bytes=10_000)


def _job(name, state, seq, *, now, chance):
    born = now - timedelta(seconds=chance.random() * 86_400)
    if state == JobState.READY:
        born = now - timedelta(seconds=chance.random() * 1_200)
    job = Job(
        id=uuid4(),
        task=f"{SHOP}.{name}",
        queue=TASKS[name][0],
        payload=_payload(name, seq),
        state=state,
        priority=chance.choice((-50, 0, 0, 0, 50)),
        seq=seq,
        max_attempts=3,
        created_at=born,
        updated_at=born,
        available_at=born,
        expires_at=born + timedelta(days=7),
    )
    if state == JobState.SCHEDULED:
        job.run_at = job.available_at = now + timedelta(seconds=chance.random() * 86_400)
    if state == JobState.DONE:
        _ran(job, chance)
    if state == JobState.CANCELLED:
        job.finished_at = born + timedelta(seconds=chance.random() * 60)
    return job


def _ran(job, chance):
    job.started_at = job.created_at + timedelta(seconds=chance.random() * 20)
    job.finished_at = job.updated_at = job.started_at + timedelta(seconds=chance.random() * 3)
    job.executions = job.lease_version = 1
    job.lease = uuid4()


def dead(number, now, chance):
    """Dead jobs, each with its letter and its attempts."""
    for seq in range(number):
        (incident,) = chance.choices(INCIDENTS, [each.share for each in INCIDENTS])
        yield _dead(incident, seq, now, chance)


def _dead(incident, seq, now, chance):
    job = _job(incident.task, JobState.DONE, seq, now=now, chance=chance)
    job.finished_at = job.failed_at = now - chance.random() * incident.since
    said = {
        "category": incident.category,
        "error_class": incident.error_class,
        "error": incident.error.format(n=seq),
    }
    said["traceback"] = TRACEBACK.format(task=incident.task, error=said["error"])
    attempts = list(_attempts(job, incident, said, chance))
    job.created_at = job.available_at = attempts[0].started_at - timedelta(seconds=2)
    job.updated_at, job.started_at = job.finished_at, attempts[-1].started_at
    job.state, job.executions, job.lease_version = JobState.DEAD, len(attempts), len(attempts)
    lost = incident.end == "lost"
    job.attempts, job.lease_losses = (0, len(attempts)) if lost else (len(attempts), 0)
    job.lease = None if lost else job.lease
    job.last_error, job.failure_category = said["error"], incident.category
    return job, _letter(job, incident, said), attempts


def _attempts(job, incident, said, chance):
    """All its attempts, the last of which ended with it; those before, a few seconds apart."""
    for number in range(1, incident.attempts + 1):
        ended = job.finished_at - timedelta(seconds=4) * (incident.attempts - number)
        yield Attempt(
            job=job,
            lease_version=number,
            number=number,
            end=incident.end,
            worker=WORKER,
            started_at=ended - timedelta(seconds=chance.random() * 2),
            finished_at=ended,
            **said,
        )


def _letter(job, incident, said):
    return DeadLetter(
        job=job,
        open_for=job.pk,
        task=job.task,
        queue=job.queue,
        reason=incident.reason,
        fingerprint=fingerprint(job.task, incident.reason, incident.error_class, said["error"]),
        attempts=job.attempts,
        died_at=job.finished_at,
        **said,
    )


def minutes(now, chance, letters):
    """The statistics of the last hour: who died in it, and the attempts that failed before that."""
    start = now.replace(second=0, microsecond=0) - 59 * MINUTE
    died, failed = Counter(), Counter()
    for letter in letters:
        place = letter.queue, (letter.died_at - start) // MINUTE
        died[place] += 1
        failed[place] += max(letter.attempts - 1, 0)
    for queue, rate in (("mail", 160), ("default", 60), ("warehouse", 20)):
        for minute in range(60):
            down = queue == "mail" and minute >= 60 - DOWN // MINUTE
            yield QueueMinute(
                minute=start + minute * MINUTE,
                queue=queue,
                worker=WORKER,
                done=int(rate * chance.uniform(0.6, 1.2) * (0.25 if down else 1)),
                failed=failed[queue, minute] + chance.randint(0, 2),
                dead=died[queue, minute],
            )


def chance_of(seed):
    return random.Random(seed)  # noqa: S311  rows for the eye
