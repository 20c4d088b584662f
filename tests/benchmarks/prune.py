"""
What pruning costs the jobs: how fast a worker drains a queue while a million old jobs are removed.

    python -m tests.benchmarks.prune [--old 1000000] [--window 10] [--pairs 6]

On a PostgreSQL of its own. A feeder keeps the queue full and one worker process drains it; windows
with and without pruning take turns, so that what else the machine does weighs on both alike. Prints
the medians.
"""

import argparse
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from statistics import median

import django

from tests.servers import PostgreSQL

OLD_JOBS = """
INSERT INTO taskharbor_job
    (id, task, queue, payload, seq, state, created_at, updated_at, available_at, started_at,
     finished_at, lease, lease_version, executions, max_attempts, expires_at)
SELECT gen_random_uuid(), 'tests.testapp.tasks.echo', 'default', '{"a":[]}', n, 'done', at, at, at,
    at, at, gen_random_uuid(), 1, 1, 3, at + interval '7 days'
FROM (SELECT n, %s::timestamptz + n * interval '1 millisecond' AS at
      FROM generate_series(1, %s) AS n) AS old
"""
FEED = 20_000
TURN = 2.0  # seconds after which the worker looks whether it may go on pruning


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--old", type=int, default=1_000_000)
    parser.add_argument("--window", type=float, default=10)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work()
        return
    with PostgreSQL() as server:
        os.environ |= {"DATABASE_URL": server.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        django.setup()
        measure(asked)


def work():
    """The worker process, which looks for chores all the time."""
    django.setup()
    from django.core.management import call_command

    from taskharbor_django.worker import chores

    chores.LOOK_EACH = 1.0
    chores.AT_A_TIME = TURN
    call_command("runworker", verbosity=0)


def measure(asked):
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(OLD_JOBS, [datetime.now(UTC) - timedelta(days=30), asked.old])
        cursor.execute("VACUUM ANALYZE taskharbor_job")
    let_prune(False)
    worker = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.prune", "--work"])
    quiet, pruning = [], []
    try:
        drain(worker, asked.window)  # warm
        before = old_jobs()
        for number in range(asked.pairs):
            for rates, allowed in sorted_pair(number, quiet, pruning):
                let_prune(allowed)
                time.sleep(2 * TURN)
                rates.append(drain(worker, asked.window))
        removed = before - old_jobs()
    finally:
        worker.terminate()
        worker.wait(60)
    seconds = asked.pairs * (asked.window + 2 * TURN)
    say(f"without pruning  {median(quiet):7,.0f} jobs/s  ({', '.join(f'{r:,.0f}' for r in quiet)})")
    say(
        f"while pruning    {median(pruning):7,.0f} jobs/s  "
        f"({', '.join(f'{r:,.0f}' for r in pruning)})"
    )
    say(f"kept             {median(pruning) / median(quiet):7.0%}")
    say(f"pruned           {removed / seconds:7,.0f} jobs/s, {removed:,} of {before:,}")


def sorted_pair(number, quiet, pruning):
    """Both kinds of windows, in another order each time."""
    pair = [(quiet, False), (pruning, True)]
    return pair if number % 2 else pair[::-1]


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def let_prune(allowed):
    from taskharbor_django.models import Chore

    next_at = datetime.now(UTC) + timedelta(hours=-1 if allowed else 1)
    for name in ("prune", "expire"):
        Chore.objects.update_or_create(pk=name, defaults={"next_at": next_at, "worker": ""})


def old_jobs():
    from taskharbor_django.models import Job

    week = datetime.now(UTC) - timedelta(days=7)
    return Job.objects.filter(state="done", finished_at__lt=week).count()


def drain(worker, seconds):
    """Keep the queue full for a while; return how many jobs a second were done."""
    first, started = done(), time.monotonic()
    while time.monotonic() - started < seconds:
        feed(worker)
    return (done() - first) / (time.monotonic() - started)


fed = 0


def feed(worker):
    global fed  # noqa: PLW0603  a script
    from taskharbor_django.models import Job
    from tests.testapp.tasks import echo

    assert worker.poll() is None, "the worker has ended"
    if Job.objects.filter(state="ready")[:FEED].count() < FEED:
        fed += echo.enqueue_many(() for _ in range(FEED))
    else:
        time.sleep(0.1)


def done():
    """How many of the jobs that were fed have been done."""
    from taskharbor_django.models import Job

    return fed - Job.objects.filter(state__in=["ready", "inflight"]).count()


if __name__ == "__main__":
    main()
