"""Names and notes that an operator types or meets in the admin are data there as anywhere."""

import pytest
from django.contrib.admin.models import LogEntry

from taskharbor_django import chain, pause
from taskharbor_django.models import DeadLetter, Job, Queue, Schedule
from taskharbor_django.payload import decode_call
from tests.operations import ODD_NAMES
from tests.testapp.tasks import echo

from . import died, url

each_name = pytest.mark.parametrize("name", ODD_NAMES)
FORM = {"task": echo.name, "fixed_rate": "01:00:00", "overlap": "allow"}


@each_name
def test_a_schedule_is_made_changed_paused_resumed_and_run(operator, name):
    operator.post(url("schedule_add"), FORM | {"name": "another", "kwargs": ""})
    another = Schedule.objects.values().get()
    answer = operator.post(url("schedule_add"), FORM | {"name": name, "kwargs": '{"a": 1}'})
    assert answer.status_code == 302, answer.context["form"].errors
    row = Schedule.objects.get(name=name)
    operator.post(url("schedule_edit", row.pk), FORM | {"name": name, "kwargs": '{"a": 2}'})
    for what in ("pause", "resume", "run"):
        assert operator.post(url("schedule_ask", row.pk, what)).status_code == 302
    job = Job.objects.get(schedule=row.pk)
    assert decode_call(bytes(job.payload))[1] == {"a": 2}
    entries = LogEntry.objects.filter(object_id=row.pk).order_by("pk")
    assert list(entries.values_list("object_repr", "change_message")) == [
        (name, what) for what in ("add", "change", "pause", "resume", "run")
    ]
    assert Schedule.objects.values().exclude(pk=row.pk).get() == another


def test_a_schedule_has_no_name_with_a_nul(operator):
    answer = operator.post(url("schedule_add"), FORM | {"name": "a\0b"})
    assert "name" in answer.context["form"].errors
    assert not Schedule.objects.exists()


@each_name
@pytest.mark.parametrize("action", ["requeue", "replay", "discard"])
def test_a_note_stands_in_the_letter_and_in_the_log(operator, action, name):
    job, other = died("f1"), died("f1")
    sent = {"_selected_action": str(job.pk), "confirmed": "1", "note": name}
    assert operator.post(url("job_act", action), sent).status_code == 302
    assert DeadLetter.objects.get(job=job.pk).note == name
    assert LogEntry.objects.get().change_message.endswith(f"; {name}")
    assert DeadLetter.objects.get(open_for=other.pk).note == ""


@each_name
def test_a_workflow_is_resumed_and_cancelled(operator, name):
    flow = chain(echo.s(1), echo.s(2)).enqueue(name=name)
    for what, moved in (("resume", "requeued"), ("cancel", "cancelled")):
        answer = operator.post(url("workflow_ask", flow.id, what), {"note": name}, follow=True)
        assert answer.status_code == 200
        assert moved in str(*answer.context["messages"])
    entries = LogEntry.objects.order_by("pk").values_list("object_repr", "change_message")
    assert list(entries) == [(name, f"{what}: {name}") for what in ("resume", "cancel")]
    assert {job.state for job in flow.jobs} == {"cancelled"}


@each_name
def test_a_note_of_a_pause_is_kept(operator, name):
    pause("another", note="kept")
    operator.post(url("queue_pause"), {"queue": "mine", "note": name})
    assert dict(Queue.objects.values_list("name", "note")) == {"another": "kept", "mine": name}


@each_name
@pytest.mark.parametrize("action", ["discard", "erase"])
def test_a_filter_finds_what_has_the_name_and_nothing_else(operator, action, name):
    mine, other = (died("f1", task=task, tags={"who": task}) for task in (name, "another"))
    sent = {"all": "1", "state": "dead", "task": name, "tag": f"who={name}", "confirmed": "1"}
    assert operator.post(url("job_act", action), sent).status_code == 302
    letters = dict(DeadLetter.objects.values_list("job_id", "error"))
    closed = set(DeadLetter.objects.filter(open_for=None).values_list("job_id", flat=True))
    assert (closed == {mine.pk}) is (action == "discard")
    assert {pk: bool(said) for pk, said in letters.items()} == {
        mine.pk: action != "erase",
        other.pk: True,
    }
