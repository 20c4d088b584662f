"""What can be done to jobs from a screen: one entry each, with its permission and its question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from .. import operations
from ..lifecycle import ENDED, TRANSITIONS, JobState, Verb
from ..operations import Moved
from .criteria import PRIORITIES

Text = str | Promise


class ReasonForm(forms.Form):
    """Its fields travel beside those of the filter, and so share no name with them."""

    note = forms.CharField(
        label=_("Why"),
        required=False,
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 2, "cols": 60, "autofocus": True}),
        help_text=_("Kept with the job and in the log, for whoever looks at it later."),
    )

    def options(self) -> dict[str, Any]:
        """What the verb is asked for, without what was left empty."""
        given = self.cleaned_data.items()
        return {name.removeprefix("to_"): value for name, value in given if value not in (None, "")}


class QueueField(forms.RegexField):
    def __init__(self, **options: Any) -> None:
        super().__init__(r"\A[A-Za-z0-9_.:-]{1,128}\Z", required=False, **options)


class RequeueForm(ReasonForm):
    one_more = forms.BooleanField(label=_("Only one more try"), required=False)
    to_queue = QueueField(label=_("Other queue"))
    delay = forms.IntegerField(
        label=_("Minutes from now"), required=False, min_value=0, max_value=60 * 24 * 365
    )

    def clean_delay(self) -> timedelta | None:
        minutes = self.cleaned_data["delay"]
        return timedelta(minutes=minutes) if minutes else None


class ReplayForm(ReasonForm):
    to_queue = QueueField(label=_("Other queue"))
    keep = forms.BooleanField(label=_("Keep the dead jobs where they are"), required=False)


class RescheduleForm(ReasonForm):
    run_at = forms.DateTimeField(
        label=_("Run at"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    to_priority = forms.TypedChoiceField(
        label=_("Priority"),
        required=False,
        choices=[("", _("as it is")), *PRIORITIES],
        coerce=int,
        empty_value=None,
    )
    to_queue = QueueField(label=_("Other queue"))

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if not self.errors and all(given[name] in (None, "") for name in given if name != "note"):
            raise forms.ValidationError(_("Say what is to be changed."))
        return given


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One thing that can be done to jobs."""

    name: str
    label: Text
    permission: str
    effect: Text
    """what it does, in a sentence of the confirmation page; `effect % n` for n jobs"""
    done: Text
    """the words behind the number of jobs, in the message afterwards"""
    states: frozenset[JobState]
    run: Callable[..., Moved]
    form: type[ReasonForm] = ReasonForm
    dangerous: bool = False


def _noted(verb: Callable[..., Moved]) -> Callable[..., Moved]:
    """A verb that stores no author: who and why stand in the log."""

    def run(which: Any, *, by: Any, note: str = "", **options: Any) -> Moved:  # noqa: ARG001  all verbs are called alike
        return verb(which, **options)

    return run


def _unsigned(verb: Callable[..., Moved]) -> Callable[..., Moved]:
    """A verb that stores why and no author: who stands in the log."""

    def run(which: Any, *, by: Any, **options: Any) -> Moved:  # noqa: ARG001  all verbs are called alike
        return verb(which, **options)

    return run


def _from(verb: Verb) -> frozenset[JobState]:
    return frozenset(state for state in TRANSITIONS[verb] if state is not None)


ACTIONS = {
    action.name: action
    for action in (
        Action(
            name="requeue",
            label=_("Requeue"),
            permission="requeue_deadletter",
            effect=ngettext_lazy(
                "It runs again with fresh attempts, and leaves the dead letters.",
                "They run again with fresh attempts, and leave the dead letters.",
            ),
            done=_("requeued"),
            states=_from(Verb.REQUEUE),
            run=operations.requeue,
            form=RequeueForm,
        ),
        Action(
            name="replay",
            label=_("Replay"),
            permission="replay_deadletter",
            effect=ngettext_lazy(
                "A new job is made with its arguments; the dead one is given up.",
                "New jobs are made with their arguments; the dead ones are given up.",
            ),
            done=_("replayed"),
            states=_from(Verb.DISCARD),
            run=operations.replay,
            form=ReplayForm,
        ),
        Action(
            name="discard",
            label=_("Discard"),
            permission="discard_deadletter",
            effect=ngettext_lazy(
                "It is given up for good, and leaves the dead letters.",
                "They are given up for good, and leave the dead letters.",
            ),
            done=_("discarded"),
            states=_from(Verb.DISCARD),
            run=operations.discard,
            dangerous=True,
        ),
        Action(
            name="run_now",
            label=_("Run now"),
            permission="run_job_now",
            effect=ngettext_lazy(
                "It no longer waits for its time.",
                "They no longer wait for their time.",
            ),
            done=_("may run now"),
            states=_from(Verb.PROMOTE),
            run=_noted(operations.run_now),
        ),
        Action(
            name="reschedule",
            label=_("Reschedule"),
            permission="reschedule_job",
            effect=ngettext_lazy(
                "It waits for another time, with another priority, or in another queue.",
                "They wait for another time, with another priority, or in another queue.",
            ),
            done=_("rescheduled"),
            states=_from(Verb.RESCHEDULE),
            run=_noted(operations.update),
            form=RescheduleForm,
        ),
        Action(
            name="cancel",
            label=_("Cancel"),
            permission="cancel_job",
            effect=ngettext_lazy(
                "If it waits, it ends at once; if it runs, it is asked to stop.",
                "Waiting jobs end at once, running ones are asked to stop.",
            ),
            done=_("cancelled"),
            states=_from(Verb.CANCEL),
            run=_noted(operations.cancel),
            dangerous=True,
        ),
        Action(
            name="force_cancel",
            label=_("Cancel by force"),
            permission="force_cancel_job",
            effect=ngettext_lazy(
                "It is taken away from its worker; what that reports is refused.",
                "Running jobs are taken away from their worker; what they report is refused.",
            ),
            done=_("cancelled"),
            states=frozenset({JobState.INFLIGHT}),
            run=_noted(partial(operations.cancel, force=True, state=JobState.INFLIGHT)),
            dangerous=True,
        ),
        Action(
            name="bury",
            label=_("Bury"),
            permission="bury_job",
            effect=ngettext_lazy(
                "It becomes a dead letter; if it runs, it is taken away from its worker.",
                "They become dead letters; running ones are taken away from their worker.",
            ),
            done=_("buried"),
            states=_from(Verb.BURY),
            run=_unsigned(operations.bury),
            dangerous=True,
        ),
        Action(
            name="erase",
            label=_("Erase"),
            permission="erase_job",
            effect=ngettext_lazy(
                "Arguments, result, tags and errors go; a dead job cannot run again.",
                "Arguments, results, tags and errors go; dead ones cannot run again.",
            ),
            done=_("erased"),
            states=ENDED,
            run=_noted(operations.erase),
            dangerous=True,
        ),
    )
}


def actions_for(state: str | None, user: Any) -> list[Action]:
    """What this person may do to a job in that state; without one, to a job in any."""
    # As the handler of the buttons asks: Django lets who may change a model view it.
    if not any(user.has_perm(f"taskharbor.{verb}_job") for verb in ("view", "change")):
        return []
    return [
        action
        for action in ACTIONS.values()
        if (state is None or state in action.states)
        and user.has_perm(f"taskharbor.{action.permission}")
    ]
