"""Every text that can be stored is hostile at once, and no screen lets any of it become markup."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError
from django.db.models import BinaryField, CharField, JSONField, TextField
from django.db.models.fields.json import JSONField as Json
from django.urls import reverse

from taskharbor_django import registry, task
from taskharbor_django.admin import acting, queues, schedules, workers, workflows
from taskharbor_django.admin.actions import ACTIONS
from taskharbor_django.exceptions import InvalidJob
from taskharbor_django.lifecycle import JobState
from taskharbor_django.models import (
    Attempt,
    DeadLetter,
    Dependency,
    Job,
    Lease,
    Queue,
    QueueMinute,
    Schedule,
    Worker,
    Workflow,
)
from taskharbor_django.payload import encode_call, encode_value
from tests.factories import job_in, utcnow

from . import died, url

# Out of an attribute, a script, a title or a text area, and into an element of its own.
HOSTILE = """"'></script></title></textarea></style><th-evil th-evil=1 onload='alert(1)'>{{7*7}}"""
SHORT = "\"'><th-evil>"
LINK = "javascript:alert(1)"
MODELS = [Job, Attempt, DeadLetter, Lease, Queue, QueueMinute, Schedule, Worker, Workflow]
# What is looked up or computed with, so that other values could not have been stored.
KEPT = {"state", "queue", "kind", "cron", "time_zone", "fingerprint", "id", "input", "request"}


class Reader(HTMLParser):
    """Notes what a browser would make of a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            link = name in {"href", "src", "action", "formaction", "xlink:href"}
            if name.startswith(("on", "th-evil")) or (link and LINK in (value or "")):
                self.found.append((tag, name, value))
        if tag == "th-evil" or (tag == "script" and "src" not in dict(attrs)):
            self.found.append(tag)

    handle_startendtag = handle_starttag


def hostile(field):
    """A value for a column that takes texts; None where it takes none."""
    if field.name in KEPT or field.choices or field.primary_key or field.is_relation:
        return None
    if isinstance(field, Json | JSONField):
        return {HOSTILE: HOSTILE}
    if field.name == "callback_url":
        return LINK
    if isinstance(field, BinaryField):
        call = encode_call((HOSTILE,), {"key": HOSTILE}, max_bytes=10_000)
        return call if field.name == "payload" else encode_value(HOSTILE, max_bytes=10_000)
    if isinstance(field, CharField | TextField):
        room = field.max_length or len(HOSTILE)
        return HOSTILE if room >= len(HOSTILE) else SHORT[:room]
    return None


def spoil(model):
    """Write a hostile text into each column of each row that takes one."""
    values = {field.name: hostile(field) for field in model._meta.concrete_fields}
    values = {name: value for name, value in values.items() if value is not None}
    model.objects.update(**values)
    return values


def rows():
    """Two jobs in each state, and one or two of all else; every text in them is hostile."""
    flow = Workflow.objects.create(name="w", created_at=utcnow())
    facts = {"kind": "cron", "cron": "* * * * *", "created_at": utcnow()}
    plan = Schedule.objects.create(name="s", task="t", **facts)
    for _ in range(2):
        dead = died("f1", schedule=plan, schedule_slot=utcnow(), workflow=flow)
        others = [
            job_in(state, workflow=flow, parent=dead)
            for state in JobState.values
            if state != JobState.DEAD
        ]
        for job in others:
            Dependency.objects.create(job=job, depends_on=dead, kind="after")
    Job.objects.filter(state="inflight").update(progress=40)
    Queue.objects.create(name="q", paused_at=utcnow())
    QueueMinute.objects.create(queue="q", minute=utcnow().replace(second=0, microsecond=0))
    about = {"host": "h", "pid": 1, "version": "1", "queues": "*", "slots": 4, "busy": 1}
    Worker.objects.create(id="w1", name="w", started_at=utcnow(), last_beat_at=utcnow(), **about)
    spoiled = {model: spoil(model) for model in MODELS}
    assert all(spoiled.values()), spoiled
    # One that the form has a place for.
    call = encode_call((), {HOSTILE: HOSTILE}, max_bytes=10_000)
    Schedule.objects.create(name=f"{HOSTILE} 2", task=HOSTILE, payload=call, **facts)


def assert_harmless(answer, where):
    reader = Reader()
    reader.feed(answer.content.decode())
    assert reader.found == [], where


def assert_escaped(answer, where):
    """No markup, and what would have been some is there for people to read."""
    assert_harmless(answer, where)
    assert "&lt;th-evil" in answer.content.decode(), where


@pytest.mark.parametrize(
    "page", [HOSTILE, SHORT, f'<a href="{LINK}">', "<p onclick=x>", "<script>1</script>"]
)
def test_the_reader_sees_what_must_not_be_there(page):
    reader = Reader()
    reader.feed(page)
    assert reader.found


# -- every page -----------------------------------------------------------------------------------

SCREENS = {
    model: screen
    for model, screen in site._registry.items()
    if model._meta.app_label == Job._meta.app_label
}
# name -> its model, the parameters in its address
PAGES = {
    pattern.name: (model, list(pattern.pattern.converters))
    for model, screen in SCREENS.items()
    for pattern in screen.get_urls()
    if pattern.name
}
NOBODYS = {
    f"taskharbor_{model._meta.model_name}_{what}" for model in SCREENS for what in ("add", "delete")
} - {"taskharbor_schedule_add"}


@pytest.fixture
def hostile_rows(operator, monkeypatch):
    """Rows, tasks, people and entries of the log, with the same text in each of them."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    task(name=HOSTILE, queue="q")(lambda **_: None)
    rows()
    names = dict.fromkeys(("username", "first_name", "last_name"), SHORT)
    somebody = get_user_model().objects.create_user(**names)
    said = {"object_repr": HOSTILE, "change_message": HOSTILE, "action_flag": CHANGE}
    for model in SCREENS:
        said["content_type"] = ContentType.objects.get_for_model(model)
        for row in model.objects.all():
            LogEntry.objects.create(user=somebody, object_id=row.pk, **said)
    LogEntry.objects.create(user=operator.user, **said)  # the index shows one's own


def keys(model):
    return [quote(pk) for pk in model.objects.values_list("pk", flat=True)]


ROWS = {"object_id", "schedule_id", "workflow_id"}
# What other parameters of a page may be; a new page may need a new one.
WORDS = {
    "taskharbor_job_act": {"name": ACTIONS},
    "taskharbor_schedule_ask": {"what": schedules.REQUESTS},
    "taskharbor_worker_ask": {"what": workers.REQUESTS},
    "taskharbor_workflow_ask": {"what": workflows.REQUESTS},
}
POSTED = WORDS.keys() | {"taskharbor_queue_pause", "taskharbor_queue_resume"}


def addresses(page):
    """All of one page: for each row, and for each word that it takes."""
    model, parameters = PAGES[page]
    known = [keys(model) if it in ROWS else WORDS[page][it] for it in parameters]
    found = [reverse(f"admin:{page}", args=args) for args in product(*known)]
    assert found, page
    return found


@pytest.mark.parametrize("page", PAGES)
def test_no_stored_text_becomes_markup_on_any_screen(operator, hostile_rows, page):
    for where in addresses(page):
        answer = operator.get(where, follow=True)
        wanted = 405 if page in POSTED else 403 if page in NOBODYS else 200
        assert answer.status_code == wanted, where
        (assert_escaped if wanted == 200 else assert_harmless)(answer, where)


@pytest.mark.parametrize(
    "where",
    [
        *("/admin/", "/admin/taskharbor/"),
        *(url("job_changelist", state=state) for state in JobState.values),
        url("deadletter_changelist", fingerprint="f1"),
    ],
)
def test_nor_in_any_tab_or_group(operator, hostile_rows, where):
    assert_escaped(operator.get(where, follow=True), where)


# -- every answer to what is asked --------------------------------------------------------------

MEANT = {
    "named": lambda jobs: {"_selected_action": [str(job.pk) for job in jobs]},
    "all": lambda _: {
        "all": "1",
        "task": HOSTILE,
        "tag": f"{HOSTILE}={HOSTILE}",
        "error_class": HOSTILE,
        "correlation_id": SHORT,
        "fingerprint": SHORT,
    },
}


@pytest.mark.parametrize("meant", MEANT)
@pytest.mark.parametrize("name", ACTIONS)
def test_no_confirmation_page_has_any_of_it_as_markup(
    operator, hostile_rows, monkeypatch, name, meant
):
    def refuse(*_, **__):
        raise InvalidJob(HOSTILE)

    monkeypatch.setitem(ACTIONS, name, replace(ACTIONS[name], run=refuse))
    mistaken = {"note": HOSTILE * 20, "to_queue": HOSTILE, "run_at": HOSTILE, "delay": HOSTILE}
    sent = {"confirmed": "1", "note": HOSTILE, "to_priority": "50"}
    for state in ACTIONS[name].states:
        jobs = Job.objects.filter(state=state)
        asked = MEANT[meant](jobs) | {"state": state, "next": f"/{SHORT}"}
        for what in ({}, {"confirmed": "1"} | mistaken, sent):
            answer = operator.post(url("job_act", name), asked | what)
            assert "admin/taskharbor/confirm.html" in [it.name for it in answer.templates]
            assert bool(answer.context["form"].errors) is bool(what)
            assert_escaped(answer, (name, state, what))


@pytest.mark.parametrize("name", ACTIONS)
def test_nor_has_the_page_between_two_portions_or_the_one_behind_the_last(
    operator, hostile_rows, monkeypatch, name
):
    monkeypatch.setattr(acting, "PORTION", 1)
    # What is no address is refused, and then there is no second portion.
    Job.objects.update(callback_url="")
    between, here = 0, f"/admin/taskharbor/job/?q={SHORT}"
    for state in ACTIONS[name].states:
        asked = {"all": "1", "state": state, "task": HOSTILE, "next": here, "to_priority": "50"}
        answer = operator.post(url("job_act", name), {**asked, "confirmed": "1", "note": HOSTILE})
        while answer.status_code == 200:
            assert "admin/taskharbor/progress.html" in [it.name for it in answer.templates]
            assert_escaped(answer, (name, state))
            between += 1
            carried = dict(answer.context["carried"]) | {"confirmed": "1", "next": here}
            answer = operator.post(url("job_act", name), carried)
        assert_escaped(operator.get(answer.url), (name, state))
    assert between


@pytest.mark.parametrize("page", sorted(POSTED - {"taskharbor_job_act"}))
def test_nor_has_what_is_said_after_a_wish(operator, hostile_rows, page):
    for where, queue in product(addresses(page), ("q", HOSTILE)):
        sent = {"queue": queue, "worker": "w1", "note": HOSTILE, "until": ""}
        answer = operator.post(where, sent, follow=True)
        assert answer.status_code == 200
        assert list(answer.context["messages"]), where
        assert_escaped(answer, where)


@pytest.mark.parametrize("place", ["schedule_add", "schedule_edit"])
def test_nor_has_a_form_that_was_not_understood(operator, hostile_rows, place):
    fields = dict.fromkeys(schedules.ScheduleForm.base_fields, HOSTILE)
    empty = dict.fromkeys(("kwargs", "jitter", "priority", "fixed_rate", "fixed_delay"), "")
    known = fields | empty | {"overlap": "skip", "catch_up": ""}
    at = Schedule.objects.latest("pk").pk
    for sent in (fields, known):
        address = url(place, at) if place == "schedule_edit" else url(place)
        answer = operator.post(address, sent)
        assert answer.context["form"].errors
        assert_escaped(answer, sent)


def test_nor_has_what_a_database_says_that_is_lost(operator, monkeypatch):
    def lost(*_, **__):
        raise OperationalError(HOSTILE)

    monkeypatch.setattr(queues, "queue_figures", lost)
    answer = operator.get(url("queue_changelist"))
    assert answer.status_code == 503
    assert_escaped(answer, "away")


# -- what is not stored -------------------------------------------------------------------------

ASKED = ("queue", "task", "tag", "priority", "workflow", "error_class", "p", "o", "next")


@pytest.mark.parametrize("screen", ["job", "deadletter", "queue", "worker", "schedule", "workflow"])
def test_no_text_of_an_address_becomes_markup(operator, screen):
    for query in ({"q": HOSTILE}, dict.fromkeys(ASKED, HOSTILE)):
        answer = operator.get(url(f"{screen}_changelist"), query, follow=True)
        assert_harmless(answer, (screen, query))


def test_a_payload_in_json_is_no_script_either(operator):
    job = job_in("ready", payload=json.dumps({"a": [HOSTILE], "k": {}}).encode())
    assert_harmless(operator.get(url("job_change", job.pk)), "a payload that is no call")
