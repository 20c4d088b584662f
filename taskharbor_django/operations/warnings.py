"""What an operator should look at first, read from the figures and a few cheap questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _

from ..lifecycle import JobState
from ..models import Job, Lease, Worker
from .figures import Count, QueueFigures, by_queue

LATE = timedelta(minutes=5)
UNSERVED = timedelta(seconds=5)  # a worker that just starts needs no alarm
UNRECLAIMED = timedelta(minutes=1)
HELD = timedelta(minutes=5)
DYING_FOR = timedelta(hours=1)

# Rows of other users have no times unless the role may read them; then there is nothing to say.
OLDEST_SNAPSHOT = """
SELECT pid, COALESCE(NULLIF(application_name, ''), usename::text),
    EXTRACT(EPOCH FROM clock_timestamp() - xact_start)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND xact_start < clock_timestamp() - %s::interval
ORDER BY xact_start LIMIT 1
"""


class Trouble(TextChoices):
    """The kinds of warnings, the worst first."""

    AWAY = "away", _("this database cannot be asked")
    NO_WORKER = "no_worker", _("no worker serves this queue")
    SILENT = "silent", _("a worker is no longer heard of")
    LATE = "late", _("its oldest job waits too long")
    DYING = "dying", _("jobs died within the last hour")
    LEASES = "leases", _("expired leases that nobody takes back")
    SNAPSHOT = "snapshot", _("a transaction is held open")
    PAUSED = "paused", _("paused")


@dataclass(frozen=True, kw_only=True, slots=True)
class Warning:  # noqa: A001  the word of the screen
    """One thing to look at."""

    kind: Trouble
    subject: str = ""
    """the queue, worker or session it is about"""
    number: int = 0
    more: bool = False
    """whether the number is a least one"""
    since: datetime | None = None

    @property
    def count(self) -> Count:
        return Count(self.number, self.more)

    @property
    def is_bad(self) -> bool:
        return self.kind != Trouble.PAUSED


def warnings(
    using: str, now: datetime, queues: Iterable[QueueFigures], workers: Iterable[Worker]
) -> list[Warning]:
    """Everything worth a look, the worst first."""
    order = list(Trouble)
    found = [
        *_of_queues(queues, _died(using, now), now),
        *_of_workers(workers, now),
        *_of_leases(using, now),
    ]
    found += _of_snapshots(using, now)
    return sorted(found, key=lambda each: (order.index(each.kind), -each.number, each.subject))


def _died(using: str, now: datetime) -> dict[str, Count]:
    """By queue, who died within the hour and is dead still; the newest, if they are too many."""
    dead = Job.objects.using(using).in_state(JobState.DEAD).filter(finished_at__gt=now - DYING_FOR)
    return by_queue(dead.order_by("-finished_at"))


def _of_queues(
    queues: Iterable[QueueFigures], died: Mapping[str, Count], now: datetime
) -> Iterator[Warning]:
    for queue in queues:
        if queue.paused is not None:
            yield Warning(kind=Trouble.PAUSED, subject=queue.name, since=queue.paused.paused_at)
        elif not queue.workers and _waits(queue, now, UNSERVED):
            yield Warning(
                kind=Trouble.NO_WORKER,
                subject=queue.name,
                number=queue.ready.number,
                since=queue.oldest_at,
            )
        elif _waits(queue, now, LATE):
            yield Warning(
                kind=Trouble.LATE,
                subject=queue.name,
                number=queue.ready.number,
                since=queue.oldest_at,
            )
        if dead := died.get(queue.name):
            yield Warning(
                kind=Trouble.DYING, subject=queue.name, number=dead.number, more=dead.more
            )


def _waits(queue: QueueFigures, now: datetime, most: timedelta) -> bool:
    return queue.oldest_at is not None and now - queue.oldest_at > most


def _of_workers(workers: Iterable[Worker], now: datetime) -> Iterator[Warning]:
    for worker in workers:
        if worker.is_silent(now):
            yield Warning(kind=Trouble.SILENT, subject=str(worker), since=worker.last_beat_at)


def _of_leases(using: str, now: datetime) -> Iterator[Warning]:
    expired = Lease.objects.using(using).filter(expires_at__lt=now - UNRECLAIMED)
    oldest = expired.order_by("expires_at").values_list("expires_at", flat=True).first()
    if oldest is not None:
        yield Warning(kind=Trouble.LEASES, number=expired[:1_000].count(), since=oldest)


def _of_snapshots(using: str, now: datetime) -> Iterator[Warning]:
    """A transaction held open keeps dead rows alive, which slows every claim."""
    if connections[using].vendor != "postgresql":
        return
    with connections[using].cursor() as cursor:
        cursor.execute(OLDEST_SNAPSHOT, [f"{HELD.total_seconds()} seconds"])
        for pid, name, seconds in cursor.fetchall():
            since = now - timedelta(seconds=float(seconds))
            yield Warning(kind=Trouble.SNAPSHOT, subject=f"{name} ({pid})", since=since)
