"""The page of one job: what it is, what happened to it, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..lifecycle import AttemptEnd, JobState
from ..models import Attempt, DeadLetter, Dependency, Job, Lease, Worker
from ..payload import ERASED
from . import shown
from .actions import actions_for
from .screen import database_of, may

MOST_ATTEMPTS = 50
MOST_LINKS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of the timeline."""

    at: datetime
    text: str | Promise
    kind: str = "plain"
    """plain, good, bad or ahead: how it is coloured"""
    detail: str = ""
    took: tuple[tuple[timedelta, str | Promise], ...] = ()
    """how long it was until then, and what that time was: waiting, running"""


def facts(job: Job, request: HttpRequest) -> dict[str, Any]:
    using = database_of(request)
    attempts = list(
        Attempt.objects.using(using).filter(job=job.pk).order_by("-lease_version")[:MOST_ATTEMPTS]
    )
    letters = list(
        DeadLetter.objects.using(using).filter(job=job.pk).defer("traceback").order_by("died_at")
    )
    lease = holder = None
    if job.state == JobState.INFLIGHT and job.lease:
        lease = Lease.objects.using(using).filter(pk=job.lease).first()
        holder = Worker.objects.using(using).filter(pk=lease.worker).first() if lease else None
    may_read = may(request, "view_payload")
    return {
        "job": job,
        "lease": lease,
        "holder": holder,
        "attempts": attempts,
        "letter": next((letter for letter in letters if letter.open_for), None),
        "timeline": sorted(_events(job, attempts, letters), key=lambda event: event.at),
        "actions": actions_for(job.state, request.user),
        "may_read": may_read,
        "may_trace": may(request, "view_traceback"),
        "data": _data(job) if may_read else [],
        "callback_url": shown.address(job.callback_url),
        "erased": bytes(job.payload) == ERASED,
        "links": _links(job, using),
        "is_open": job.state not in (JobState.DONE, JobState.DEAD, JobState.CANCELLED),
    }


def _data(job: Job) -> list[tuple[Any, str]]:
    """What is stored as bytes, in text; what is empty is left out."""
    found = [
        (_("Arguments"), shown.arguments(job)),
        (_("Result"), shown.value(job.result)),
        (_("Checkpoint"), shown.value(job.checkpoint)),
    ]
    return [(name, text) for name, text in found if text]


# -- the timeline ---------------------------------------------------------------------------------


def _events(job: Job, attempts: list[Attempt], letters: list[DeadLetter]) -> Iterator[Event]:
    yield Event(at=job.created_at, text=_("enqueued"))
    moments = [job.created_at, job.run_at, *(attempt.finished_at for attempt in attempts)]
    moments += [letter.closed_at for letter in letters]
    for attempt in attempts:
        yield _of_attempt(attempt, [at for at in moments if at])
    people = _people(letters)
    for letter in letters:
        yield from _of_letter(letter, people.get(letter.closed_by_id, ""))
    yield from _of_run(job, attempts)
    if job.cancel_requested_at:
        yield Event(at=job.cancel_requested_at, text=_("asked to stop"), kind="bad")
    if job.state == JobState.SCHEDULED:
        yield Event(at=job.available_at, text=_("may run"), kind="ahead")


def _of_attempt(attempt: Attempt, moments: list[datetime]) -> Event:
    """One attempt; `moments` are those from which it may have been waited for."""
    lost = attempt.end == AttemptEnd.LOST
    good = attempt.end == AttemptEnd.DONE
    took: list[tuple[timedelta, str | Promise]] = []
    if attempt.started_at:
        since = max(at for at in moments if at <= max(attempt.started_at, moments[0]))
        took.append((attempt.started_at - since, _("waiting")))
        took.append((attempt.finished_at - attempt.started_at, _("running")))
    return Event(
        at=attempt.finished_at,
        text=_("attempt %(number)d: %(end)s")
        % {"number": attempt.number, "end": attempt.get_end_display()},
        kind="good" if good else "bad",
        detail=str(_("its lease was lost")) if lost else attempt.error[:300],
        took=tuple(took),
    )


def _people(letters: list[DeadLetter]) -> dict[Any, str]:
    """Who closed them; asked where users are kept, which need not be the database of the job."""
    ids = {letter.closed_by_id for letter in letters if letter.closed_by_id is not None}
    users = get_user_model()._default_manager.in_bulk(ids) if ids else {}
    return {pk: str(user) for pk, user in users.items()}


def _of_letter(letter: DeadLetter, who: str) -> Iterator[Event]:
    yield Event(
        at=letter.died_at, text=_("died"), kind="bad", detail=str(letter.get_reason_display())
    )
    if letter.closed_at:
        detail = ": ".join(filter(None, (who, letter.note)))
        yield Event(at=letter.closed_at, text=_("taken out of the dead letters"), detail=detail)


def _of_run(job: Job, attempts: list[Attempt]) -> Iterator[Event]:
    """The run that has left no attempt: the present one, or one that succeeded."""
    told = any(attempt.lease_version == job.lease_version for attempt in attempts)
    if job.started_at and not told:
        # Since it could run: enqueued, due or requeued; a lost lease leaves that as it was.
        ended = [attempt.finished_at for attempt in attempts]
        waited = job.started_at - max(job.created_at, job.available_at, *ended)
        yield Event(at=job.started_at, text=_("started"), took=((waited, _("waiting")),))
    if job.finished_at and job.state == JobState.DONE and not told:
        ran = job.finished_at - job.started_at if job.started_at else None
        took = ((ran, _("running")),) if ran is not None else ()
        yield Event(at=job.finished_at, text=_("done"), kind="good", took=took)
    if job.finished_at and job.state == JobState.CANCELLED:
        yield Event(at=job.updated_at, text=_("cancelled"))


# -- the neighbours -------------------------------------------------------------------------------


def _links(job: Job, using: str) -> list[tuple[Any, list[Job]]]:
    """Other jobs that have to do with this one, by what they are to it."""
    jobs = Job.objects.using(using).only("id", "task", "state")
    edges = Dependency.objects.using(using)
    before = edges.filter(job=job.pk).values("depends_on")
    behind = edges.filter(depends_on=job.pk).values("job")
    found = [
        (_("Parent"), jobs.filter(pk=job.parent_id) if job.parent_id else jobs.none()),
        (_("Replay of"), jobs.filter(pk=job.replay_of_id) if job.replay_of_id else jobs.none()),
        (_("Replays"), jobs.filter(replay_of=job.pk)),
        (_("Children"), jobs.filter(parent=job.pk)),
        (_("Waits for"), jobs.filter(pk__in=before)),
        (_("Waited for by"), jobs.filter(pk__in=behind) if job.has_dependents else jobs.none()),
    ]
    read = [(name, list(rows[:MOST_LINKS])) for name, rows in found]
    return [(name, rows) for name, rows in read if rows]
