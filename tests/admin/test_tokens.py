"""Every form that changes something is taken with a CSRF token only."""

from datetime import timedelta

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.test import Client

from taskharbor_django.admin.screen import Screen
from taskharbor_django.models import Worker, Workflow
from taskharbor_django.operations import pause
from taskharbor_django.operations.schedules import create_schedule, pause_schedule
from taskharbor_django.schedules import declare
from tests.factories import job_in, utcnow
from tests.testapp.tasks import add

from . import died, url

# Django's own; of these only the one that makes a schedule is open to anybody.
DJANGO_HAS = {"changelist", "add", "history", "delete", "change"}
FORM = {"name": "nightly", "task": add.name, "fixed_rate": "1:00:00", "overlap": "skip"}


def of_a_job():
    job = job_in("ready")
    return url("job_act", "cancel"), {"_selected_action": str(job.pk), "confirmed": "1"}


def of_a_group_of_the_dead():
    died("f1")
    wanted = {"all": "1", "state": "dead", "fingerprint": "f1"}
    return url("job_act", "requeue"), wanted | {"confirmed": "1"}


def pausing_a_queue():
    return url("queue_pause"), {"queue": "mail"}


def resuming_a_queue():
    pause("mail")
    return url("queue_resume"), {"queue": "mail"}


def of_a_worker(what):
    now = utcnow()
    row = Worker.objects.create(
        id=what, name=what, pid=1, started_at=now, last_beat_at=now, request="quiet"
    )
    if what == "quiet":
        Worker.objects.update(request="")
    return url("worker_ask", what), {"worker": row.pk}


def hourly():
    every = {"fixed_rate": timedelta(hours=1)}
    return create_schedule(declare("hourly", add.name, kwargs={"left": 1, "right": 2}, **every))


def of_a_schedule(what):
    schedule = hourly()
    if what == "resume":
        pause_schedule(schedule)
    return url("schedule_ask", schedule.pk, what), {}


def making_a_schedule():
    return url("schedule_add"), FORM | {"kwargs": '{"left": 1, "right": 2}'}


def changing_a_schedule():
    data = FORM | {"kwargs": '{"left": 1, "right": 2}', "name": "hourly"}
    return url("schedule_edit", hourly().pk), data


def of_a_workflow(what):
    flow = Workflow.objects.create(created_at=utcnow())
    job_in("dead" if what == "resume" else "ready", workflow=flow)
    return url("workflow_ask", flow.pk, what), {"note": "because"}


# endpoint, and each form that is sent to it
FORMS = [
    ("job_act", of_a_job, ()),
    ("job_act", of_a_group_of_the_dead, ()),
    ("queue_pause", pausing_a_queue, ()),
    ("queue_resume", resuming_a_queue, ()),
    *(("worker_ask", of_a_worker, (what,)) for what in ("quiet", "go_on", "stop")),
    *(("schedule_ask", of_a_schedule, (what,)) for what in ("pause", "resume", "run")),
    ("schedule_add", making_a_schedule, ()),
    ("schedule_edit", changing_a_schedule, ()),
    *(("workflow_ask", of_a_workflow, (what,)) for what in ("cancel", "resume")),
]


def test_every_endpoint_is_tested_here():
    screens = [screen for screen in admin.site._registry.values() if isinstance(screen, Screen)]
    names = {pattern.name for screen in screens for pattern in screen.get_urls() if pattern.name}
    named = {name.removeprefix("taskharbor_") for name in names}
    own = {name for name in named if name.partition("_")[2] not in DJANGO_HAS}
    assert {name for name, _, _ in FORMS} == own | {"schedule_add"}


@pytest.mark.parametrize(
    ("form", "given"),
    [(form, given) for _, form, given in FORMS],
    ids=[" ".join((form.__name__, *given)) for _, form, given in FORMS],
)
def test_a_form_without_its_token_changes_nothing(operator, form, given):
    address, data = form(*given)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator.user)
    strict.get(url("queue_changelist"))
    token = {"csrfmiddlewaretoken": strict.cookies["csrftoken"].value}
    for forged in ({}, {"csrfmiddlewaretoken": "x" * 64}):
        assert strict.post(address, data | forged).status_code == 403
        assert not LogEntry.objects.exists()
    assert strict.post(address, data | token).status_code == 302
    assert LogEntry.objects.exists()
