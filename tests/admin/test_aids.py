"""What helps whoever looks for a job or repairs one: suggestions, order, ways from page to page."""

import re
from datetime import timedelta

import pytest
from django.contrib import admin

from taskharbor_django.models import Attempt, DeadLetter, Job, Worker, Workflow
from tests.factories import job_in, utcnow

from . import died, url


def page_of(client, *address, **query):
    return client.get(url(*address, **query)).content.decode()


def test_a_group_is_requeued_from_the_list_of_groups(operator):
    group, other = [died("f1"), died("f1")], died("f2")
    page = page_of(operator, "deadletter_changelist")
    assert 'name="fingerprint" value="f1"' in page
    pressed = {"all": "1", "state": "dead", "fingerprint": "f1"}
    assert "2 jobs are meant." in operator.post(url("job_act", "requeue"), pressed).content.decode()
    operator.post(url("job_act", "requeue"), {**pressed, "confirmed": "1"})
    states = [Job.objects.get(pk=job.pk).state for job in (*group, other)]
    assert states == ["ready", "ready", "dead"]


def test_who_may_not_requeue_finds_no_button_for_it(visitor):
    died("f1")
    client = visitor("view_job", "view_deadletter", "discard_deadletter")
    page = page_of(client, "deadletter_changelist")
    assert url("job_act", "discard") in page
    assert 'name="fingerprint"' not in page


def test_it_says_who_of_those_meant_comes_back_with_another(operator):
    cause, other = died(has_dependents=True), died()
    follower = died(dependencies_left=1)
    DeadLetter.objects.filter(job=follower.pk).update(reason="dependency", cause=cause)
    asked = {"all": "1", "state": "dead"}
    page = operator.post(url("job_act", "requeue"), asked).content.decode()
    assert "3 jobs are meant." in page
    assert "1 of them died only with another job" in page
    assert "comes back too" not in page
    assert "of them died" not in operator.post(url("job_act", "discard"), asked).content.decode()
    named = {"_selected_action": [str(other.pk)]}
    assert "of them died" not in operator.post(url("job_act", "requeue"), named).content.decode()


def test_each_attempt_tells_how_long_it_was_waited_for(operator):
    start = utcnow() - timedelta(hours=9)
    job = job_in("dead", created_at=start)
    for number, (began, ended) in {1: (1, 2), 2: (5, 7)}.items():
        Attempt.objects.create(
            job=job,
            lease_version=number,
            number=number,
            end="failed",
            started_at=start + timedelta(hours=began),
            finished_at=start + timedelta(hours=ended),
        )
    found = operator.get(url("job_change", job.pk)).context["timeline"]
    took = [[span.total_seconds() / 3600 for span, _ in event.took] for event in found]
    assert [1, 1] in took
    assert [3, 2] in took


def test_a_running_job_names_its_worker(operator):
    now = utcnow()
    facts = {"host": "h", "pid": 7, "started_at": now, "last_beat_at": now}
    Worker.objects.create(id="worker-1", name="mailer", queues="*", **facts)
    assert "mailer (h:7)" in page_of(operator, "job_change", job_in("inflight").pk)
    Worker.objects.all().delete()
    assert "worker-1" in page_of(operator, "job_change", job_in("inflight").pk)


def test_workers_keep_their_places_whoever_was_heard_of_last(operator):
    now = utcnow()
    for name, seconds in (("b", 3), ("a", 9), ("c", 1)):
        Worker.objects.create(
            id=name,
            name=name,
            host="h",
            pid=1,
            queues="*",
            started_at=now,
            last_beat_at=now - timedelta(seconds=seconds),
        )
    rows = operator.get(url("worker_changelist")).context["rows"]
    assert [worker.name for worker, _ in rows] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("query", "shown"), [("?state=ready", False), ("?q=together", True), ("", True)]
)
def test_the_state_is_shown_where_it_differs(operator, query, shown):
    for state in ("ready", "done", "inflight"):
        job_in(state, correlation_id="together")
    page = operator.get(url("job_changelist") + query).content.decode()
    assert ('<span class="th-state' in page) is shown


def test_a_state_has_one_name_on_every_screen(operator):
    job, flow = job_in("inflight"), Workflow.objects.create(name="f", created_at=utcnow())
    Job.objects.filter(pk=job.pk).update(workflow=flow)
    pages = [operator.get("/admin/taskharbor/").content.decode()]
    pages += [page_of(operator, name) for name in ("queue_changelist", "job_changelist")]
    pages += [
        page_of(operator, "job_change", job.pk),
        page_of(operator, "workflow_change", flow.pk),
    ]
    for page in pages:
        shown = re.sub(r"<[^>]*>", " ", page)
        assert re.search(r"\brunning\b", shown, re.IGNORECASE)
        assert not re.search("inflight", shown, re.IGNORECASE)


def test_filters_suggest_the_tasks_of_the_project_and_their_queues(operator):
    page = page_of(operator, "job_changelist", state="ready")
    assert '<option value="tests.testapp.tasks.add"></option>' in page
    assert 'list="th-tasks"' in page


def test_a_criterion_without_a_field_is_named(operator):
    job = job_in("ready")
    page = page_of(operator, "job_changelist", state="ready", parent=job.pk)
    assert f"parent: {job.pk}" in page


def test_without_a_sidebar_the_screens_lead_to_each_other(visitor, monkeypatch):
    client = visitor("view_job", "view_queue")
    page = page_of(client, "job_changelist")
    nav = page[page.index('<nav class="th-nav"') :].partition("</nav>")[0]
    assert url("queue_changelist") in nav
    assert url("worker_changelist") not in nav
    monkeypatch.setattr(admin.site, "enable_nav_sidebar", False)
    assert '<nav class="th-nav th-always"' in page_of(client, "job_changelist")


def test_the_log_of_a_job_has_the_look_of_the_screens(operator):
    assert "taskharbor/admin.css" in page_of(operator, "job_history", job_in("ready").pk)
