"""Real workers that tick side by side, and are killed between the slot and the cursor."""

import signal
from datetime import timedelta

import pytest

from taskharbor_django.models import Job, Schedule
from taskharbor_django.operations.schedules import create_schedule
from taskharbor_django.schedules import declare
from tests.testapp.process_tasks import mark

from .harness import pids_in, wait_until


def due(path, **options):
    """A schedule whose latest slot was a minute ago."""
    asked = {"fixed_rate": timedelta(days=1), "args": [str(path)]} | options
    row = create_schedule(declare("daily", mark.name, **asked))
    slot = row.created_at - timedelta(minutes=1)
    Schedule.objects.update(next_at=slot, anchor=slot)
    return slot


@pytest.mark.parametrize("place", ["tick.locked", "tick.moved", "tick.enqueued"])
def test_a_worker_killed_inside_a_tick_leaves_the_slot_to_the_next_one(processes, files, place):
    said, _ = files
    slot = due(said)
    killed = processes.start("--burst", TASKHARBOR_FAILPOINTS=f"{place}=kill")
    assert killed.exit_code() == -signal.SIGKILL
    assert Schedule.objects.get().next_at == slot
    assert not Job.objects.exists()
    for _ in range(2):
        assert processes.start("--burst").exit_code() == 0
    assert Job.objects.get().schedule_slot == slot
    assert len(pids_in(said)) == 1
    assert Schedule.objects.get().next_at == slot + timedelta(days=1)


@pytest.mark.slow
def test_workers_side_by_side_run_each_slot_once(processes, files):
    said, _ = files
    asked = {"fixed_rate": 1, "args": [str(said)], "overlap": "allow"}
    create_schedule(declare("each second", mark.name, **asked))
    workers = processes.start("--processes", "4", "--threads", "1")
    wait_until(lambda: Job.objects.filter(state="done").count() >= 5, what="five slots")
    assert workers.stop()[0] == 0
    slots = list(Job.objects.values_list("schedule_slot", flat=True).order_by("schedule_slot"))
    assert len(slots) == len(set(slots)) == Schedule.objects.get().enqueued
    assert len(pids_in(said)) == Job.objects.filter(state="done").count()
