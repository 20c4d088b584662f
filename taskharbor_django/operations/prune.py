"""
prune: what has been kept long enough -> gone. Jobs with their attempts, letters and edges; results;
idempotency keys; statistics; rows of workers and workflows that are over.

Locks:  a small batch of ended jobs, SKIP LOCKED and against deletion; what hangs on them is covered
        by that. Each batch is a transaction of its own.
Fence:  state, age, and that nobody needs the job, are asked for by the SELECT that locks.
Repeat: safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, Model, OuterRef, Q, QuerySet

from ..clock import steady
from ..conf import get_settings
from ..drivers import DatabaseDriver
from ..drivers.transient import repeat
from ..failpoints import reach
from ..lifecycle import JobState
from ..models import (
    Attempt,
    DeadLetter,
    Dependency,
    IdempotencyKey,
    Job,
    QueueMinute,
    Worker,
    Workflow,
)
from ..models.expressions import StateLiteral

# Rows in a transaction. SQLite's other writers wait for it. On PostgreSQL nobody does, and in a
# busy process the round trips take longer than the deleting: with 1,000, 800 rows a second went.
BATCH, BATCH_ON_POSTGRESQL = 500, 5_000
FIRST = 100
QUICK, SLOW = 0.5, 2.0  # seconds
WORKERS_FOR = timedelta(days=7)

_OVER = [StateLiteral(JobState.DONE), StateLiteral(JobState.CANCELLED)]
_KEPT_BY_STATE = (JobState.DONE, JobState.CANCELLED, JobState.DEAD)


@dataclass(frozen=True, slots=True)
class Pruned:
    """One batch: what it was, and how many rows."""

    what: str
    count: int


def prune(driver: DatabaseDriver, *, now: datetime) -> Iterator[Pruned]:
    """Remove batch after batch, so that the caller may rest, tell or stop in between."""
    for what, rows, remove in _plan(driver, now):
        since: datetime | None = None
        size = min(FIRST, batch_of(driver))
        while True:
            before = steady()
            count, since = _batch(driver, rows, remove, since, size)
            if not count:
                break
            size = size_after(size, steady() - before, batch_of(driver))
            yield Pruned(what, count)


def prunable(driver: DatabaseDriver, *, now: datetime, most: int = 100_000) -> dict[str, int]:
    """How much there is to remove, counted up to `most` each."""
    counts: dict[str, int] = {}
    for what, rows, _ in _plan(driver, now):
        counts[what] = rows.order_by()[:most].count()
    return counts


# what it is, its rows with the oldest first, and how to remove a list of their keys
Step = tuple[str, QuerySet[Any], Callable[[DatabaseDriver, list[Any]], object]]


def _plan(driver: DatabaseDriver, now: datetime) -> Iterator[Step]:
    using, kept = driver.using, get_settings().retention
    for state in _KEPT_BY_STATE:
        age = kept[state.value]
        if age is not None:
            yield state.value, _jobs(using, state, now).filter(finished_at__lt=now - age), _drop
    expired = _jobs(using, JobState.DONE, now).filter(
        result__isnull=False, result_expires_at__lte=now
    )
    yield "results", expired, _clear
    keys = IdempotencyKey.objects.using(using).filter(expires_at__lte=now)
    # Asked again when they go: a key that expired may have been taken over since.
    yield "keys", keys.order_by("expires_at"), lambda _, ids: keys.filter(pk__in=ids).delete()
    yield from _small_tables(using, now, kept["statistics"])


def _small_tables(using: str, now: datetime, statistics: timedelta | None) -> Iterator[Step]:
    if statistics is not None:
        minutes = QueueMinute.objects.using(using).filter(minute__lt=now - statistics)
        yield "statistics", minutes.order_by("minute"), _delete(minutes)
    workers = Worker.objects.using(using).filter(last_beat_at__lt=now - WORKERS_FOR)
    yield "workers", workers.order_by("last_beat_at"), _delete(workers)
    jobs = Job.objects.using(using).filter(workflow=OuterRef("pk"))
    over = Workflow.objects.using(using).filter(~Exists(jobs), finished_at__isnull=False)
    yield "workflows", over.order_by("finished_at"), _delete(over)


def _delete(rows: QuerySet[Any]) -> Callable[[DatabaseDriver, list[Any]], object]:
    return lambda _, ids: rows.filter(pk__in=ids).delete()


# -- jobs ----------------------------------------------------------------------------------------


def _jobs(using: str, state: JobState, now: datetime) -> QuerySet[Job]:
    """
    Ended jobs that nobody needs, in the order of their index.

    Needed are those with an open idempotency window, an unfinished workflow, or a dependent that
    may yet run. The same as `needed` says, but without a join, whose rows would be locked too.
    """
    window = IdempotencyKey.objects.using(using).filter(
        task=OuterRef("task"),
        key=OuterRef("idempotency_key"),
        job=OuterRef("pk"),
        expires_at__gt=now,
    )
    unfinished = Workflow.objects.using(using).filter(
        pk=OuterRef("workflow"), finished_at__isnull=True
    )
    waiting = Dependency.objects.using(using).filter(depends_on=OuterRef("pk"))
    waiting = waiting.exclude(job__state__in=_OVER)
    return (
        Job.objects.using(using)
        .in_state(state)
        .filter(Q(idempotency_key__isnull=True) | ~Exists(window))
        .filter(Q(workflow__isnull=True) | ~Exists(unfinished))
        .filter(Q(has_dependents=False) | ~Exists(waiting))
        .order_by("finished_at")
    )


def _batch(
    driver: DatabaseDriver,
    rows: QuerySet[Any],
    remove: Callable[[DatabaseDriver, list[Any]], object],
    since: datetime | None,
    size: int,
) -> tuple[int, datetime | None]:
    """Remove the oldest; return how many, and how far this came."""
    (oldest,) = rows.query.order_by
    if since is not None:
        # Without it each batch would walk over what those before it have removed or left.
        rows = rows.filter(**{f"{oldest}__gte": since})

    def once() -> tuple[int, datetime | None]:
        with driver.transaction():
            picked = driver.locked(rows, key=True)[:size]
            found = list(picked.values_list("pk", oldest))
            reach("prune.locked")
            if found:
                remove(driver, [pk for pk, _ in found])
            reach("prune.removed")
        return len(found), found[-1][1] if found else None

    return repeat(driver.using, once)


def batch_of(driver: DatabaseDriver) -> int:
    """The largest batch."""
    return BATCH_ON_POSTGRESQL if driver.connection.vendor == "postgresql" else BATCH


def size_after(size: int, seconds: float, most: int) -> int:
    """
    Take more after a quick batch and fewer after a slow one.

    A worker cuts a statement off that takes too long: on a slow server a fixed size would be
    begun and undone for ever.
    """
    if seconds < QUICK:
        return min(2 * size, most)
    return max(1, size // 2) if seconds > SLOW else size


def _drop(driver: DatabaseDriver, ids: list[Any]) -> None:
    for model, link in (
        (Attempt, "job"),
        (DeadLetter, "job"),
        (Dependency, "job"),
        (Dependency, "depends_on"),
        (Job, "id"),
    ):
        _delete_where(driver, model, link, ids)


def _delete_where(driver: DatabaseDriver, model: type[Model], link: str, ids: list[Any]) -> None:
    """
    Delete the rows that are linked to these ids.

    On PostgreSQL the ids are one parameter: a thousand cost a worker's interpreter 9 ms each time,
    which its jobs would feel.
    """
    if driver.connection.vendor != "postgresql":
        model._default_manager.using(driver.using).filter(**{f"{link}__in": ids}).delete()
        return
    quote = driver.connection.ops.quote_name
    field: Any = model._meta.get_field(link)
    with driver.connection.cursor() as cursor:
        table, column = quote(model._meta.db_table), quote(field.column)
        cursor.execute(f"DELETE FROM {table} WHERE {column} = ANY (%s)", [ids])  # noqa: S608  names from the model, values as parameters


def _clear(driver: DatabaseDriver, ids: list[Any]) -> None:
    """Forget results; their time stays, so that a handle can say that they have expired."""
    Job.objects.using(driver.using).filter(pk__in=ids).update(result=None)
