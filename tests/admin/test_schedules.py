"""Schedules in the admin: run, paused, resumed and made by who may."""

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry

from taskharbor_django.models import Job, Schedule
from taskharbor_django.operations.schedules import create_schedule, pause_schedule
from taskharbor_django.payload import encode_call
from taskharbor_django.schedules import declare
from tests.factories import utcnow
from tests.testapp.tasks import add, echo

from . import url

ALL = {"pause_schedule", "resume_schedule", "run_schedule"}
FORM = {"name": "nightly", "task": add.name, "kwargs": '{"left": 1, "right": 2}', "overlap": "skip"}


def made(**options):
    times = options or {"fixed_rate": timedelta(hours=1)}
    return create_schedule(declare("hourly", add.name, kwargs={"left": 1, "right": 2}, **times))


@pytest.mark.parametrize(
    ("what", "permission"),
    [("pause", "pause_schedule"), ("resume", "resume_schedule"), ("run", "run_schedule")],
)
def test_it_is_asked_by_who_may(visitor, what, permission):
    schedule = made()
    if what == "resume":
        pause_schedule(schedule)
    address = url("schedule_ask", schedule.pk, what)
    refused = visitor("view_schedule", *(ALL - {permission}))
    assert address not in refused.get(url("schedule_changelist")).content.decode()
    assert refused.post(address).status_code == 403
    assert visitor(permission).post(address).status_code == 403
    assert not LogEntry.objects.exists()
    allowed = visitor("view_schedule", permission)
    assert address in allowed.get(url("schedule_changelist")).content.decode()
    assert allowed.get(address).status_code == 405
    assert allowed.post(address).status_code == 302
    schedule.refresh_from_db()
    assert (schedule.paused_at is not None) is (what == "pause")
    assert Job.objects.count() == (1 if what == "run" else 0)
    assert LogEntry.objects.get().change_message == what


def test_a_wish_that_nobody_knows_or_a_schedule_that_is_not_there(operator):
    schedule = made()
    assert operator.post(url("schedule_ask", schedule.pk, "dance")).status_code == 404
    assert operator.post(url("schedule_ask", 999_999, "run")).status_code == 404


def test_what_the_verb_refuses_is_said(operator):
    schedule = made()
    Schedule.objects.filter(pk=schedule.pk).update(task="gone.task")
    answer = operator.post(url("schedule_ask", schedule.pk, "run"), follow=True)
    assert "gone.task" in answer.content.decode()
    assert not LogEntry.objects.exists()


def test_one_that_a_problem_stopped_can_be_resumed(operator):
    schedule = made()
    Schedule.objects.update(problem="it broke")
    address = url("schedule_ask", schedule.pk, "resume")
    assert address in operator.get(url("schedule_changelist")).content.decode()
    operator.post(address)
    assert Schedule.objects.get().problem == ""


def test_the_next_times_are_shown(operator):
    schedule = made(cron="30 4 * * *", time_zone="UTC")
    page = operator.get(url("schedule_changelist")).content.decode()
    assert page.count("04:30:00</li>") == 5
    assert schedule.name in page


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ({"cron": "30 4 * * *", "time_zone": "Europe/Zurich"}, "cron"),
        ({"fixed_rate": "01:00:00"}, "fixed_rate"),
        ({"fixed_delay": "00:05:00"}, "fixed_delay"),
    ],
)
def test_who_may_makes_one(visitor, times, kind):
    client = visitor("view_schedule", "add_schedule")
    assert url("schedule_add") in client.get(url("schedule_changelist")).content.decode()
    assert client.post(url("schedule_add"), FORM | times).status_code == 302
    schedule = Schedule.objects.get()
    assert (schedule.name, schedule.kind, schedule.declared) == ("nightly", kind, False)
    assert LogEntry.objects.get().object_repr == "nightly"


def test_arguments_are_empty_until_somebody_gives_some(operator):
    sent = operator.post(url("schedule_add"), FORM | {"kwargs": '{"days": 7}'})
    for page, value in ((operator.get(url("schedule_add")), ""), (sent, '{"days": 7}')):
        assert page.context["form"]["kwargs"].value() == value
    sent = operator.post(url("schedule_add"), FORM | {"kwargs": ""})
    assert sent.context["form"]["kwargs"].value() == ""


def test_who_may_not_makes_none(visitor):
    client = visitor("view_schedule", "change_schedule", *ALL)
    assert url("schedule_add") not in client.get(url("schedule_changelist")).content.decode()
    for answer in (client.get(url("schedule_add")), client.post(url("schedule_add"), FORM)):
        assert answer.status_code == 403
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "give one of cron, fixed_rate and fixed_delay"),
        ({"cron": "every day"}, "five fields"),
        ({"fixed_rate": "01:00:00", "task": "os.system"}, "Select a valid choice"),
        ({"fixed_rate": "01:00:00", "task": "taskharbor.callback"}, "Select a valid choice"),
        ({"fixed_rate": "01:00:00", "kwargs": '{"zz": 1}'}, "zz"),
        ({"fixed_rate": "01:00:00", "kwargs": "{"}, "valid JSON"),
        ({"fixed_rate": "01:00:00", "queue": "no such name"}, "no queue name"),
    ],
)
def test_what_makes_no_sense_is_said_in_the_form(operator, wrong, words):
    answer = operator.post(url("schedule_add"), FORM | wrong)
    assert answer.status_code == 200
    assert words in answer.content.decode().replace("&#x27;", "'")
    assert not Schedule.objects.exists()


RULES = {"priority": 7, "jitter": timedelta(minutes=2), "overlap": "allow", "catch_up": "all"}


class TestChanging:
    def test_the_form_says_what_the_schedule_is_and_sent_as_it_is_changes_nothing(self, operator):
        schedule = made(fixed_rate=timedelta(hours=1), queue="night", **RULES)
        Schedule.objects.update(anchor=schedule.created_at)
        before = Schedule.objects.values().get()
        address = url("schedule_edit", schedule.pk)
        assert address in operator.get(url("schedule_changelist")).content.decode()
        form = operator.get(address).context["form"]
        sent = {field.html_name: field.value() for field in form if field.value() not in (None, "")}
        assert operator.post(address, sent).status_code == 302
        assert Schedule.objects.values().get() == before
        assert LogEntry.objects.get().change_message == "change"

    def test_another_rule_starts_from_now(self, operator):
        schedule = made()
        sent = FORM | {"cron": "30 4 * * *", "time_zone": "UTC"}
        operator.post(url("schedule_edit", schedule.pk), sent)
        changed = Schedule.objects.get()
        assert (changed.name, changed.kind, changed.interval) == ("nightly", "cron", None)
        assert changed.next_at.strftime("%H:%M") == "04:30"

    def test_what_makes_no_sense_changes_nothing(self, operator):
        schedule = made()
        answer = operator.post(url("schedule_edit", schedule.pk), FORM | {"cron": "every day"})
        assert "five fields" in answer.content.decode()
        assert Schedule.objects.get().name == "hourly"

    @pytest.mark.parametrize("lacks", ["change_schedule", "view_payload"])
    def test_who_may_not_sees_no_arguments_and_changes_nothing(self, visitor, lacks):
        schedule = made()
        has = {"view_schedule", "change_schedule", "view_payload", "add_schedule"} - {lacks}
        client, address = visitor(*has), url("schedule_edit", schedule.pk)
        for answer in (client.get(address), client.post(address, FORM | {"cron": "0 0 * * *"})):
            assert answer.status_code == 403
        assert address not in client.get(url("schedule_changelist")).content.decode()
        assert Schedule.objects.get().name == "hourly"

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"declared": True}, "is declared in code"),
            ({"payload": encode_call((1, 2), {}, max_bytes=99)}, "no form has a place for"),
            (
                {"payload": encode_call((), {"left": utcnow()}, max_bytes=99)},
                "no form has a place for",
            ),
            ({"payload": b"no payload"}, "hourly"),
        ],
    )
    def test_one_that_no_form_can_show_is_left_alone(self, operator, change, words):
        schedule = made()
        Schedule.objects.update(**change)
        answer = operator.get(url("schedule_edit", schedule.pk), follow=True)
        assert answer.redirect_chain
        assert words in answer.content.decode()

    def test_one_that_is_gone(self, operator):
        assert operator.get(url("schedule_edit", 999_999)).status_code == 404


def test_no_page_shows_a_secret_among_its_arguments(operator):
    kwargs = {"to": "ada", "login": {"password": "hunter2"}}
    schedule = create_schedule(declare("login", echo.name, kwargs=kwargs, cron="30 4 * * *"))
    ran = operator.post(url("schedule_ask", schedule.pk, "run"), follow=True)
    pages = [url("schedule_changelist"), url("schedule_history", schedule.pk)]
    pages += [url("schedule_change", schedule.pk), url("job_changelist", state="ready")]
    for answer in (ran, *(operator.get(page, follow=True) for page in pages)):
        assert answer.status_code == 200
        assert "hunter2" not in answer.content.decode()
    page = operator.get(url("job_change", Job.objects.get(schedule=schedule.pk).pk))
    assert "ada" in page.content.decode()
    assert "••••••" in page.content.decode()
    assert "hunter2" not in page.content.decode()
    assert "hunter2" not in str(LogEntry.objects.values_list())
