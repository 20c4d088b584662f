"""Which jobs a verb is meant for: named ones, or all that match a filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet

from ..exceptions import InvalidJob
from ..lifecycle import JobState
from ..models import DeadLetter, Job
from ..models.expressions import HasTag
from ..models.job import JobQuerySet
from ..values import is_storable, shown
from .storage import alias_of, default_alias
from .terms import check_terms


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """
    A filter; each criterion that is given narrows it.

    One without any selects nothing but raises: `everything=True` says that all are meant.
    """

    queue: str | None = None
    task: str | None = None
    state: JobState | None = None
    priority: int | None = None
    tags: Mapping[str, str] | None = None
    workflow: UUID | None = None
    schedule: int | None = None
    correlation_id: str | None = None
    parent: UUID | None = None
    replay_of: UUID | None = None
    fingerprint: str | None = None
    reason: str | None = None
    category: str | None = None
    error_class: str | None = None
    died_from: datetime | None = None
    died_until: datetime | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        # What came out empty would widen the filter to all that the other criteria leave.
        for name in _TEXTS:
            _check_text(name, getattr(self, name))
        if self.tags is not None:
            check_terms(tags=self.tags)
            if not self.tags:
                raise _empty("tags")
        if not self.criteria and not self.everything:
            raise InvalidJob("a selection without a criterion needs everything=True", field="id")
        if self.state is not None:
            object.__setattr__(self, "state", JobState(self.state))

    @property
    def criteria(self) -> dict[str, Any]:
        """What was asked for, without what was left open."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        # By identity: the rank 0 equals False.
        return {name: it for name, it in named.items() if it is not None and it is not False}

    @property
    def using(self) -> str:
        """The database that it looks into: that of its queue."""
        return default_alias() if self.queue is None else alias_of(self.queue)

    def jobs(self, using: str | None = None) -> JobQuerySet:
        """The jobs that match, in no order."""
        alias = using or self.using
        jobs: JobQuerySet = Job.objects.using(alias)
        if self.state is not None:
            jobs = jobs.in_state(self.state)
        jobs = jobs.filter(**_named(self, _OF_BOTH + _OF_JOBS))
        for key, value in (self.tags or {}).items():
            jobs = _tagged(jobs, key, value, alias)
        if _named(self, _OF_LETTERS):
            jobs = jobs.filter(pk__in=self._letters(alias, _OF_LETTERS).values("open_for"))
        return jobs

    def letters(self, using: str | None = None) -> QuerySet[DeadLetter]:
        """The open dead letters that match, in no order."""
        alias = using or self.using
        letters = self._letters(alias, _OF_BOTH + _OF_LETTERS)
        if _named(self, _OF_JOBS) or self.tags:
            letters = letters.filter(open_for__in=self.jobs(alias).values("pk"))
        return letters

    def _letters(self, using: str, names: tuple[str, ...]) -> QuerySet[DeadLetter]:
        return DeadLetter.objects.using(using).filter(open_for__isnull=False, **_named(self, names))


_OF_BOTH = ("queue", "task")
_OF_JOBS = ("priority", "workflow", "schedule", "correlation_id", "parent", "replay_of")
_OF_LETTERS = ("fingerprint", "reason", "category", "error_class", "died_from", "died_until")
_TEXTS = ("queue", "task", "state", "correlation_id", *_OF_LETTERS[:4])
_LOOKUPS = {"died_from": "died_at__gte", "died_until": "died_at__lte"}

Which = Selection | Iterable[Any]


def _check_text(name: str, value: Any) -> None:
    if value is None:
        return
    if value == "":
        raise _empty(name)
    if not isinstance(value, str) or not is_storable(value):
        raise InvalidJob(f"{name}: {shown(value)} is no text that can be stored", field=name)


def _empty(name: str) -> InvalidJob:
    return InvalidJob(f"{name}: is empty; leave it out to select any", field=name)


def _named(selection: Selection, names: tuple[str, ...]) -> dict[str, Any]:
    found = selection.criteria
    return {_LOOKUPS.get(name, name): found[name] for name in names if name in found}


def _tagged(jobs: JobQuerySet, key: str, value: str, using: str) -> JobQuerySet:
    if connections[using].features.supports_json_field_contains:
        return jobs.filter(tags__contains={key: value})
    return jobs.filter(HasTag("tags", key, value))


def by_database(jobs: Iterable[Any], using: str | None = None) -> dict[str, list[UUID]]:
    """Sort ids, text, handles and Jobs into the databases that they are kept in, each id once."""
    wanted: dict[str, set[UUID]] = {}
    for job in several(jobs):
        alias = using or home_of(job) or default_alias()
        wanted.setdefault(alias, set()).add(as_id(job))
    return {alias: sorted(ids) for alias, ids in wanted.items()}


def several(jobs: Any) -> list[Any]:
    """A list of what stands for jobs; a single one is refused."""
    if not isinstance(jobs, Iterable) or isinstance(jobs, str | bytes):
        raise InvalidJob("this takes several jobs: put a single one into a list", field="id")
    return list(jobs)


def home_of(job: Any) -> str | None:
    """The database that a handle or Job comes from; an id does not say."""
    state = getattr(job, "_state", None)
    home: str | None = getattr(job, "using", None) or getattr(state, "db", None)
    return home


def as_id(job: Any) -> UUID:
    """The id of what stands for a job, or InvalidJob."""
    job_id = getattr(job, "id", job)
    try:
        return job_id if isinstance(job_id, UUID) else UUID(job_id)
    except (TypeError, ValueError, AttributeError):
        raise InvalidJob(f"id: {shown(job)} is no job id", field="id") from None
