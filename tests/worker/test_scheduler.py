"""Every worker ticks, cheaply, and is not stopped by what goes wrong there."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from taskharbor_django import schedule, schedules
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.models import Job, Schedule
from taskharbor_django.operations import tick as verb
from taskharbor_django.operations.schedules import create_schedule
from taskharbor_django.schedules import declare
from taskharbor_django.worker import scheduler
from taskharbor_django.worker.lines import Lines
from taskharbor_django.worker.scheduler import LOOK_EACH, Scheduler
from tests.testapp.tasks import echo

from .conftest import drain, working

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def own_declarations(monkeypatch):
    monkeypatch.setattr(schedules, "_declared", {})


@pytest.fixture
def ticking():
    return scheduler_of()


def scheduler_of(*, takes_part=True):
    driver = DatabaseDriver()
    return Scheduler(driver, driver, Lines("default"), takes_part=takes_part)


def due(name="due", task=echo, **options):
    row = create_schedule(declare(name, task.name, **({"fixed_rate": 3600} | options)))
    Schedule.objects.filter(pk=row.pk).update(next_at=row.created_at - timedelta(hours=3))
    return row


def statements(work):
    with CaptureQueriesContext(connection) as sent:
        work()
    return len([query for query in sent if "taskharbor" in query["sql"]])


def test_a_worker_enqueues_and_runs_what_its_code_declares(eventually):
    schedule(name="often", fixed_rate=1)(echo)
    with working():
        eventually(lambda: Job.objects.filter(state="done", schedule__isnull=False).count() >= 2)
    slots = list(Job.objects.values_list("schedule_slot", flat=True))
    assert len(slots) == len(set(slots))


def test_a_burst_runs_what_has_come():
    due()
    drain()
    assert Job.objects.get().state == "done"


def test_who_takes_no_part_touches_nothing():
    schedule(name="declared", fixed_rate=60)(echo)
    row = due()
    drain(scheduler=False)
    assert not Job.objects.exists()
    assert not Schedule.objects.exclude(pk=row.pk).exists()
    asleep = scheduler_of(takes_part=False)
    assert asleep.within(7.0) == 7.0


def test_an_idle_worker_asks_one_question_each_few_seconds(ticking):
    assert statements(ticking.turn) == 1
    assert statements(ticking.turn) == 0
    assert 0.7 * LOOK_EACH < ticking.within(60) <= 1.25 * LOOK_EACH


def test_a_slot_that_is_known_is_waited_for(ticking):
    row = create_schedule(declare("soon", echo.name, fixed_rate=3600))
    Schedule.objects.update(next_at=DatabaseDriver().now() + timedelta(seconds=1))
    ticking.turn()
    assert ticking.within(60) <= 1.0
    assert row.pk


def test_what_another_process_must_tick_is_no_reason_to_hurry(ticking):
    due()
    Schedule.objects.update(task="only.others.know.it")
    ticking.turn()
    assert ticking.within(60) > 0.5 * LOOK_EACH


def test_a_full_batch_is_followed_by_another_at_once(ticking, monkeypatch):
    monkeypatch.setattr(verb, "BATCH", 2)
    monkeypatch.setattr(scheduler, "BATCH", 2)
    for number in range(3):
        due(f"number {number}")
    ticking.turn()
    assert Job.objects.count() == 2
    ticking.turn()
    assert Job.objects.count() == 3


def test_a_database_that_is_away_is_asked_again_later(ticking, monkeypatch, caplog):
    def away(*_, **__):
        raise OperationalError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "first_due", away)
        ticking.turn()
        assert 0.3 < ticking.within(60) < 1
    assert "schedules: the database cannot be used" in caplog.text
    due()
    ticking._look_at = 0
    ticking.turn()
    assert Job.objects.count() == 1
