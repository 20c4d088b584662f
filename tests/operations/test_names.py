"""Names of schedules and workflows, and what operators write, are data by every door."""

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor_django import bury, chain, discard, pause, replay, requeue
from taskharbor_django.exceptions import InvalidSchedule, InvalidWorkflow, UnknownSchedule
from taskharbor_django.models import DeadLetter, Job, Queue, Schedule, Workflow
from taskharbor_django.operations.schedules import (
    change_schedule,
    create_schedule,
    find,
    pause_schedule,
    put_in_step,
    resume_schedule,
    run_schedule_now,
)
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.operations.tick import tick
from taskharbor_django.payload import decode_call
from taskharbor_django.schedules import declare
from tests.factories import job_in
from tests.testapp.tasks import echo

from . import ODD_NAMES, UNSTORABLE_NAMES
from .test_command import refused, run, told

pytestmark = pytest.mark.django_db

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
OTHERS = ["another", "' OR", "any_thing", "%"]
each_name = pytest.mark.parametrize("name", ODD_NAMES)


def declared(name, **options):
    return declare(name, echo.name, fixed_rate=HOUR, kwargs={"said": name}, **options)


@pytest.fixture
def neighbours():
    """Schedules, dead jobs and workflows of other names, which nothing may touch."""
    for name in OTHERS:
        create_schedule(declared(name))
        Workflow.objects.create(name=name, created_at=NOON, open_jobs=1)
        job_in("dead")
    Schedule.objects.update(next_at=None)  # they are never due

    def rows():
        return [
            list(Schedule.objects.filter(name__in=OTHERS).order_by("pk").values()),
            list(Workflow.objects.filter(name__in=OTHERS).order_by("pk").values()),
            list(DeadLetter.objects.filter(job__in=dead).order_by("pk").values()),
        ]

    dead = list(Job.objects.values_list("pk", flat=True))
    before = rows()
    yield
    assert rows() == before
    assert Job.objects.filter(pk__in=dead, state="dead").count() == len(OTHERS)


@pytest.mark.usefixtures("neighbours")
class TestASchedule:
    @each_name
    def test_it_is_made_paused_resumed_run_and_changed_by_its_name(self, name):
        driver = driver_for("default")
        row = create_schedule(declared(name, overlap="allow"))
        mine = Schedule.objects.filter(pk=row.pk)
        with pytest.raises(InvalidSchedule, match="already"):
            create_schedule(declared(name))
        assert pause_schedule(name)
        mine.update(next_at=NOON)
        assert tick(driver, now=NOON) == 0
        assert resume_schedule(name)
        mine.update(next_at=NOON)
        assert tick(driver, now=NOON) == 1
        run_schedule_now(name)
        jobs = Job.objects.filter(schedule=row.pk)
        said = [decode_call(bytes(job.payload))[1] for job in jobs]
        assert said == [{"said": name}] * 2
        change_schedule(row, declared(f"{name} again"))
        assert find(f"{name} again").pk == row.pk
        with pytest.raises(UnknownSchedule):
            find(name)

    @each_name
    def test_so_is_one_of_the_settings_which_is_disabled_when_it_is_gone(self, name, settings):
        driver, before = driver_for("default"), settings.TASKHARBOR
        here = {"task": echo.name, "fixed_rate": HOUR}
        settings.TASKHARBOR = {**before, "SCHEDULES": {name: here}}
        assert put_in_step(driver).added == (name,)
        settings.TASKHARBOR = {**before, "SCHEDULES": {name: here | {"fixed_rate": HOUR * 2}}}
        assert put_in_step(driver).changed == (name,)
        settings.TASKHARBOR = before
        assert put_in_step(driver).disabled == (name,)
        assert find(name).disabled_at

    @each_name
    def test_the_command_finds_it_and_shows_it_as_no_terminal_obeys_it(self, name):
        row = create_schedule(declared(name))
        assert told("schedules", "pause", name) == {"paused": name, "was_paused": False}
        assert told("schedules", "resume", name) == {"resumed": name, "was_paused": True}
        assert len(told("schedules", "next", name)["rows"]) == 5
        made = told("schedules", "run-now", name)["id"]
        assert Job.objects.get(schedule=row.pk).pk.hex == made.replace("-", "")
        assert [it["id"] for it in told("list", "--schedule", name)["rows"]] == [made]
        assert name in [it["name"] for it in told("schedules")["rows"]]
        code, text = run("schedules")
        assert code == 0
        assert "\x1b" not in text
        assert len(text.splitlines()) == 1 + Schedule.objects.count()

    @pytest.mark.parametrize("name", UNSTORABLE_NAMES, ids=ascii)
    def test_a_name_that_no_database_takes_is_refused_by_every_door(self, name):
        with pytest.raises(InvalidSchedule, match="NUL"):
            declared(name)
        for verb in (find, pause_schedule, resume_schedule, run_schedule_now):
            with pytest.raises(UnknownSchedule):
                verb(name)
        for verb in ("next", "pause", "resume", "run-now"):
            assert refused("schedules", verb, name).returncode == 2


@pytest.mark.usefixtures("neighbours")
class TestAWorkflow:
    @each_name
    def test_it_goes_its_whole_way(self, name):
        flow = chain(echo.s(1), echo.s(2)).enqueue(name=name)
        assert flow.refresh().name == name
        assert bury(list(flow.jobs)[:1], note=name).moved == 1
        assert flow.resume(note=name).moved >= 1
        assert set(DeadLetter.objects.filter(job=flow.jobs[0].pk).values_list("note")) == {(name,)}
        assert flow.cancel().moved == 2
        assert told("workflow", flow.id)["name"] == name
        assert name in [it["name"] for it in told("workflow")["rows"]]
        code, text = run("workflow")
        assert code == 0
        assert len(text.splitlines()) == 1 + Workflow.objects.count()

    @pytest.mark.parametrize("name", UNSTORABLE_NAMES, ids=ascii)
    def test_a_name_that_no_database_takes_is_refused(self, name):
        with pytest.raises(InvalidWorkflow, match="name"):
            chain(echo.s(1), echo.s(2)).enqueue(name=name)


@pytest.mark.usefixtures("neighbours")
class TestANote:
    @each_name
    @pytest.mark.parametrize("verb", [requeue, replay, discard])
    def test_it_stands_in_the_letter_as_it_was_written(self, verb, name):
        job = job_in("dead")
        assert verb([job.pk], note=name).moved == 1
        letter = DeadLetter.objects.get(job=job.pk)
        assert (letter.note, letter.open_for) == (name, None)

    @each_name
    def test_so_does_one_that_came_by_the_command(self, name):
        for verb in ("requeue", "replay", "discard"):
            job = job_in("dead")
            told("dlq", verb, job.pk, "--note", name)
            assert DeadLetter.objects.get(job=job.pk).note == name
            assert told("inspect", job.pk)["dead_letters"][0]["note"] == name
            assert "\x1b" not in run("inspect", job.pk)[1]

    @each_name
    def test_one_of_a_burial_is_the_error_and_one_of_a_pause_stands_with_its_queue(self, name):
        job = job_in("ready")
        assert bury([job.pk], note=name).moved == 1
        assert DeadLetter.objects.get(open_for=job.pk).error == name
        pause("paused-here", note=name)
        assert Queue.objects.get(pk="paused-here").note == name
