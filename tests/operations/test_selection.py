"""A filter selects what was asked for; what came out empty never widens it."""

from uuid import uuid4

import pytest

from taskharbor_django import Selection, discard
from taskharbor_django.exceptions import InvalidJob
from taskharbor_django.models import Job
from tests.factories import job_in

TEXTS = ["queue", "task", "correlation_id", "fingerprint", "reason", "category", "error_class"]


def test_rank_0_is_a_criterion(db):
    normal, low = job_in("dead", priority=0), job_in("dead", priority=50)
    which = Selection(state="dead", priority=0)
    assert which.criteria["priority"] == 0
    assert [letter.job_id for letter in which.letters()] == [normal.pk]
    assert discard(which).moved == 1
    assert Job.objects.get(state="dead") == low


@pytest.mark.parametrize("name", [*TEXTS, "state"])
def test_an_empty_text_is_refused(name):
    with pytest.raises(InvalidJob, match=f"{name}: is empty") as refusal:
        Selection(**{name: "", "parent": uuid4()})
    assert refusal.value.field == name


def test_so_are_no_tags():
    with pytest.raises(InvalidJob, match="tags: is empty") as refusal:
        Selection(tags={}, queue="default")
    assert refusal.value.field == "tags"


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["a\0b", "\ud800", 7, False])
def test_what_is_no_text_is_refused(name, value):
    with pytest.raises(InvalidJob) as refusal:
        Selection(**{name: value, "parent": uuid4()})
    assert refusal.value.field == name


@pytest.mark.parametrize("tags", [{"a": "b\0"}, {"\ud800": "b"}, {"a": 1}, "text"])
def test_tags_are_a_map_of_texts(tags):
    with pytest.raises(InvalidJob) as refusal:
        Selection(tags=tags)
    assert refusal.value.field == "tags"


@pytest.mark.parametrize("key", ["plain", '"quoted"', "it's", "100 %s", "a.b", "a[0]", "\\", "☃"])
def test_a_tag_is_found_whatever_its_name(db, key):
    tagged = job_in("ready", tags={key: '"v"', "other": "w"})
    job_in("ready", tags={key: "w"})
    job_in("ready", tags=None)
    assert list(Selection(tags={key: '"v"'}).jobs()) == [tagged]
    assert list(Selection(tags={key: '"v"', "other": "w"}, state="ready").jobs()) == [tagged]
