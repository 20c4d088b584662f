"""Every text that can be stored is hostile at once, and no screen lets any of it become markup."""

import json
from html.parser import HTMLParser

import pytest
from django.db.models import BinaryField, CharField, JSONField, TextField
from django.db.models.fields.json import JSONField as Json

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
    flow = Workflow.objects.create(name="w", created_at=utcnow())
    plan = Schedule.objects.create(
        name="s", task="t", kind="cron", cron="* * * * *", created_at=utcnow()
    )
    dead = died("f1", schedule=plan, schedule_slot=utcnow(), workflow=flow, progress=40)
    others = [
        job_in(state, workflow=flow, parent=dead)
        for state in ("inflight", "done", "ready", "scheduled", "cancelled", "blocked")
    ]
    for job in others:
        Dependency.objects.create(job=job, depends_on=dead, kind="after")
    Queue.objects.create(name="q", paused_at=utcnow())
    QueueMinute.objects.create(queue="q", minute=utcnow().replace(second=0, microsecond=0))
    facts = {"host": "h", "pid": 1, "version": "1", "queues": "*", "slots": 4, "busy": 1}
    Worker.objects.create(id="w1", name="w", started_at=utcnow(), last_beat_at=utcnow(), **facts)
    return flow, plan, [dead, *others]


def addresses(flow, plan, jobs):
    yield "/admin/taskharbor/"
    for screen in ("job", "deadletter", "queue", "worker", "lease", "schedule", "workflow"):
        yield url(f"{screen}_changelist")
    yield url("job_changelist", state="dead")
    for job in jobs[:3]:
        yield url("job_change", job.pk)
    yield url("deadletter_changelist", fingerprint="f1")
    yield url("workflow_change", flow.pk)
    yield url("schedule_add")
    yield url("schedule_change", plan.pk)


def assert_harmless(answer, where):
    assert answer.status_code == 200, where
    reader = Reader()
    reader.feed(answer.content.decode())
    assert reader.found == [], where


@pytest.mark.parametrize(
    "page", [HOSTILE, SHORT, f'<a href="{LINK}">', "<p onclick=x>", "<script>1</script>"]
)
def test_the_reader_sees_what_must_not_be_there(page):
    reader = Reader()
    reader.feed(page)
    assert reader.found


def test_no_stored_text_becomes_markup_on_any_screen(operator):
    flow, plan, jobs = rows()
    spoiled = {model: spoil(model) for model in MODELS}
    assert all(spoiled[model] for model in MODELS if model is not Lease), spoiled
    for where in addresses(flow, plan, jobs):
        assert_harmless(operator.get(where, follow=True), where)
    data = {"_selected_action": [str(jobs[0].pk)], "note": HOSTILE}
    assert_harmless(operator.post(url("job_act", "requeue"), data, follow=True), "the question")
    assert_harmless(operator.get("/admin/"), "the index with what was done")


ASKED = ("queue", "task", "tag", "priority", "workflow", "error_class", "p", "o", "next")


@pytest.mark.parametrize("screen", ["job", "deadletter", "queue", "worker", "schedule", "workflow"])
def test_no_text_of_an_address_becomes_markup(operator, screen):
    for query in ({"q": HOSTILE}, dict.fromkeys(ASKED, HOSTILE)):
        answer = operator.get(url(f"{screen}_changelist"), query, follow=True)
        assert_harmless(answer, (screen, query))


def test_a_payload_in_json_is_no_script_either(operator):
    job = job_in("ready", payload=json.dumps({"a": [HOSTILE], "k": {}}).encode())
    assert_harmless(operator.get(url("job_change", job.pk)), "a payload that is no call")
