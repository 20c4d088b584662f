"""Buttons: who may press them, what they ask, what they do, and what they leave in the log."""

from urllib.parse import urlencode
from uuid import uuid4

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.test import Client

from taskharbor_django.admin import acting, schedules, workers, workflows
from taskharbor_django.admin.actions import ACTIONS
from taskharbor_django.admin.criteria import CriteriaForm
from taskharbor_django.lifecycle import JobState
from taskharbor_django.models import DeadLetter, Dependency, Job
from tests.factories import job_in

from . import died, url

# action -> a state it takes, the state that follows
CASES = {
    "requeue": ("dead", "ready"),
    "replay": ("dead", "cancelled"),
    "discard": ("dead", "cancelled"),
    "run_now": ("scheduled", "ready"),
    "reschedule": ("ready", "ready"),
    "cancel": ("ready", "cancelled"),
    "force_cancel": ("inflight", "cancelled"),
    "bury": ("ready", "dead"),
    "erase": ("done", "done"),
}
FORM = "application/x-www-form-urlencoded"
MORE = {"reschedule": {"to_priority": "50"}}


def named(*jobs, **more):
    return {"_selected_action": [str(job.pk) for job in jobs], **more}


def confirmed(*jobs, **more):
    return named(*jobs, confirmed="1", note="because", **more)


def state_of(job):
    return Job.objects.get(pk=job.pk).state


def said(answer):
    return [str(message) for message in answer.context["messages"]]


def test_every_action_is_tested_here():
    assert CASES.keys() == ACTIONS.keys()


def test_every_permission_of_the_package_is_asked_for_somewhere():
    models = apps.get_app_config("taskharbor").get_models()
    made = {codename for model in models for codename, _ in model._meta.permissions}
    asked = {action.permission for action in ACTIONS.values()}
    asked |= {permission for _, permission in workers.REQUESTS.values()}
    asked |= {permission for _, permission, _ in schedules.REQUESTS.values()}
    asked |= {permission for permission, _ in workflows.REQUESTS.values()}
    # Tested beside the screens.
    asked |= {"pause_queue", "resume_queue", "view_payload", "view_traceback"}
    assert made == asked


@pytest.mark.parametrize("name", CASES)
def test_who_has_the_permission_may(visitor, name):
    before, after = CASES[name]
    job = job_in(before)
    client = visitor("view_job", ACTIONS[name].permission)
    page = client.get(url("job_change", job.pk))
    assert url("job_act", name) in page.content.decode()
    answer = client.post(url("job_act", name), confirmed(job, **MORE.get(name, {})))
    assert answer.status_code == 302
    assert state_of(job) == after


@pytest.mark.parametrize("name", CASES)
def test_who_has_every_other_permission_may_not(visitor, name):
    before, _ = CASES[name]
    job = job_in(before)
    others = {action.permission for action in ACTIONS.values()} - {ACTIONS[name].permission}
    client = visitor("view_job", *others)
    assert url("job_act", name) not in client.get(url("job_change", job.pk)).content.decode()
    unchanged = Job.objects.filter(pk=job.pk).values().get()
    for data in (named(job), confirmed(job, **MORE.get(name, {}))):
        assert client.post(url("job_act", name), data).status_code == 403
    assert Job.objects.filter(pk=job.pk).values().get() == unchanged
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("name", CASES)
def test_lists_have_the_buttons_of_who_may_and_no_others(visitor, name):
    died("f1") if CASES[name][0] == "dead" else job_in(CASES[name][0])
    pages = [url("job_changelist", state=CASES[name][0])]
    if CASES[name][0] == "dead":
        pages += [url("deadletter_changelist"), url("deadletter_changelist", fingerprint="f1")]
    others = {action.permission for action in ACTIONS.values()} - {ACTIONS[name].permission}
    views = ("view_job", "view_deadletter")
    may, may_not = visitor(*views, ACTIONS[name].permission), visitor(*views, *others)
    for page in pages:
        assert url("job_act", name) in may.get(page).content.decode()
        assert url("job_act", name) not in may_not.get(page).content.decode()


@pytest.mark.parametrize("name", CASES)
def test_who_may_not_view_jobs_may_do_nothing_to_them(visitor, name):
    job = died("f1") if CASES[name][0] == "dead" else job_in(CASES[name][0])
    client = visitor("view_deadletter", ACTIONS[name].permission)
    for data in (named(job), confirmed(job)):
        assert client.post(url("job_act", name), data).status_code == 403
    for query in ({}, {"fingerprint": "f1"}):
        page = client.get(url("deadletter_changelist", **query))
        assert url("job_act", name) not in page.content.decode()
    assert state_of(job) == CASES[name][0]
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("name", CASES)
def test_an_action_is_a_post_with_a_token(operator, name):
    assert operator.get(url("job_act", name)).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator.user)
    job = job_in(CASES[name][0])
    assert strict.post(url("job_act", name), confirmed(job)).status_code == 403
    assert state_of(job) == CASES[name][0]


@pytest.mark.parametrize("name", CASES)
def test_a_first_press_asks_and_changes_nothing(operator, name):
    job = job_in(CASES[name][0])
    page = operator.post(url("job_act", name), named(job))
    assert page.status_code == 200
    text = page.content.decode()
    assert "1 job is meant." in text
    assert str(ACTIONS[name].effect) in text
    assert 'name="note"' in text
    assert state_of(job) == CASES[name][0]
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("name", CASES)
def test_what_was_done_is_in_the_log_of_each_job(operator, name):
    jobs = [job_in(CASES[name][0]) for _ in range(2)]
    operator.post(url("job_act", name), confirmed(*jobs, **MORE.get(name, {})))
    entries = LogEntry.objects.all()
    assert {entry.object_id for entry in entries} == {str(job.pk) for job in jobs}
    assert {entry.user_id for entry in entries} == {operator.user.pk}
    assert all("because" in entry.change_message for entry in entries)
    history = operator.get(url("job_history", jobs[0].pk))
    assert "because" in history.content.decode()


@pytest.mark.parametrize("state", JobState)
def test_the_buttons_of_a_job_fit_its_state(operator, state):
    page = operator.get(url("job_change", job_in(state).pk)).content.decode()
    shown = {name for name in ACTIONS if url("job_act", name) in page}
    assert shown == {name for name, action in ACTIONS.items() if state in action.states}
    assert ("requeue" in shown) is (state == JobState.DEAD)
    assert ("cancel" in shown) is (state not in ("done", "dead", "cancelled"))


def test_an_unknown_action_is_not_found(operator):
    assert operator.post(url("job_act", "explode"), confirmed(job_in("dead"))).status_code == 404


# -- which jobs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"_selected_action": ["nonsense"]},
        {"all": "1"},
        {"all": "1", "state": "done"},
        {"all": "1", "state": "dead", "workflow": "nonsense"},
        {"all": "1", "state": "dead", "tag": "no sign"},
    ],
)
def test_nothing_sensible_selected_does_nothing(operator, data):
    job = job_in("dead")
    answer = operator.post(url("job_act", "requeue"), {**data, "confirmed": "1"}, follow=True)
    assert said(answer) == ["Nothing was selected."]
    assert state_of(job) == "dead"


def test_a_selection_moves_those_and_no_others(operator):
    one, two, other = died(), died(), died()
    answer = operator.post(url("job_act", "requeue"), confirmed(one, two), follow=True)
    assert said(answer) == ["2 jobs requeued."]
    assert [state_of(job) for job in (one, two, other)] == ["ready", "ready", "dead"]
    letter = DeadLetter.objects.get(job=one.pk)
    assert (letter.closed_by, letter.note) == (operator.user, "because")


def test_a_whole_group_is_moved(operator):
    jobs, other = [died("f1") for _ in range(3)], died("f2")
    group = {"all": "1", "state": "dead", "fingerprint": "f1"}
    page = operator.post(url("job_act", "requeue"), group).content.decode()
    assert "3 jobs are meant. They run again" in page
    assert "error group: f1" in page
    assert "everything" not in page
    operator.post(url("job_act", "requeue"), {**group, "confirmed": "1"})
    assert {state_of(job) for job in jobs} == {"ready"}
    assert state_of(other) == "dead"
    entry = LogEntry.objects.get()
    assert entry.object_id is None
    assert "fingerprint=f1" in entry.object_repr


def test_the_forms_of_actions_share_no_field_with_the_filter():
    """Both are read from one POST, where the last field of a name counts."""
    for action in ACTIONS.values():
        assert not CriteriaForm.base_fields.keys() & action.form.base_fields.keys()


def test_what_is_requeued_is_what_the_confirmation_page_showed(operator):
    """Sent as a browser does: hidden fields and those that somebody fills in, in one form."""
    meant, others = died(queue="mail"), [died(queue="bulk"), died(queue="repair")]
    group = {"all": "1", "state": "dead", "queue": "mail"}
    page = operator.post(url("job_act", "requeue"), group)
    assert "1 job is meant." in page.content.decode()
    fields = [*page.context["wanted"].pairs, ("confirmed", "1")]
    fields += [(field.html_name, "") for field in page.context["form"] if field.name != "to_queue"]
    fields += [("to_queue", "repair")]
    operator.post(url("job_act", "requeue"), urlencode(fields), FORM)
    assert [state_of(job) for job in (meant, *others)] == ["ready", "dead", "dead"]
    assert Job.objects.get(pk=meant.pk).queue == "repair"


def test_all_that_match_without_a_filter_are_all_of_the_state(operator):
    dead, ready = died(), job_in("ready")
    page = operator.post(url("job_act", "discard"), {"all": "1", "state": "dead"}).content.decode()
    assert "1 job is meant. It is given up" in page
    assert '<span class="th-chip">dead</span>' in page
    assert "everything" not in page
    operator.post(url("job_act", "discard"), {"all": "1", "state": "dead", "confirmed": "1"})
    assert (state_of(dead), state_of(ready)) == ("cancelled", "ready")


def test_all_of_rank_0_are_no_others(operator):
    normal, low = died(priority=0), died(priority=50)
    data = {"all": "1", "state": "dead", "priority": "0"}
    assert "1 job is meant." in operator.post(url("job_act", "discard"), data).content.decode()
    operator.post(url("job_act", "discard"), {**data, "confirmed": "1"})
    assert (state_of(normal), state_of(low)) == ("cancelled", "dead")


def test_what_was_left_is_said_with_its_reason(operator):
    cause = died()
    follower = died(dependencies_left=1)
    DeadLetter.objects.filter(job=follower.pk).update(reason="dependency", cause=cause)
    running, missing = job_in("inflight"), uuid4()
    data = confirmed(follower, running)
    data["_selected_action"].append(str(missing))
    texts = said(operator.post(url("job_act", "requeue"), data, follow=True))
    assert texts[0] == "0 jobs requeued."
    assert "1 job was left: not dead, or no longer." in texts
    assert "1 job was left: there is no such job." in texts
    assert f"Requeue instead: {cause.pk}" in texts


def test_running_jobs_that_were_asked_are_counted_apart(operator):
    answer = operator.post(url("job_act", "cancel"), confirmed(job_in("inflight")), follow=True)
    assert said(answer) == ["0 jobs cancelled.", "1 running job was asked to stop."]


def test_force_takes_away_what_runs_and_nothing_that_waits(visitor):
    waiting, running = job_in("ready"), job_in("inflight")
    client = visitor("view_job", "force_cancel_job")
    answer = client.post(url("job_act", "force_cancel"), confirmed(waiting, running), follow=True)
    assert [state_of(job) for job in (waiting, running)] == ["ready", "cancelled"]
    assert "1 job was left: no longer in the state that was asked for." in said(answer)


# -- the confirmation page ----------------------------------------------------------------------


def test_it_names_the_filter_as_the_screens_do(operator):
    job_in("ready", queue="mail", priority=-50, tags={"tenant": "acme"})
    asked = {"all": "1", "state": "ready", "queue": "mail", "priority": "-50", "tag": "tenant=acme"}
    page = operator.post(url("job_act", "cancel"), asked).content.decode()
    for words in ("ready", "queue: mail", "priority: high", "tenant=acme"):
        assert f'<span class="th-chip">{words}</span>' in page


def test_it_says_how_many_come_back_with_a_requeued_job(operator):
    cause = died(has_dependents=True)
    follower = died(dependencies_left=1)
    DeadLetter.objects.filter(job=follower.pk).update(reason="dependency", cause=cause)
    page = operator.post(url("job_act", "requeue"), named(cause)).content.decode()
    assert "1 other job that died only with these comes back too." in page


def test_it_says_how_many_wait_for_a_cancelled_job(operator):
    first = job_in("ready", has_dependents=True)
    for _ in range(2):
        Dependency.objects.create(job=job_in("blocked"), depends_on=first, kind="after")
    page = operator.post(url("job_act", "cancel"), named(first)).content.decode()
    assert "2 other jobs wait for these and may end with them." in page


def test_a_mistake_in_its_form_is_shown_there(operator):
    job = died()
    page = operator.post(url("job_act", "requeue"), confirmed(job, to_queue="no such name"))
    assert page.status_code == 200
    assert "errorlist" in page.content.decode()
    page = operator.post(url("job_act", "reschedule"), confirmed(job_in("ready")))
    assert "Say what is to be changed." in page.content.decode()
    assert state_of(job) == "dead"


def test_what_the_verb_refuses_is_shown_there(operator, monkeypatch):
    monkeypatch.setattr("taskharbor_django.operations.terms.alias_of", {"far": "other"}.get)
    job = died()
    page = operator.post(url("job_act", "requeue"), confirmed(job, to_queue="far"))
    assert "is kept in another database" in page.content.decode()
    assert state_of(job) == "dead"


def test_its_options_are_passed_on(operator):
    job = died(max_attempts=3)
    operator.post(
        url("job_act", "requeue"), confirmed(job, to_queue="repair", delay="5", one_more="on")
    )
    job.refresh_from_db()
    assert (job.state, job.queue, job.attempts) == ("scheduled", "repair", 2)
    waiting = job_in("ready")
    terms = {"run_at": "2035-01-01T10:00", "to_priority": "-50"}
    operator.post(url("job_act", "reschedule"), confirmed(waiting, **terms))
    waiting.refresh_from_db()
    assert (waiting.state, waiting.priority, waiting.run_at.year) == ("scheduled", -50, 2035)


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "javascript:alert(1)"]
)
def test_nobody_is_sent_to_another_site_afterwards(operator, target):
    answer = operator.post(url("job_act", "discard"), confirmed(died(), next=target))
    assert answer["Location"] == url("job_changelist")


def test_one_goes_back_to_where_one_was(operator):
    back = url("deadletter_changelist", queue="mail")
    answer = operator.post(url("job_act", "discard"), confirmed(died(), next=back))
    assert answer["Location"] == back


# -- many ---------------------------------------------------------------------------------------


def hidden_fields(page):
    """What the form of a progress page sends."""
    return dict(page.context["carried"]) | {"confirmed": "1"}


def test_many_are_moved_in_portions_with_a_page_between_them(operator, monkeypatch):
    monkeypatch.setattr(acting, "PORTION", 2)
    for _ in range(5):
        died("f1")
    group = {"all": "1", "state": "dead", "fingerprint": "f1", "note": "all of them"}
    page = operator.post(url("job_act", "requeue"), {**group, "confirmed": "1", "expected": "5"})
    assert "2 of 5 jobs looked at." in page.content.decode()
    assert Job.objects.filter(state="ready").count() == 2
    page = operator.post(url("job_act", "requeue"), hidden_fields(page))
    assert "4 of 5 jobs looked at." in page.content.decode()
    last = operator.post(url("job_act", "requeue"), hidden_fields(page), follow=True)
    assert said(last) == ["5 jobs requeued."]
    assert set(DeadLetter.objects.values_list("note", flat=True)) == {"all of them"}
    assert LogEntry.objects.count() == 3


def test_a_portion_that_is_sent_twice_moves_nothing_twice(operator, monkeypatch):
    monkeypatch.setattr(acting, "PORTION", 2)
    for _ in range(3):
        died("f1")
    group = {"all": "1", "state": "dead", "fingerprint": "f1", "confirmed": "1"}
    page = operator.post(url("job_act", "replay"), group)
    for _ in range(2):
        operator.post(url("job_act", "replay"), hidden_fields(page))
    assert Job.objects.filter(replay_of__isnull=False).count() == 3


def test_made_up_numbers_change_nothing_but_what_is_shown(operator, monkeypatch):
    monkeypatch.setattr(acting, "PORTION", 1)
    died("f1"), died("f1")
    data = {"all": "1", "state": "dead", "confirmed": "1", "moved": "-1", "asked": "x" * 50}
    page = operator.post(url("job_act", "discard"), data)
    assert page.context["total"].moved == 1
