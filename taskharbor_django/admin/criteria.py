"""The filter of a screen: read from its address or a form, checked, and made a Selection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from ..exceptions import InvalidJob
from ..lifecycle import DeadReason, FailureCategory, JobState, Priority
from ..operations import Selection
from ..operations.terms import check_terms
from ..tasks import registry

ANY = ("", _("any"))
PRIORITIES = [(level.value, level.label) for level in Priority]
# Where an index narrows the search by itself, nothing has to be left out.
INDEXED = frozenset({"workflow", "schedule", "correlation_id", "parent", "replay_of"})


class CriteriaForm(forms.Form):
    queue = forms.CharField(
        label=_("queue"),
        required=False,
        max_length=128,
        widget=forms.TextInput(attrs={"list": "th-queues"}),
    )
    task = forms.CharField(
        label=_("task"),
        required=False,
        max_length=255,
        widget=forms.TextInput(attrs={"list": "th-tasks"}),
    )
    priority = forms.TypedChoiceField(
        label=_("priority"),
        required=False,
        choices=[ANY, *PRIORITIES],
        coerce=int,
        empty_value=None,
    )
    tag = forms.CharField(label=_("tag"), required=False, help_text=_("name=value"))
    reason = forms.ChoiceField(
        label=_("reason"), required=False, choices=[ANY, *DeadReason.choices]
    )
    category = forms.ChoiceField(
        label=_("category"), required=False, choices=[ANY, *FailureCategory.choices]
    )
    # A field, not the attribute of that name: Django takes fields out of the class.
    error_class = forms.CharField(  # type: ignore[assignment]
        label=_("error class"), required=False, max_length=255
    )
    workflow = forms.UUIDField(label=_("workflow"), required=False)
    schedule = forms.IntegerField(label=_("schedule"), required=False)
    correlation_id = forms.CharField(label=_("correlation id"), required=False, max_length=128)
    parent = forms.UUIDField(label=_("parent"), required=False)
    replay_of = forms.UUIDField(label=_("replay of"), required=False)
    fingerprint = forms.CharField(label=_("error group"), required=False, max_length=64)

    SHOWN = ("queue", "task", "priority", "tag")
    OF_THE_DEAD = ("reason", "category", "error_class")

    def clean_tag(self) -> dict[str, str]:
        text = self.cleaned_data["tag"]
        name, sign, value = text.partition("=")
        if text and not (sign and name):
            raise forms.ValidationError(_("Write a tag as name=value."))
        tags = {name: value} if text else {}
        try:
            check_terms(tags=tags)
        except InvalidJob as problem:  # no job has such a tag
            raise forms.ValidationError(str(problem)) from problem
        return tags

    def criteria(self) -> dict[str, Any]:
        """What was asked for, in the words of a Selection."""
        given = self.cleaned_data.items()
        asked = {name: value for name, value in given if value not in (None, "")}
        tags = asked.pop("tag", {})
        return asked | ({"tags": tags} if tags else {})

    def selection(self, state: JobState | None = None) -> Selection:
        criteria = self.criteria()
        return Selection(**criteria, state=state, everything=not criteria)

    def in_words(self) -> list[str]:
        return in_words(self.criteria()) if self.is_valid() else []

    def visible(self, state: JobState | None) -> list[forms.BoundField]:
        names = self.SHOWN + (self.OF_THE_DEAD if state == JobState.DEAD else ())
        return [self[name] for name in names]

    def beside(self) -> list[tuple[str, Any, Any]]:
        """Criteria that came by a link and have no field on the page."""
        asked = self.criteria()
        names = [*INDEXED, "fingerprint"]
        found = [name for name in sorted(names) if name in asked]
        return [(name, self.fields[name].label, asked[name]) for name in found]

    def known(self) -> dict[str, list[str]]:
        """What the project's own tasks suggest to write into a field."""
        tasks = dict(registry)
        queues = {task.queue for task in tasks.values() if task.queue}
        return {"tasks": sorted(tasks), "queues": sorted(queues)}

    def pairs(self) -> list[tuple[str, str]]:
        """The filled fields as they are sent again."""
        data = [(name, str(self.data.get(name, ""))) for name in self.fields]
        return [(name, value) for name, value in data if value]


def in_words(asked: Mapping[str, Any]) -> list[str]:
    """Criteria in words: each by the name and the value that the screens show."""
    named = [(name, value) for name, value in asked.items() if name != "tags"]
    return [
        *(_worded(CriteriaForm.base_fields[name], value) for name, value in named),
        *(f"{name}={value}" for name, value in asked.get("tags", {}).items()),
    ]


def _worded(field: forms.Field, value: Any) -> str:
    choices = dict(getattr(field, "choices", ()))
    return f"{field.label}: {choices.get(value, value)}"
