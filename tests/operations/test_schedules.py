"""Schedules in step with the code, and what people do with them."""

from datetime import timedelta

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection

from taskharbor_django import schedule, schedules
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.exceptions import InvalidSchedule, UnknownSchedule, UnknownTask
from taskharbor_django.models import Job, Schedule
from taskharbor_django.operations.schedules import (
    InStep,
    after_migrate,
    change_schedule,
    create_schedule,
    pause_schedule,
    put_in_step,
    resume_schedule,
    run_schedule_now,
)
from taskharbor_django.schedules import declare
from tests.testapp.tasks import add, echo

from . import Statements

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture(autouse=True)
def own_declarations(monkeypatch):
    monkeypatch.setattr(schedules, "_declared", {})


@pytest.fixture
def driver():
    return DatabaseDriver()


def the(name="nightly"):
    return Schedule.objects.get(name=name)


def redeclared(monkeypatch, **options):
    monkeypatch.setattr(schedules, "_declared", {})
    schedule(name="nightly", **options)(echo)


class TestInStep:
    def test_what_is_declared_is_added_with_its_first_slot_ahead(self, driver):
        schedule(name="nightly", cron="0 3 * * *", time_zone="Europe/Berlin", args=[7])(echo)
        assert put_in_step(driver) == InStep(added=("nightly",))
        row = the()
        assert (row.task, row.kind, row.cron) == (echo.name, "cron", "0 3 * * *")
        assert (row.time_zone, row.declared) == ("Europe/Berlin", True)
        assert row.next_at == row.timing.after(driver.now())
        assert row.upcoming()[0] == row.next_at
        assert len(row.upcoming()) == 5

    def test_settings_declare_too(self, driver, settings):
        settings.TASKHARBOR = {"SCHEDULES": {"tidy": {"task": echo.name, "fixed_rate": 60}}}
        assert put_in_step(driver).added == ("tidy",)

    def test_once_in_step_it_costs_two_looks(self, driver):
        schedule(name="nightly", fixed_rate=60, args=[1], jitter=5, priority=7)(echo)
        put_in_step(driver)
        with Statements() as sent:
            assert put_in_step(driver) == InStep()
        assert {verb for verb in sent.verbs if verb != "SELECT"} == set()
        assert len(sent) <= 3  # the clock, the declared, the removed

    def test_a_change_of_timing_starts_from_now(self, driver, monkeypatch):
        schedule(name="nightly", fixed_rate=DAY)(echo)
        put_in_step(driver)
        Schedule.objects.update(next_at=driver.now() - DAY)
        redeclared(monkeypatch, fixed_rate=HOUR)
        assert put_in_step(driver).changed == ("nightly",)
        assert the().interval == HOUR
        assert the().next_at > driver.now()

    def test_a_change_of_anything_else_keeps_the_cursor(self, driver, monkeypatch):
        schedule(name="nightly", fixed_rate=DAY)(echo)
        put_in_step(driver)
        cursor = the().next_at
        redeclared(monkeypatch, fixed_rate=DAY, args=[1], queue="slow", overlap="allow")
        assert put_in_step(driver).changed == ("nightly",)
        row = the()
        assert (row.next_at, row.queue, row.overlap) == (cursor, "slow", "allow")

    def test_what_is_no_longer_declared_is_disabled_and_kept(self, driver, monkeypatch):
        schedule(name="nightly", fixed_rate=DAY)(echo)
        put_in_step(driver)
        monkeypatch.setattr(schedules, "_declared", {})
        assert put_in_step(driver).disabled == ("nightly",)
        assert the().disabled_at is not None
        assert the().upcoming() == []
        assert put_in_step(driver) == InStep()

    @pytest.mark.parametrize(("away", "kept"), [(timedelta(minutes=5), True), (DAY, False)])
    def test_what_comes_back_goes_on(self, driver, away, kept):
        schedule(name="nightly", fixed_rate=HOUR)(echo)
        put_in_step(driver)
        cursor = driver.now() - timedelta(minutes=1)
        Schedule.objects.update(disabled_at=driver.now() - away, next_at=cursor)
        assert put_in_step(driver).changed == ("nightly",)
        assert the().disabled_at is None
        assert (the().next_at == cursor) is kept

    def test_one_that_stopped_goes_on_after_a_deploy(self, driver, monkeypatch):
        schedule(name="nightly", fixed_rate=HOUR)(echo)
        put_in_step(driver)
        Schedule.objects.update(problem="it did not fit", next_at=None)
        redeclared(monkeypatch, fixed_rate=HOUR, args=[1])
        put_in_step(driver)
        assert the().problem == ""
        assert the().next_at > driver.now()

    def test_those_made_by_hand_are_left_alone(self, driver, caplog):
        create_schedule(declare("nightly", echo.name, fixed_rate=HOUR))
        schedule(name="nightly", fixed_rate=DAY)(echo)
        assert put_in_step(driver) == InStep()
        assert the().interval == HOUR
        assert "was made by hand" in caplog.text

    def test_one_whose_task_is_unknown_keeps_its_row_and_gets_no_other(
        self, driver, settings, caplog
    ):
        Schedule.objects.create(
            name="old",
            task="no.such.task",
            kind="fixed_rate",
            interval=HOUR,
            declared=True,
            created_at=driver.now(),
        )
        asked = {"task": "no.such.task", "fixed_rate": DAY}
        settings.TASKHARBOR = {"SCHEDULES": {"old": asked, "new": asked}}
        assert put_in_step(driver) == InStep()
        assert Schedule.objects.get().interval == HOUR
        assert "No installed app has registered" in caplog.text

    def test_two_that_start_at_once_add_it_once(self, race, transactional_db):
        schedule(name="nightly", fixed_rate=60)(echo)
        race(*[lambda: put_in_step(DatabaseDriver())] * 6)
        assert Schedule.objects.count() == 1

    def test_a_queue_elsewhere_belongs_to_the_worker_there(self, driver, settings):
        schedule(name="nightly", fixed_rate=60, queue="far")(echo)
        settings.TASKHARBOR = {"DATABASE": "default"}
        other = DatabaseDriver()
        other.using = "default"
        assert put_in_step(other).added == ("nightly",)
        from taskharbor_django.operations import schedules as verbs

        assert dict(verbs._here(verbs.declared_schedules(), "elsewhere")) == {}

    def test_what_another_codec_wrote_is_written_again(self, driver):
        schedule(name="nightly", cron="0 3 * * *", args=[7])(echo)
        put_in_step(driver)
        written = bytes(the().payload)
        Schedule.objects.update(payload=b"by another key")
        assert put_in_step(driver) == InStep(changed=("nightly",))
        assert bytes(the().payload) == written


class TestMigrate:
    def test_it_puts_them_in_step(self, settings):
        schedule(name="nightly", fixed_rate=60)(echo)
        emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
        assert the().interval == timedelta(minutes=1)

    def test_without_the_table_there_is_nothing_to_do(self, transactional_db):
        schedule(name="nightly", fixed_rate=60)(echo)
        try:
            call_command("migrate", "taskharbor", "zero", verbosity=0)
        finally:
            call_command("migrate", "taskharbor", verbosity=0)
        assert the().declared

    def test_nor_where_the_router_keeps_it_away(self, settings):
        schedule(name="nightly", fixed_rate=60)(echo)
        settings.DATABASE_ROUTERS = ["tests.storage.test_migration.Nowhere"]
        with Statements() as sent:
            after_migrate(using="default")
        assert len(sent) == 0

    def test_nor_with_an_older_table(self, monkeypatch):
        schedule(name="nightly", fixed_rate=60)(echo)
        monkeypatch.setattr(type(connection.introspection), "get_table_description", lambda *_: [])
        after_migrate(using="default")
        assert not Schedule.objects.exists()


class TestChecks:
    def test_a_schedule_that_cannot_be_enqueued_is_an_error(self, settings):
        settings.TASKHARBOR = {
            "SCHEDULES": {
                "one": {"task": "no.such.task", "fixed_rate": 60},
                "two": {"task": add.name, "fixed_rate": 60},
                "three": {"task": echo.name, "fixed_rate": 60, "args": [object()]},
            }
        }
        found = [it for it in run_checks(tags=["taskharbor"]) if it.id == "taskharbor.E008"]
        assert [str(it.msg).split(":")[0] for it in found] == [
            f"The schedule '{name}' cannot be enqueued" for name in ("one", "two", "three")
        ]

    def test_settings_that_cannot_be_read_are_said_once(self, settings):
        settings.TASKHARBOR = {"SCHEDULES": {"one": {}}}
        ids = [it.id for it in run_checks(tags=["taskharbor"])]
        assert ids.count("taskharbor.E001") == 1
        assert "taskharbor.E008" not in ids


class TestByHand:
    def test_a_schedule_is_made_of_a_registered_task_with_arguments_that_fit(self):
        row = create_schedule(declare("mine", add.name, args=[1], fixed_delay=HOUR))
        assert (the("mine"), row.declared) == (row, False)
        with pytest.raises(UnknownTask):
            create_schedule(declare("other", "os.system", fixed_rate=HOUR))
        with pytest.raises(InvalidSchedule, match="missing a required argument"):
            create_schedule(declare("other", add.name, fixed_rate=HOUR))
        with pytest.raises(InvalidSchedule, match="there is a schedule 'mine' already"):
            create_schedule(declare("mine", add.name, args=[1], fixed_rate=HOUR))

    def test_it_is_changed_by_hand(self, driver):
        row = create_schedule(declare("mine", add.name, args=[1], fixed_rate=DAY))
        cursor = row.next_at
        change_schedule(row, declare("mine", add.name, args=[2], fixed_rate=DAY))
        assert the("mine").next_at == cursor
        change_schedule(the("mine"), declare("ours", add.name, args=[2], fixed_rate=HOUR))
        assert (the("ours").interval, the("ours").next_at > driver.now()) == (HOUR, True)

    def test_a_name_that_is_taken_is_refused_and_the_transaction_goes_on(self):
        create_schedule(declare("mine", echo.name, fixed_rate=DAY))
        row = create_schedule(declare("ours", echo.name, fixed_rate=DAY))
        with pytest.raises(InvalidSchedule, match="there is a schedule 'mine' already"):
            change_schedule(row, declare("mine", echo.name, fixed_rate=DAY))
        assert Schedule.objects.count() == 2

    def test_one_of_the_code_is_changed_there(self, driver, settings):
        schedule(name="nightly", fixed_rate=DAY)(echo)
        put_in_step(driver)
        with pytest.raises(InvalidSchedule, match="declared in code"):
            change_schedule(the(), declare("nightly", echo.name, fixed_rate=HOUR))

    def test_it_stays_in_its_database(self):
        row = create_schedule(declare("mine", echo.name, fixed_rate=DAY))
        row._state.db = "elsewhere"
        with pytest.raises(InvalidSchedule, match="another database"):
            change_schedule(row, declare("mine", echo.name, fixed_rate=HOUR))

    def test_a_pause_has_no_slots_and_none_are_made_up_for(self, driver):
        row = create_schedule(declare("mine", echo.name, fixed_rate=HOUR))
        assert pause_schedule("mine")
        assert not pause_schedule(row)
        Schedule.objects.update(next_at=driver.now() - DAY)
        assert resume_schedule("mine")
        assert not resume_schedule("mine")
        assert the("mine").next_at > driver.now()

    def test_one_whose_time_zone_has_vanished_is_not_resumed(self):
        row = create_schedule(declare("mine", echo.name, cron="0 4 * * *", time_zone="UTC"))
        pause_schedule(row)
        Schedule.objects.update(time_zone="Atlantis/Capital")
        with pytest.raises(InvalidSchedule, match="there is no time zone 'Atlantis/Capital'"):
            resume_schedule(row)
        assert the("mine").paused_at is not None
        Schedule.objects.update(paused_at=None)
        assert the("mine").upcoming() == [row.next_at]

    @pytest.mark.parametrize("name", ["a\0b", "\ud800"], ids=ascii)
    def test_a_name_that_nothing_can_have_is_unknown(self, name):
        with pytest.raises(UnknownSchedule):
            pause_schedule(name)

    def test_a_resumed_one_has_no_problem_any_more(self, driver):
        create_schedule(declare("mine", echo.name, fixed_rate=HOUR))
        Schedule.objects.update(problem="it broke", next_at=driver.now() - DAY)
        assert resume_schedule("mine")
        assert not resume_schedule("mine")
        assert (the("mine").problem, the("mine").next_at > driver.now()) == ("", True)

    def test_who_is_unknown_is_said(self):
        with pytest.raises(UnknownSchedule, match="There is no schedule nobody"):
            pause_schedule("nobody")


class TestRunNow:
    def test_it_enqueues_beside_the_slots(self):
        row = create_schedule(declare("mine", add.name, args=[1], fixed_rate=DAY))
        handle = run_schedule_now("mine")
        job = handle.refresh()
        assert (job.schedule_id, job.schedule_slot, handle.created) == (row.pk, None, True)
        assert the("mine").next_at == row.next_at
        assert (the("mine").last_job, the("mine").enqueued) == (handle.id, 1)

    def test_an_open_one_is_the_answer_where_overlap_is_skipped(self):
        create_schedule(declare("mine", echo.name, fixed_rate=DAY))
        first, second = run_schedule_now("mine"), run_schedule_now("mine")
        assert (second.id, second.created) == (first.id, False)
        Job.objects.update(state="cancelled", finished_at=first.refresh().created_at)
        assert run_schedule_now("mine").created

    def test_where_it_is_allowed_each_call_is_a_job(self):
        create_schedule(declare("mine", echo.name, fixed_rate=DAY, overlap="allow"))
        assert run_schedule_now("mine").id != run_schedule_now("mine").id

    def test_it_starts_a_fixed_delay_anew(self, driver):
        row = create_schedule(declare("mine", echo.name, fixed_delay=HOUR))
        Schedule.objects.update(next_at=driver.now() - DAY)
        run_schedule_now(row)
        assert the("mine").next_at > driver.now()

    def test_two_at_once_are_one_job(self, race, transactional_db):
        create_schedule(declare("mine", echo.name, fixed_rate=DAY))
        handles = race(*[lambda: run_schedule_now("mine")] * 4)
        assert len({handle.id for handle in handles}) == 1
        assert [handle.created for handle in handles].count(True) == 1
