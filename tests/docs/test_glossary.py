"""The glossary has every word that the code is made of."""

import re

import pytest

from taskharbor_django.lifecycle import FailureCategory, JobState, OutcomeKind, Verb

from .pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8")
TERMS = re.findall(r"^(\w[\w ,]*)\n  ", PAGE, re.M)
OBJECTS = ["task", "job", "queue", "lease", "worker", "schedule", "workflow", "notice", "attempt"]


@pytest.mark.parametrize("word", [*Verb, *OutcomeKind, *OBJECTS, "heartbeat", "dead letter"])
def test_a_word_has_an_entry(word):
    assert str(word) in TERMS


@pytest.mark.parametrize("enumeration", [JobState, FailureCategory])
def test_an_entry_names_all_of_a_kind(enumeration):
    entry = {JobState: "state", FailureCategory: "category"}[enumeration]
    text = re.search(rf"^{entry}\n((?:  .+\n)+)", PAGE, re.M)[1]
    assert [value for value in enumeration.values if value not in text] == []


def test_entries_are_in_order_and_once():
    assert sorted(set(TERMS)) == TERMS
