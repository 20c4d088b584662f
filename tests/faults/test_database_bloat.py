"""Dead rows that nothing may remove: a snapshot that somebody holds, and no autovacuum."""

import contextlib
import os
import threading
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg
import pytest
from django.db import connections
from django.db.models import Min

from taskharbor_django import enqueue_many
from taskharbor_django.models import Job
from tests.process.harbor import restarted_with
from tests.process.harness import wait_until
from tests.testapp.tasks import echo

from .harbor import moored, pass_by, tell

# Rates are told by nobody who has to share the machine with other tests.
pytestmark = [pytest.mark.postgresql, pytest.mark.slow, pytest.mark.alone]

JOBS = int(os.environ.get("TASKHARBOR_FAULTS_JOBS", "2000000"))
LEAST = 0.4  # of the rate before
BACK, BACK_WITHIN = 0.8, 60.0  # as far as one rate can be told from another
LAST = 15.0  # seconds of that minute in which it has to be back, and to stay so
FOR = 10.0  # seconds over which a rate is taken
BATCH, DEEP = 2_000, 10  # jobs, and batches that wait


def enqueue(number):
    """Store so many, and return the last of them, which is done when about all are."""
    ids = []
    enqueue_many((echo.call() for _ in range(number)), on_batch=ids.extend)
    return ids[-1]


def is_done(job):
    """By its key: who counts rows that are dead or many takes from the workers what is measured."""
    return Job.objects.get(pk=job).state == "done"


@contextlib.contextmanager
def supplied():
    """Let workers never run out of jobs; yield the last one of each batch that waits."""
    over, waiting = threading.Event(), deque()

    def supply():
        while not over.wait(0.01):
            while waiting and is_done(waiting[0]):
                waiting.popleft()
            if len(waiting) < DEEP:
                waiting.append(enqueue(BATCH))
        connections.close_all()

    thread = threading.Thread(target=supply, daemon=True)
    thread.start()
    try:
        yield waiting
    finally:
        over.set()
        thread.join(60)


def rate(begin, seconds):
    """Jobs done in a second, of those seconds; to be asked when all is over."""
    since = datetime.fromtimestamp(begin, UTC)
    until = since + timedelta(seconds=seconds)
    return Job.objects.filter(finished_at__gte=since, finished_at__lt=until).count() / seconds


def rates_of_tenths():
    """Jobs done in a second, for each tenth of all, in the order of their ends."""
    began = Job.objects.aggregate(Min("started_at"))["started_at__min"]
    ends = Job.objects.order_by("finished_at").values_list("finished_at", flat=True)
    marks = [began, *(ends[JOBS // 10 * part - 1] for part in range(1, 11))]
    return [JOBS / 10 / (end - begin).total_seconds() for begin, end in pairwise(marks)]


@contextlib.contextmanager
def snapshot(server):
    """A report that reads one picture of the database for as long as it takes."""
    with contextlib.closing(psycopg.connect(server.url)) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM taskharbor_job")
        yield


@pytest.mark.parametrize("seconds", [30, 240])
def test_a_held_snapshot_leaves_workers_most_of_their_rate(
    server, tmp_path, django_db_blocker, seconds, record_property
):
    with django_db_blocker.unblock(), moored(server, tmp_path, witnessed=False) as harbor:
        with supplied() as waiting:
            wait_until(lambda: len(waiting) == DEEP, what="enough to do")
            first, worker = waiting[0], harbor.start(lease=30.0)
            wait_until(lambda: is_done(first), what="a worker that is warm")
            warm = time.time()
            pass_by(FOR)
            with snapshot(server):
                pass_by(seconds + FOR)
                released = time.time()
            pass_by(BACK_WITHIN + FOR)
        assert worker.alive
        harbor.dismiss(worker)
        before, under = rate(warm, FOR), rate(released - FOR, FOR)
        after = [rate(released + at, 5) for at in range(0, int(BACK_WITHIN), 5)]
        back = rate(released + BACK_WITHIN - LAST, LAST)
        rates = {"before": before, "under_the_snapshot": under, "back": back}
        tell(record_property, **{name: round(it) for name, it in rates.items()})
        tell(record_property, each_5_s_after=[round(it) for it in after])
        assert under >= LEAST * before
        assert back >= BACK * before
        assert not Job.objects.filter(lease_losses__gt=0).exists()


def test_without_autovacuum_the_last_of_two_million_jobs_run_as_the_first(
    server, tmp_path, django_db_blocker, record_property
):
    with (
        django_db_blocker.unblock(),
        restarted_with(server, autovacuum="off"),
        moored(server, tmp_path, witnessed=False) as harbor,
    ):
        last = enqueue(JOBS)
        worker = harbor.start(lease=30.0)
        wait_until(lambda: is_done(last), timeout=7200, what="the end of nearly all")
        wait_until(lambda: not Job.objects.exclude(state="done").exists(), what="the very last")
        harbor.dismiss(worker)
        rates = rates_of_tenths()
        tell(record_property, jobs=JOBS, rates=[round(it) for it in rates])
        assert rates[-1] >= LEAST * max(rates)
        facts = Job.objects.values_list("state", "executions", "lease_losses").distinct()
        assert set(facts) == {("done", 1, 0)}
