"""What Prometheus is told."""

import re
import sys
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse

from taskharbor_django import bury, context, pause, signals
from taskharbor_django.models import Job, Lease, Schedule, Worker
from taskharbor_django.operations.expire import expire
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.worker.completer import too_late
from tests.operations import Statements, hold
from tests.process.harness import wait_until
from tests.programs import run_program
from tests.testapp import worker_tasks
from tests.testapp.tasks import add, report, stumble
from tests.worker.conftest import drain, working

metrics = pytest.importorskip("taskharbor_django.metrics")
pytestmark = pytest.mark.django_db(transaction=True)
LINE = re.compile(r"^(taskharbor_\w+)(?:\{(.*)\})? (\S+)$", re.M)


@pytest.fixture
def installed(monkeypatch):
    """Count for the length of the test."""
    for signal in (*signals.SIGNALS.values(), signals.started, signals.stopped, too_late):
        monkeypatch.setattr(signal, "receivers", list(signal.receivers))
        signal.sender_receivers_cache.clear()
    metrics.install()
    metrics.install()  # a second time does no harm


def scraped():
    """Every sample of ours: name and labels -> value."""
    text = metrics.exposition().decode()
    return {
        (name, *sorted(re.findall(r'"([^"]*)"', labels or ""))): float(value)
        for name, labels, value in LINE.findall(text)
    }


def sample(name, *labels):
    return scraped().get((f"taskharbor_{name}", *sorted(labels)), 0.0)


def test_queues_are_shown_by_state_with_the_age_of_the_oldest():
    add.enqueue(1)
    add.using(delay=60).enqueue(1)
    hold(report.enqueue("May"))
    Job.objects.filter(state="ready").update(
        available_at=driver_for("default").now() - timedelta(hours=1)
    )
    pause("default")
    found = scraped()
    assert found["taskharbor_queue_jobs", "default", "default", "ready"] == 1
    assert found["taskharbor_queue_jobs", "default", "default", "scheduled"] == 1
    assert found["taskharbor_queue_jobs", "default", "inflight", "reports"] == 1
    assert 3600 <= found["taskharbor_queue_oldest_ready_seconds", "default", "default"] < 3700
    assert found["taskharbor_queue_oldest_ready_seconds", "default", "reports"] == 0
    assert found["taskharbor_queue_paused", "default", "default"] == 1
    assert found["taskharbor_workers", "default"] == 0


def test_workers_overdue_leases_and_late_schedules_are_shown():
    now = driver_for("default").now()
    Worker.objects.create(
        id="w",
        name="w",
        host="h",
        pid=1,
        version="1",
        queues="*",
        slots=8,
        busy=3,
        started_at=now,
        last_beat_at=now,
    )
    hold(add.enqueue(1))
    Lease.objects.update(expires_at=now - timedelta(seconds=1))
    about = {"task": "t", "kind": "cron", "cron": "* * * * *", "created_at": now}
    Schedule.objects.create(name="late", next_at=now - timedelta(minutes=5), **about)
    Schedule.objects.create(name="early", next_at=now + timedelta(minutes=5), **about)
    Schedule.objects.create(name="paused", next_at=now, paused_at=now, **about)
    found = scraped()
    assert found["taskharbor_workers", "default"] == 1
    assert found["taskharbor_worker_slots", "default"] == 8
    assert found["taskharbor_worker_slots_busy", "default"] == 3
    assert found["taskharbor_queue_workers", "default", "default"] == 1
    assert found["taskharbor_leases_overdue", "default"] == 1
    assert 300 <= found["taskharbor_schedule_lateness_seconds", "default", "late"] < 360
    assert found["taskharbor_schedule_lateness_seconds", "default", "early"] == 0
    assert ("taskharbor_schedule_lateness_seconds", "default", "paused") not in found


def test_a_scrape_asks_the_same_number_of_questions_with_more_jobs():
    add.enqueue(1)
    with Statements() as few:
        metrics.exposition()
    add.enqueue_many([(number,) for number in range(50)])
    with Statements() as more:
        metrics.exposition()
    assert len(few.verbs) == len(more.verbs)


def test_runs_are_counted_with_their_duration_and_outcome(installed):
    names = {task: ("default", task.name) for task in (add, stumble, worker_tasks.bury)}
    before = scraped()

    def more(name, *labels):
        key = (f"taskharbor_{name}", *sorted(labels))
        return scraped().get(key, 0.0) - before.get(key, 0.0)

    for task in (add, stumble, worker_tasks.bury):
        task.enqueue(*[1] * (task is add))
    cancelled = add.using(delay=60).enqueue(1)
    cancelled.cancel()
    drain()
    assert more("jobs_enqueued_total", *names[add]) == 2
    assert more("runs_ended_total", *names[add], "ack") == 1
    assert more("runs_ended_total", *names[add], "cancel") == 0
    assert more("runs_ended_total", *names[stumble], "retry") == 1
    assert more("runs_ended_total", *names[worker_tasks.bury], "fail") == 1
    assert more("run_duration_seconds_count", *names[add]) == 1
    assert more("jobs_died_total", *names[worker_tasks.bury], "permanent") == 1


def test_a_death_is_counted_whatever_brought_it_about(installed):
    reasons = ("manual", "lifetime", "lease_lost")
    before = [sample("jobs_died_total", "default", add.name, it) for it in reasons]
    driver = driver_for("default")
    bury([add.enqueue(1)])
    hold(add.enqueue(1), lease_for=timedelta(microseconds=1))
    driver.reserve("other", now=driver.now(), lease_for=timedelta(seconds=1), max_lease_losses=1)
    add.enqueue(1)
    assert list(expire(driver, now=driver.now() + timedelta(days=8))) == [1]
    after = [sample("jobs_died_total", "default", add.name, it) for it in reasons]
    assert after == [number + 1 for number in before]


def test_what_is_not_counted_is_not_listened_to(installed):
    unheard = ("reserve", "promote", "reschedule", "requeue", "discard")
    assert [verb for verb in unheard if signals.wanted(verb)] == []


def test_lost_leases_are_counted(installed):
    before = sample("lease_losses_total", "default", add.name)
    hold(add.enqueue(1), lease_for=timedelta(microseconds=1))
    driver = driver_for("default")
    driver.reserve("other", now=driver.now(), lease_for=timedelta(seconds=1))
    assert sample("lease_losses_total", "default", add.name) == before + 1


def test_outcomes_that_come_too_late_are_counted_by_the_worker_that_had_them(installed):
    worker_tasks.reset()
    labels = "default", worker_tasks.hold.name, "ack"
    before = sample("outcomes_too_late_total", *labels)
    taken_away, kept = (worker_tasks.hold.enqueue("gate") for _ in range(2))
    with working():
        wait_until(lambda: len(worker_tasks.seen["gate"]) == 2, what="both runs")
        taken_away.cancel(force=True)
        worker_tasks.gates["gate"].set()
        kept.wait(10)
    assert sample("outcomes_too_late_total", *labels) == before + 1


def test_the_view_answers_in_prometheus_format(rf):
    answer = metrics.view(rf.get("/metrics"))
    assert isinstance(answer, HttpResponse)
    assert answer["Content-Type"].startswith("text/plain; version=")
    assert b"# TYPE taskharbor_queue_jobs gauge" in answer.content
    assert b"# HELP taskharbor_run_duration_seconds How long handlers ran" in answer.content


def test_processes_that_share_a_directory_are_added_up(tmp_path):
    program = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
django.setup()
from taskharbor_django import metrics
metrics.lost.labels("default", "t").inc()
print([line for line in metrics.generate_latest(metrics._counted()).decode().splitlines()
    if line.startswith("taskharbor_lease_losses_total")])
"""
    said = [run_program(program, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) for _ in range(2)]
    assert ["} 1.0" in said[0], "} 2.0" in said[1]] == [True, True]


@pytest.mark.parametrize(
    ("module", "library"),
    [("metrics", "prometheus_client"), ("tracing", "opentelemetry")],
)
def test_without_its_library_it_says_what_to_install(monkeypatch, module, library):
    monkeypatch.delitem(sys.modules, f"taskharbor_django.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImproperlyConfigured, match=rf"taskharbor-django\[{module}\]"):
        __import__(f"taskharbor_django.{module}")


def test_the_package_needs_neither():
    program = """
import sys, os, django
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
django.setup()
import taskharbor_django.worker.worker
print("taskharbor_django.metrics" in sys.modules, "taskharbor_django.tracing" in sys.modules)
"""
    assert run_program(program) == "False False\n"
    assert context.carried("t", "q", None) is None
