"""
How a verb goes over many jobs: batch by batch in id order, each in a transaction of its own.

A crash or a refusal in the middle leaves whole batches behind, and the same call again finishes the
rest: every verb looks at the state again under its lock and leaves alone what has moved. For named
jobs it waits, as a person would; for a filter it skips what others hold, and says how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, TextChoices
from django.utils.translation import gettext_lazy as _

from ..drivers import DatabaseDriver
from ..drivers.ends import STORED_FIELDS, Stored, stored
from ..drivers.transient import repeat
from ..lifecycle import JobState
from ..models import Job
from ..models.job import JobQuerySet
from .selection import Selection, Which, by_database
from .storage import driver_for

BATCH = 500
PAGE = 10_000  # ids read at once; each read of a filter may have to sort what matches


class Left(TextChoices):
    """Why a verb left a job as it was."""

    MISSING = "missing", _("there is no such job")
    CHANGED = "changed", _("no longer in the state that was asked for")
    NOT_DEAD = "not_dead", _("not dead, or no longer")
    ENDED = "ended", _("ended before")
    OPEN = "open", _("not ended yet")
    STARTED = "started", _("running, or ended before")
    READY = "ready", _("may run already")
    BLOCKED = "blocked", _("waits for other jobs")
    DEPENDENCY = "dependency", _("died with a job that it depends on: requeue that one")
    ERASED = "erased", _("its arguments were erased")
    TAKES_RESULTS = "takes_results", _("takes results of other jobs: requeue it")
    KEY_USED = "key_used", _("the idempotency key stands for another job")
    LOCKED = "locked", _("held by another transaction just now")


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """What a verb did: how many it moved, asked, or left alone and why."""

    moved: int = 0
    asked: int = 0
    """cancel: running jobs that were asked to stop"""
    left: Mapping[str, int] = field(default_factory=dict)
    """reason (of Left) -> how many"""
    causes: tuple[UUID, ...] = field(default=(), repr=False)
    """requeue: the jobs to requeue instead of those left as `dependency`"""
    made: tuple[UUID, ...] = field(default=(), repr=False)
    """replay: the new jobs"""
    after: UUID | None = field(default=None, repr=False)
    """where a call with a limit stopped; None when nothing is left to look at"""

    def __add__(self, other: Moved) -> Moved:
        left = Counter(self.left)
        left.update(other.left)
        return Moved(
            moved=self.moved + other.moved,
            asked=self.asked + other.asked,
            left=dict(left),
            causes=tuple(dict.fromkeys(self.causes + other.causes)),
            made=self.made + other.made,
            after=other.after,
        )

    @property
    def seen(self) -> int:
        """All jobs that it looked at."""
        return self.moved + self.asked + sum(self.left.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Jobs for one transaction of a verb."""

    driver: DatabaseDriver
    ids: Sequence[UUID]
    waits: bool = True
    state: JobState | None = None
    """the state that was asked for; who has left it meanwhile is left alone"""

    @property
    def rows(self) -> JobQuerySet:
        return Job.objects.using(self.driver.using).filter(pk__in=self.ids)

    def lock(self, *more: str) -> tuple[list[tuple[Stored, dict[str, Any]]], dict[UUID, Left]]:
        """
        Lock the jobs in id order.

        Returns those still as they were asked for, each with the columns named in `more`, and why
        others are not among them.
        """
        found = self._locked(*{*STORED_FIELDS, *more})
        jobs, why = [], self._unseen({row["id"] for row in found})
        for row in found:
            beside = {name: row[name] for name in more}
            job = stored({name: row[name] for name in STORED_FIELDS})
            if self.state in (None, job.state):
                jobs.append((job, beside))
            else:
                why[job.id] = Left.CHANGED
        return jobs, why

    def _locked(self, *fields: str) -> list[dict[str, Any]]:
        rows = self.rows.order_by("pk")
        if not self.waits:
            return list(self.driver.locked(rows).values(*fields))
        with self.driver.short_waits():
            return list(self.driver.waiting_for(rows).values(*fields))

    def _unseen(self, seen: set[UUID]) -> dict[UUID, Left]:
        unseen = [job_id for job_id in self.ids if job_id not in seen]
        if not unseen:
            return {}
        there = set(self.rows.filter(pk__in=unseen).values_list("pk", flat=True))
        return {job_id: Left.LOCKED if job_id in there else Left.MISSING for job_id in unseen}


Verb = Callable[[Batch], Moved]


def counted(why: Mapping[UUID, Left]) -> dict[str, int]:
    return dict(Counter(reason.value for reason in why.values()))


def in_batches(
    which: Which,
    verb: Verb,
    *,
    using: str | None = None,
    limit: int | None = None,
    after: UUID | None = None,
    state: JobState | None = None,
) -> Moved:
    """
    Run a verb over all selected jobs.

    With a filter, `limit` stops after so many, and `after` goes on where that was. Of named jobs,
    `state` leaves alone those in another; a filter says its own.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if isinstance(which, Selection):
        return _over_filter(which, verb, using or which.using, limit, after)
    total = Moved()
    for alias, ids in by_database(which, using).items():
        for part in parts(ids):
            total += _run(verb, Batch(driver=driver_for(alias), ids=part, state=state))
    return total


def _over_filter(
    which: Selection, verb: Verb, using: str, limit: int | None, after: UUID | None
) -> Moved:
    total, driver = Moved(), driver_for(using)
    for ids in _pages(which.jobs(using), after):
        taken = ids if limit is None else ids[: limit - total.seen]
        total += _run(verb, Batch(driver=driver, ids=taken, waits=False, state=which.state))
        if total.seen == limit:
            return total + Moved(after=taken[-1])
    return total


def _pages(jobs: QuerySet[Job], after: UUID | None) -> Iterator[Sequence[UUID]]:
    """The ids of a filter in the order of the database; what joins it behind them is left out."""
    while True:
        rest = jobs if after is None else jobs.filter(pk__gt=after)
        page = list(rest.order_by("pk").values_list("pk", flat=True)[:PAGE])
        yield from parts(page)
        if len(page) < PAGE:
            return
        after = page[-1]


def parts(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """Cut into what one transaction takes."""
    for start in range(0, len(ids), BATCH):
        yield ids[start : start + BATCH]


def _run(verb: Verb, batch: Batch) -> Moved:
    return repeat(batch.driver.using, lambda: verb(batch))
