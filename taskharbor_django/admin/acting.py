"""
From a button to a verb: confirm, do it in portions, say what became of it.

A large one goes on over several requests, each a few batches long: it needs no worker (there may be
none, in the hour it is needed), survives a closed tab between two whole batches, and goes on with a
button where there is no JavaScript.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from ..exceptions import TaskHarborError
from ..lifecycle import ENDED, DeadReason, JobState
from ..models import DeadLetter, Dependency, Job
from ..operations import Left, Moved, Selection
from ..operations.selection import as_id
from .actions import ACTIONS, Action
from .criteria import CriteriaForm, in_words
from .screen import Screen, database_of, may
from .telling import log, say, told

PORTION = 2_000
MOST_COUNTED = 100_000
MOST_LOGGED = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The jobs that a form names: some by id, or all that match."""

    ids: tuple[UUID, ...] = ()
    selection: Selection | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    """the same as fields of a form, to be sent again"""

    @property
    def which(self) -> Selection | Sequence[UUID]:
        return self.ids if self.selection is None else self.selection

    def jobs(self, using: str) -> Any:
        if self.selection is None:
            return Job.objects.using(using).filter(pk__in=self.ids)
        return self.selection.jobs(using)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """One POST: who asks on which screen for what, and with which form."""

    screen: Screen
    request: HttpRequest
    action: Action
    wanted: Wanted
    form: Any


def act(screen: Screen, request: HttpRequest, name: str) -> HttpResponse:
    """Answer a POST to an action: ask for confirmation, or do it."""
    action = ACTIONS.get(name)
    if action is None:
        raise Http404
    if not (screen.has_view_permission(request) and may(request, action.permission)):
        raise PermissionDenied
    wanted = _wanted(request.POST, action)
    if wanted is None:
        messages.warning(request, _("Nothing was selected."))
        return HttpResponseRedirect(_back(request))
    form = action.form(request.POST if "confirmed" in request.POST else None)
    work = _Work(screen=screen, request=request, action=action, wanted=wanted, form=form)
    return _do(work) if form.is_valid() else _confirmation(work)


def _wanted(data: Any, action: Action) -> Wanted | None:
    """Read which jobs are meant; None when there are none, or what was sent makes no sense."""
    if data.get("all") != "1":
        try:
            ids = tuple(dict.fromkeys(as_id(text) for text in data.getlist("_selected_action")))
        except TaskHarborError:
            return None
        pairs = tuple(("_selected_action", str(job_id)) for job_id in ids)
        return Wanted(ids=ids, pairs=pairs) if ids else None
    criteria = CriteriaForm(data)
    state = data.get("state")
    if not criteria.is_valid() or state not in action.states:
        return None
    pairs = (("all", "1"), ("state", state), *criteria.pairs())
    return Wanted(selection=criteria.selection(JobState(state)), pairs=pairs)


# -- the confirmation page ----------------------------------------------------------------------


def _confirmation(work: _Work) -> HttpResponse:
    using, wanted, action = database_of(work.request), work.wanted, work.action
    jobs = wanted.jobs(using)
    number = jobs[: MOST_COUNTED + 1].count()
    return work.screen.respond(
        work.request,
        "confirm.html",
        action.label,
        action=action,
        wanted=wanted,
        form=work.form,
        number=number,
        effect=action.effect % number,
        most=MOST_COUNTED,
        criteria=_told(wanted.selection) if wanted.selection else [],
        sample=jobs.only("id", "task", "queue", "state")[:5],
        dependents=_dependents(using, wanted, action),
        followers=_followers(using, wanted, action),
        next=_back(work.request),
    )


def _told(selection: Selection) -> list[str]:
    """A filter in words, with the state that it is for."""
    asked = selection.criteria
    asked.pop("everything", None)
    state = asked.pop("state", None)
    return [*([str(JobState(state).label)] if state else []), *in_words(asked)]


def _dependents(using: str, wanted: Wanted, action: Action) -> int:
    """How many other jobs it touches: those that died with these, or wait for them."""
    ids = wanted.jobs(using).filter(has_dependents=True).values("pk")
    if action.name == "requeue":
        letters = DeadLetter.objects.using(using).filter(
            open_for__isnull=False, reason=DeadReason.DEPENDENCY, cause__in=ids
        )
        others = letters.exclude(open_for__in=wanted.jobs(using).values("pk"))
        return others[: MOST_COUNTED + 1].count()
    if action.states <= ENDED:
        return 0
    waiting = Dependency.objects.using(using).filter(depends_on__in=ids)
    return waiting.values("job").distinct()[: MOST_COUNTED + 1].count()


def _followers(using: str, wanted: Wanted, action: Action) -> int:
    """How many of those meant are not requeued alone, but with the job that they wait for."""
    if action.name != "requeue":
        return 0
    letters = DeadLetter.objects.using(using).filter(reason=DeadReason.DEPENDENCY)
    return letters.filter(open_for__in=wanted.jobs(using).values("pk"))[:MOST_COUNTED].count()


# -- doing it -----------------------------------------------------------------------------------


def _do(work: _Work) -> HttpResponse:
    request, form = work.request, work.form
    after = request.POST.get("after")
    try:
        moved = work.action.run(
            work.wanted.which,
            by=request.user.pk,
            using=database_of(request),
            limit=PORTION,
            after=as_id(after) if after else None,
            **form.options(),
        )
    except (TaskHarborError, ValueError) as error:
        form.add_error(None, str(error))
        return _confirmation(work)
    _log(work, moved)
    total = _so_far(request.POST) + moved
    if moved.after is not None:
        return _progress(work, total, moved.after)
    say(request, work.action.done, total)
    return HttpResponseRedirect(_back(request))


def _so_far(data: Any) -> Moved:
    """What earlier portions did, as the form carries it: for the eyes only."""
    left = {key: _whole(data.get(f"left-{key}")) for key in Left.values}
    return Moved(
        moved=_whole(data.get("moved")),
        asked=_whole(data.get("asked")),
        left={key: count for key, count in left.items() if count},
    )


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0


def _progress(work: _Work, total: Moved, after: UUID) -> HttpResponse:
    request, wanted, form = work.request, work.wanted, work.form
    expected = max(_whole(request.POST.get("expected")), total.seen)
    carried = [
        *wanted.pairs,
        *((name, form.data[name]) for name in form.fields if form.data.get(name)),
        ("after", str(after)),
        ("moved", total.moved),
        ("asked", total.asked),
        ("expected", expected),
        *((f"left-{reason}", count) for reason, count in total.left.items()),
    ]
    return work.screen.respond(
        request,
        "progress.html",
        work.action.label,
        action=work.action,
        total=total,
        expected=expected,
        carried=carried,
        left=told(total.left),
        next=_back(request),
    )


def _log(work: _Work, moved: Moved) -> None:
    """One entry for each named job, one for a portion of a filter."""
    wanted, note = work.wanted, work.form.cleaned_data["note"]
    message = f"{work.action.label}: {moved.moved} {work.action.done}"
    message += f"; {note}" if note else ""
    named = [(str(job_id), str(job_id)) for job_id in wanted.ids[:MOST_LOGGED]]
    log(work.request, Job, named or [(None, described(wanted))], message)


def described(wanted: Wanted) -> str:
    return ", ".join(f"{name}={value}" for name, value in wanted.pairs if name != "all")


def _back(request: HttpRequest) -> str:
    """Where the visitor came from, if that is a page of ours."""
    target = request.POST.get("next", "")
    if url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    ):
        return target
    current = getattr(request, "current_app", None)
    return reverse("admin:taskharbor_job_changelist", current_app=current)
