"""
What is going on, read cheaply: rates from the statistics of each minute, every count capped.

Nothing here scans jobs. A count walks at most CAP entries of an index, the age of a queue is one
probe of the ready index for each priority in it, and several questions travel in one statement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from django.db import connections
from django.db.models import F, QuerySet, Sum, Value

from ..lifecycle import JobState
from ..models import DeadLetter, Job, Lease, Queue, QueueMinute, Schedule, Worker
from .storage import driver_for

Name = TypeVar("Name", bound=str)

CAP = 10_000
WINDOW = timedelta(hours=1)
MOST_WORKERS = 500
SILENT_FOR = timedelta(days=1)  # then a worker that was killed is shown no longer
MINUTE = timedelta(minutes=1)
# The column of each state's index: an order keeps the planner from reading the table instead.
INDEXED = {
    JobState.READY: "queue",
    JobState.INFLIGHT: "lease",
    JobState.SCHEDULED: "available_at",
    JobState.BLOCKED: "created_at",
    JobState.DONE: "finished_at",
    JobState.DEAD: "finished_at",
    JobState.CANCELLED: "finished_at",
}
COUNTED = "COUNT(*) FROM ({}) AS counted"


class Count(NamedTuple):
    """A number, or "at least" that number."""

    number: int = 0
    more: bool = False

    def __bool__(self) -> bool:
        return self.number > 0


class Minute(NamedTuple):
    """What became of jobs within one minute; `failed` were tried again later."""

    done: int = 0
    failed: int = 0
    dead: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFigures:
    """One queue as it stands."""

    name: str
    ready: Count
    inflight: Count
    scheduled: Count
    blocked: Count
    dead: Count
    oldest_at: datetime | None
    """since when its oldest ready job could have run"""
    minutes: tuple[Minute, ...]
    """the last hour, the running minute last"""
    paused: Queue | None
    workers: int
    """how many living workers serve it"""

    @property
    def last_hour(self) -> Minute:
        done, failed, dead = (sum(column) for column in zip(*self.minutes, strict=True))
        return Minute(done, failed, dead)


def living(workers: Iterable[Worker], now: datetime) -> list[Worker]:
    """Those that were heard of within their own lease, which need not be that of the settings."""
    return [worker for worker in workers if not worker.is_silent(now)]


def workers_of(using: str, now: datetime) -> list[Worker]:
    """Workers that have not stopped, heard of within a day; those heard of last first."""
    rows = Worker.objects.using(using).filter(stopped_at=None, last_beat_at__gte=now - SILENT_FOR)
    return list(rows.order_by("-last_beat_at")[:MOST_WORKERS])


def queue_figures(using: str, now: datetime, workers: Iterable[Worker]) -> list[QueueFigures]:
    """All queues that have jobs, statistics of the last hour, or a word said about them."""
    ready = _ready(using)
    counts = {
        state: by_queue(Job.objects.using(using).in_state(state).order_by(INDEXED[state]))
        for state in (JobState.INFLIGHT, JobState.SCHEDULED, JobState.BLOCKED)
    }
    letters = DeadLetter.objects.using(using).filter(open_for__isnull=False)
    dead = by_queue(letters.order_by("fingerprint", "died_at"))
    minutes = minutes_by_queue(using, now)
    paused = {row.name: row for row in Queue.objects.using(using).paused(now)}
    serving = _served(living(workers, now))
    names: set[str] = set().union(ready, *counts.values(), dead, minutes, paused, serving) - {"*"}
    nothing = {name: Count(0, _is_cut(found)) for name, found in (*counts.items(), ("dead", dead))}
    oldest = _oldest(using, ready)
    none: list[Minute] = [Minute()] * 60
    return [
        QueueFigures(
            name=name,
            ready=ready.get(name, Count()),
            inflight=counts[JobState.INFLIGHT].get(name, nothing[JobState.INFLIGHT]),
            scheduled=counts[JobState.SCHEDULED].get(name, nothing[JobState.SCHEDULED]),
            blocked=counts[JobState.BLOCKED].get(name, nothing[JobState.BLOCKED]),
            dead=dead.get(name, nothing["dead"]),
            oldest_at=oldest.get(name),
            minutes=tuple(minutes.get(name, none)),
            paused=paused.get(name),
            workers=serving.get(name, 0) + serving.get("*", 0),
        )
        for name in sorted(names)
    ]


def overdue_leases(using: str, now: datetime) -> int:
    """Leases that have expired and that nobody has taken back, up to CAP."""
    leases = Lease.objects.using(using).filter(expires_at__lte=now).order_by("expires_at")
    return leases[:CAP].count()


def late_schedules(using: str, now: datetime) -> list[tuple[str, timedelta]]:
    """Active schedules, and how long the next slot of each is overdue."""
    rows = Schedule.objects.using(using).active().order_by("name")[:CAP]
    late = rows.values_list("name", "next_at")
    return [(name, max(now - next_at, timedelta(0))) for name, next_at in late if next_at]


def state_counts(using: str) -> dict[JobState, Count]:
    """How many jobs are in each state, up to CAP."""
    jobs = Job.objects.using(using)
    return capped_counts(
        using, {state: jobs.in_state(state).order_by(name) for state, name in INDEXED.items()}
    )


def capped_counts(using: str, wanted: Mapping[Name, QuerySet[Any]]) -> dict[Name, Count]:
    """Count several querysets in one statement, each up to CAP."""
    rows = _union(
        using,
        [
            # A constant, not the key: the index alone can answer.
            (f"SELECT {place} AS which, {COUNTED}", rows.values(one=Value(1)))
            for place, rows in enumerate(wanted.values())
        ],
        CAP + 1,
    )
    found = {place: _count(number) for place, number in rows}
    return {name: found[place] for place, name in enumerate(wanted)}


def minutes_by_queue(using: str, now: datetime) -> dict[str, list[Minute]]:
    """What each queue's workers did in each minute of the last hour."""
    first = now.replace(second=0, microsecond=0) - WINDOW + MINUTE
    rows = QueueMinute.objects.using(using).filter(minute__gte=first, minute__lte=now)
    sums = rows.values_list("queue", "minute").annotate(Sum("done"), Sum("failed"), Sum("dead"))
    found: dict[str, list[Minute]] = defaultdict(lambda: [Minute()] * 60)
    for queue, minute, *counts in sums.order_by():
        found[queue][(minute - first) // MINUTE] = Minute(*counts)
    return dict(found)


def _ready(using: str) -> dict[str, Count]:
    names = driver_for(using).ready_queues()
    jobs = Job.objects.using(using).ready()
    return capped_counts(using, {name: jobs.filter(queue=name).in_line() for name in names})


def _is_cut(found: Mapping[str, Count]) -> bool:
    """Whether there were more than the rows that were counted: then a queue may be missing."""
    return any(count.more for count in found.values())


def by_queue(rows: QuerySet[Any]) -> dict[str, Count]:
    """Count the first CAP rows by queue; with more than that, every count is a least one."""
    named = "SELECT queue, COUNT(*) FROM ({}) AS first_rows GROUP BY queue"
    found = _union(str(rows.db), [(named, rows.values("queue"))], CAP + 1)
    more = sum(number for _, number in found) > CAP
    return {queue: Count(min(number, CAP), more) for queue, number in found}


def _oldest(using: str, queues: Iterable[str]) -> dict[str, datetime]:
    """The earliest available_at of each queue's ready jobs: one round for each priority in use."""
    floors: dict[str, int | None] = dict.fromkeys(queues)
    oldest: dict[str, datetime] = {}
    while floors:
        first = [
            ("SELECT * FROM ({}) AS first_row", _first(using, queue, floor))
            for queue, floor in floors.items()
        ]
        found = {row[0]: row[1:] for row in _union(using, first, 1)}
        for queue, (_, told) in found.items():
            at = _aware(told)
            oldest[queue] = min(at, oldest.get(queue, at))
        floors = {queue: priority for queue, (priority, _) in found.items()}
    return oldest


def _first(using: str, queue: str, floor: int | None) -> QuerySet[Any]:
    jobs = Job.objects.using(using).ready().filter(queue=queue)
    jobs = jobs if floor is None else jobs.filter(priority__gt=floor)
    return jobs.in_line().values(name=F("queue"), rank=F("priority"), since=F("available_at"))


def _union(using: str, parts: list[tuple[str, QuerySet[Any]]], limit: int) -> list[Any]:
    """Put limited selections into texts that have a place for each, and ask them all at once."""
    if not parts:
        return []
    texts, values = [], []
    for text, rows in parts:
        sql, parameters = rows[:limit].query.get_compiler(using).as_sql()
        texts.append(text.format(sql))
        values += parameters
    with connections[using].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(texts), values)
        return list(cursor.fetchall())


def _count(number: int) -> Count:
    return Count(min(number, CAP), number > CAP)


def _served(workers: Iterable[Worker]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for worker in workers:
        for queue in worker.queue_names:
            found[queue] += 1
    return dict(found)


def _aware(told: Any) -> datetime:
    """A time as a bare cursor tells it: text on SQLite, without a zone on MariaDB."""
    at: datetime = datetime.fromisoformat(told) if isinstance(told, str) else told
    return at if at.tzinfo else at.replace(tzinfo=UTC)
