"""Slots become jobs, each once, whoever ticks and whatever breaks in between."""

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from taskharbor_django import failpoints
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.failpoints import FailpointReached
from taskharbor_django.models import Job, Schedule
from taskharbor_django.operations import tick as verb
from taskharbor_django.operations.schedules import create_schedule
from taskharbor_django.operations.tick import BATCH, CATCH_UP_MOST, first_due, tick
from taskharbor_django.schedules import declare
from tests.factories import JobFactory, job_in
from tests.testapp.tasks import add, echo, report

from . import Statements

pytestmark = pytest.mark.django_db

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)


@pytest.fixture
def driver():
    return DatabaseDriver()


def scheduled(name="hourly", task=echo, next_at=NOON, **options):
    """A schedule whose cursor stands at a slot of the test's choice."""
    given = options if options.keys() & {"cron", "fixed_delay"} else {"fixed_rate": HOUR} | options
    row = create_schedule(declare(name, task.name, **given))
    Schedule.objects.filter(pk=row.pk).update(next_at=next_at)
    return Schedule.objects.get(pk=row.pk)


def slots(row):
    jobs = Job.objects.filter(schedule=row.pk).order_by("schedule_slot")
    return list(jobs.values_list("schedule_slot", flat=True))


def fresh(row):
    return Schedule.objects.get(pk=row.pk)


class TestASlot:
    def test_it_becomes_a_job_and_the_cursor_moves_on(self, driver):
        row = scheduled(task=add, args=[1], kwargs={"right": 2})
        assert tick(driver, now=NOON) == 1
        (job,) = Job.objects.all()
        assert (job.task, job.state, job.schedule_id) == (add.name, "ready", row.pk)
        assert job.schedule_slot == NOON
        row = fresh(row)
        assert (row.next_at, row.last_slot, row.last_job) == (NOON + HOUR, NOON, job.pk)
        assert (row.enqueued, row.skipped) == (1, 0)

    def test_it_does_not_come_before_its_time(self, driver):
        row = scheduled()
        assert tick(driver, now=NOON - timedelta(microseconds=1)) == 0
        assert slots(row) == []

    def test_it_comes_once(self, driver):
        row = scheduled()
        for _ in range(3):
            tick(driver, now=NOON)
        assert slots(row) == [NOON]

    def test_a_tick_with_nothing_due_costs_a_lock_and_a_look_one_statement(self, driver):
        scheduled()
        with Statements() as sent:
            assert first_due(driver) == NOON
        assert len(sent) == 1

    def test_no_schedule_is_due_never(self, driver):
        assert first_due(driver) is None

    def test_the_job_is_what_an_enqueue_of_the_task_makes(self, driver):
        scheduled(task=report, args=["may"])
        tick(driver, now=NOON)
        (job,) = Job.objects.all()
        asked = report.enqueue("may").refresh()
        for name in ("queue", "priority", "max_attempts", "timeout", "payload"):
            assert getattr(job, name) == getattr(asked, name)
        assert job.expires_at - job.available_at == HOUR

    def test_queue_and_priority_of_the_schedule_come_first(self, driver):
        scheduled(task=report, args=["may"], queue="night", priority=7)
        tick(driver, now=NOON)
        (job,) = Job.objects.all()
        assert (job.queue, job.priority) == ("night", 7)

    def test_jitter_delays_the_job_and_not_the_slot(self, driver, monkeypatch):
        monkeypatch.setattr("random.random", lambda: 0.5)
        row = scheduled(jitter=MINUTE)
        tick(driver, now=NOON)
        (job,) = Job.objects.all()
        assert (job.schedule_slot, job.state) == (NOON, "scheduled")
        assert timedelta(seconds=29) < job.run_at - job.created_at <= timedelta(seconds=30)
        assert fresh(row).next_at == NOON + HOUR

    def test_a_cron_that_ends_never_comes_again(self, driver, monkeypatch):
        row = scheduled()
        monkeypatch.setattr("taskharbor_django.timing.Timing.after", lambda *_: None)
        tick(driver, now=NOON)
        assert (fresh(row).next_at, slots(row)) == (None, [NOON])


class TestWhatIsLeftAlone:
    @pytest.mark.parametrize("column", ["paused_at", "disabled_at"])
    def test_paused_and_disabled_schedules(self, driver, column):
        row = scheduled()
        Schedule.objects.update(**{column: NOON})
        assert (first_due(driver), tick(driver, now=NOON), slots(row)) == (None, 0, [])

    def test_tasks_that_only_other_processes_know(self, driver):
        row = scheduled()
        Schedule.objects.update(task="new.in.the.next.deploy")
        assert tick(driver, now=NOON) == 0
        assert (fresh(row).next_at, fresh(row).problem) == (NOON, "")

    def test_no_more_than_a_batch_at_a_time(self, driver):
        for number in range(BATCH + 1):
            scheduled(f"number {number}")
        assert tick(driver, now=NOON) == BATCH
        assert tick(driver, now=NOON) == 1
        assert Job.objects.count() == BATCH + 1


class TestDowntime:
    def test_one_job_for_the_latest_slot_and_no_burst(self, driver):
        row = scheduled()
        tick(driver, now=NOON + 2 * HOUR + MINUTE)
        assert slots(row) == [NOON + 2 * HOUR]
        assert fresh(row).next_at == NOON + 3 * HOUR

    def test_all_of_them_when_asked_for(self, driver):
        row = scheduled(catch_up="all", overlap="allow")
        tick(driver, now=NOON + 2 * HOUR + MINUTE)
        assert slots(row) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
        assert fresh(row).enqueued == 3
        assert fresh(row).last_slot == NOON + 2 * HOUR

    def test_but_not_more_than_a_hundred(self, driver):
        row = scheduled(catch_up="all", overlap="allow", fixed_rate=MINUTE)
        tick(driver, now=NOON + timedelta(days=30))
        assert len(slots(row)) == CATCH_UP_MOST
        assert slots(row)[-1] == NOON + timedelta(days=30)


class TestOverlap:
    @pytest.mark.parametrize("state", ["ready", "scheduled", "inflight", "blocked"])
    def test_a_slot_is_skipped_while_the_last_job_is_open(self, driver, state):
        row = scheduled()
        Schedule.objects.update(last_job=job_in(state).pk)
        tick(driver, now=NOON)
        assert (slots(row), fresh(row).skipped, fresh(row).next_at) == ([], 1, NOON + HOUR)

    @pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
    def test_one_that_ended_is_in_nobodys_way(self, driver, state):
        row = scheduled()
        Schedule.objects.update(last_job=job_in(state).pk)
        tick(driver, now=NOON)
        assert slots(row) == [NOON]

    def test_nor_is_one_that_is_gone(self, driver):
        row = scheduled()
        tick(driver, now=NOON)
        Job.objects.all().delete()
        tick(driver, now=NOON + HOUR)
        assert slots(row) == [NOON + HOUR]

    def test_where_it_is_allowed_jobs_pile_up(self, driver):
        row = scheduled(overlap="allow")
        tick(driver, now=NOON)
        tick(driver, now=NOON + HOUR)
        assert slots(row) == [NOON, NOON + HOUR]


class TestFixedDelay:
    def test_the_next_comes_a_delay_after_the_end_of_the_last(self, driver):
        row = scheduled(fixed_delay=HOUR)
        tick(driver, now=NOON)
        ended = NOON + 20 * MINUTE
        Job.objects.update(state="done", lease="0" * 32, finished_at=ended)
        tick(driver, now=NOON + HOUR)
        assert (slots(row), fresh(row).next_at) == ([NOON], ended + HOUR)
        tick(driver, now=ended + HOUR)
        assert slots(row) == [NOON, ended + HOUR]

    def test_none_while_it_is_open_and_one_look_for_each_delay(self, driver):
        row = scheduled(fixed_delay=HOUR)
        tick(driver, now=NOON)
        for hours in (1, 2, 3):
            assert fresh(row).next_at == NOON + hours * HOUR
            tick(driver, now=NOON + hours * HOUR)
        assert slots(row) == [NOON]

    @pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
    def test_however_it_ended(self, driver, state):
        row = scheduled(fixed_delay=HOUR)
        last = JobFactory(**{state: True}, finished_at=NOON - HOUR)
        Schedule.objects.update(last_job=last.pk)
        tick(driver, now=NOON + SECOND)
        assert slots(row) == [NOON]

    def test_one_that_is_gone_has_ended(self, driver):
        row = scheduled(fixed_delay=HOUR)
        tick(driver, now=NOON)
        Job.objects.all().delete()
        tick(driver, now=NOON + HOUR)
        assert slots(row) == [NOON + HOUR]


class TestTrouble:
    def test_a_schedule_that_cannot_be_enqueued_stops_and_the_others_go_on(self, driver, caplog):
        broken, sound = scheduled("broken"), scheduled("sound")
        Schedule.objects.filter(pk=broken.pk).update(payload=b"no payload")
        assert tick(driver, now=NOON) == 2
        assert (slots(broken), slots(sound)) == ([], [NOON])
        assert fresh(broken).problem
        assert "schedule broken stops" in caplog.text
        assert tick(driver, now=NOON + HOUR) == 1

    def test_arguments_that_no_longer_fit(self, driver):
        row = scheduled(task=echo, args=[1, 2, 3])
        Schedule.objects.update(task=add.name)
        tick(driver, now=NOON)
        assert "too many positional arguments" in fresh(row).problem

    def test_a_job_that_cannot_be_stored_stops_its_schedule_alone(self, driver, monkeypatch):
        broken, sound = scheduled("broken"), scheduled("sound")
        made = verb.record_of
        spoiled = [{"tags": {"a": "\x00"}}, {}]
        change = lambda call: replace(made(call), **spoiled.pop(0))  # noqa: E731
        monkeypatch.setattr(verb, "record_of", change)
        assert tick(driver, now=NOON) == 2
        assert (slots(broken), slots(sound)) == ([], [NOON])
        assert "tags" in fresh(broken).problem

    def test_its_problem_is_told_without_secrets(self, driver, monkeypatch):
        def refuse(_schedule):
            raise ValueError("password=hunter2 is too short")

        row = scheduled()
        monkeypatch.setattr(verb, "record_for", refuse)
        tick(driver, now=NOON)
        assert fresh(row).problem == "ValueError: password=•••••• is too short"

    def test_so_is_its_traceback_in_the_log(self, driver, monkeypatch, caplog):
        def refuse(_schedule):
            raise ValueError("password=hunter2 is too short")

        scheduled()
        monkeypatch.setattr(verb, "record_for", refuse)
        tick(driver, now=NOON)
        (record,) = [it for it in caplog.records if it.name == verb.__name__]
        first, *trace = logging.Formatter().format(record).splitlines()
        assert first == "schedule hourly stops: it cannot be enqueued"
        assert (trace[0], trace[-1]) == (
            "Traceback (most recent call last):",
            "ValueError: password=•••••• is too short",
        )
        assert "hunter2" not in "".join(trace)
        assert isinstance(record.exc_info[1], ValueError)  # what error trackers look for
        assert (record.levelname, record.schedule, record.task) == ("ERROR", "hourly", echo.name)
        assert record.module == "tick"

    def test_a_queue_of_another_database(self, driver, settings):
        row = scheduled(queue="far")
        settings.TASKHARBOR = {"QUEUE_DATABASES": {"far": "default"}, "DATABASE": "default"}
        assert verb.record_for(fresh(row)).queue == "far"
        moved = fresh(row)
        moved._state.db = "elsewhere"
        with pytest.raises(Exception, match="its queue far is kept in default"):
            verb.record_for(moved)

    def test_a_cursor_that_was_moved_back_makes_no_slot_twice(self, driver):
        row = scheduled(catch_up="all", overlap="allow")
        tick(driver, now=NOON + HOUR)
        Schedule.objects.update(next_at=NOON)
        tick(driver, now=NOON + 2 * HOUR)
        assert slots(row) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
        assert fresh(row).enqueued == 3

    def test_a_cursor_that_is_no_slot_any_more_is_moved_to_one(self, driver):
        row = scheduled(next_at=NOON + MINUTE)
        tick(driver, now=NOON + 2 * MINUTE)
        assert (slots(row), fresh(row).next_at) == ([], NOON + HOUR)

    def test_who_lost_the_compare_and_set_enqueues_nothing(self, driver):
        row = scheduled()
        turn = verb._turn(row, None, NOON)
        Schedule.objects.update(next_at=NOON + HOUR)
        assert verb._moved(driver, turn, set()) == []


class TestManyAtOnce:
    def test_ten_tickers_make_each_slot_once(self, race, transactional_db):
        rows = [scheduled(f"number {n}", overlap="allow") for n in range(5)]

        def ticker():
            mine = DatabaseDriver()
            for hours in range(4):
                tick(mine, now=NOON + hours * HOUR)

        race(*[ticker] * 10)
        tick(DatabaseDriver(), now=NOON + 3 * HOUR)  # what all of them found locked at the end
        for row in rows:
            found = slots(row)
            assert len(found) == len(set(found)) == fresh(row).enqueued
            assert found[-1] == NOON + 3 * HOUR


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", ["tick.locked", "tick.moved", "tick.enqueued"])
def test_a_tick_that_is_split_leaves_nothing_and_the_next_does_it(driver, place):
    row = scheduled()

    def crash():
        raise FailpointReached

    with failpoints.armed(place, crash), pytest.raises(FailpointReached):
        tick(driver, now=NOON)
    assert (slots(row), fresh(row).next_at, fresh(row).enqueued) == ([], NOON, 0)
    tick(driver, now=NOON)
    assert (slots(row), fresh(row).next_at, fresh(row).enqueued) == ([NOON], NOON + HOUR, 1)
    assert connection.in_atomic_block is False
