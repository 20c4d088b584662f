"""Workers whose clock is wrong, and schedules that nobody has looked after for two hours."""

import subprocess
import sys
import time
from datetime import timedelta

import pytest
from django.db.models import Min
from django.db.models.functions import Now

from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.models import Attempt, Job, Schedule
from taskharbor_django.operations.schedules import create_schedule
from taskharbor_django.operations.tick import tick
from taskharbor_django.schedules import declare
from tests.process.harness import kill, wait_until
from tests.servers.plugin import go_without
from tests.testapp import fault_tasks as tasks
from tests.testapp.models import Move

from .clocks import CLOCKS, environment, library
from .crew import counts, in_time
from .harbor import pass_by, tell
from .history import SLACK

HOUR = timedelta(hours=1)


def wrong(clock):
    """The environment of a process whose clock is wrong."""
    preload = library()
    if preload is None:
        go_without("faketime is not installed here: no clock can be wrong")
    return environment(preload, clock)


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_can_be_wrong_here(clock):
    """Or the tests below would show nothing: the wall clock is off, the steady one is not."""
    told = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time(), time.clock_gettime(7))"],
        env=wrong(CLOCKS[clock]),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert abs(float(told[0]) - time.time()) > 3000
    assert abs(float(told[1]) - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_worker_whose_clock_is_an_hour_off_and_drifts_does_as_the_others(crew, clock):
    """Leases, delays, retries and snoozes are by the database's clock."""
    delay = 3.0
    each_second()
    held = crew.enqueue(tasks.hold, str(crew.go))
    later = crew.enqueue(tasks.touch.using(delay=delay))
    others = [crew.enqueue(task) for task in (tasks.touch, tasks.fail_once, tasks.snooze_once)]
    far = crew.enqueue(tasks.touch.using(delay=1800))
    crew.start(lease=6.0, **wrong(CLOCKS[clock]))
    crew.signed("START", job=held)
    wait_until(lambda: of_schedules().filter(state="done").count() > 1, what="its own slots")
    right = crew.start(lease=6.0).ready()
    crew.ended(later, *others)
    pass_by(6.0)  # a lease that was not renewed would be lost by now
    crew.open()
    crew.ended(held)
    assert counts(held) == ("done", 1, 0, 0)
    assert {counts(job)[0] for job in others} == {"done"}
    job = later.refresh()
    waited = crew.history.lines("START", later.id)[0].at - job.created_at.timestamp()
    assert waited >= delay - 0.1
    assert far.refresh().state == "scheduled"
    assert right.alive
    assert_slots_came_on_time()
    times = Job.objects.filter(state="done").aggregate(Min("finished_at"), Min("started_at"))
    assert all(abs(it.timestamp() - time.time()) < 600 for it in times.values())
    crew.finish(waiting=[far])


def each_second():
    """A schedule with a slot each second, every one of which becomes a job."""
    options = {"fixed_rate": timedelta(seconds=1), "overlap": "allow", "catch_up": "all"}
    create_schedule(declare("each second", tasks.touch.name, **options))


def of_schedules():
    return Job.objects.exclude(schedule=None)


def assert_slots_came_on_time():
    """By the database's clock, that noted each job: none early, none twice, none left out."""
    Schedule.objects.update(paused_at=Now())
    wait_until(lambda: not of_schedules().exclude(state="done").exists(), what="the last slot")
    slots = dict(of_schedules().order_by("schedule_slot").values_list("pk", "schedule_slot"))
    noted = dict(Move.objects.filter(before="", job__in=slots).values_list("job", "at"))
    assert max(slot.timestamp() - noted[job] for job, slot in slots.items()) < SLACK
    first, last = min(slots.values()), max(slots.values())
    seconds = range(int((last - first).total_seconds()) + 1)
    assert list(slots.values()) == [first + timedelta(seconds=number) for number in seconds]


@pytest.mark.quick
@pytest.mark.postgresql
@pytest.mark.mariadb
def test_the_lease_of_a_dead_worker_ends_on_time_by_a_clock_that_is_wrong(crew, record_property):
    """Whoever takes over is an hour behind, and does not wait for an hour."""
    job = crew.enqueue(tasks.hold, str(crew.go))
    victim = crew.start(**wrong("+3600"))
    crew.signed("START")
    crew.start(**wrong("-3600 x0.5")).ready()
    killed = time.time()
    kill(victim.pid)
    tell(record_property, recovery=crew.taken_over(job, since=killed))
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    assert Attempt.objects.get().end == "lost"
    crew.finish()


# -- schedules -----------------------------------------------------------------------------------

EACH = timedelta(minutes=10)
MISSED = 12


def two_hours_ago(name="each ten minutes", **options):
    """A schedule each ten minutes whose slots of the last two hours nobody has looked at."""
    asked = {"fixed_rate": EACH, "overlap": "allow", **options}
    row = create_schedule(declare(name, tasks.touch.name, **asked))
    anchor = row.created_at - 2 * HOUR + timedelta(minutes=5)
    Schedule.objects.filter(pk=row.pk).update(next_at=anchor, anchor=anchor)
    return anchor


@pytest.mark.parametrize(("catch_up", "expected"), [("skip", 1), ("all", MISSED)])
def test_after_two_hours_without_a_scheduler_slots_run_as_they_should(
    crew, catch_up, expected, record_property
):
    """The latest one alone, or each of them once; whichever of the two workers comes first."""
    anchor = two_hours_ago(catch_up=catch_up)
    workers = [crew.start() for _ in range(2)]
    wait_until(lambda: any(worker.lines("is ready") for worker in workers), what="a worker")
    began = time.time()
    wait_until(lambda: Job.objects.filter(state="done").count() == expected, what="the slots")
    tell(record_property, recovery=in_time([time.time()], began))
    for worker in workers:
        worker.ready()
    pass_by(2)
    slots = sorted(Job.objects.values_list("schedule_slot", flat=True))
    assert slots == [anchor + EACH * number for number in range(MISSED - expected, MISSED)]
    assert Schedule.objects.get().next_at == anchor + EACH * MISSED
    crew.finish()


def test_ten_schedulers_on_the_same_slots_make_each_of_them_once(race):
    anchors = {name: two_hours_ago(name, catch_up="all") for name in ("first", "second", "third")}
    now = DatabaseDriver().now()

    def ticker():
        for left in (8, 4, 0):  # several slots each time
            tick(DatabaseDriver(), now=now - left * EACH)

    race(*[ticker] * 10)
    tick(DatabaseDriver(), now=now)  # what all of them found locked at the end
    for row in Schedule.objects.all():
        slots = Job.objects.filter(schedule=row.pk).order_by("schedule_slot")
        expected = [anchors[row.name] + EACH * number for number in range(MISSED)]
        assert list(slots.values_list("schedule_slot", flat=True)) == expected
        assert row.enqueued == MISSED
