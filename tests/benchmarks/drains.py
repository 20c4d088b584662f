"""How fast a worker works a queue off, and what that costs the database."""

import time

from . import raw
from .ground import wait_for
from .measures import fact, limit, measure, ratio

ONE_KIB = "x" * 1_000
OPEN = """
SELECT EXISTS (SELECT 1 FROM taskharbor_job WHERE state = 'ready')
    OR EXISTS (SELECT 1 FROM taskharbor_job WHERE state = 'inflight')
"""


def load(task, jobs, argument=1):
    return task.enqueue_many(((argument,) for _ in range(jobs)), batch_size=1_000)


def load_raw(ground, jobs):
    with ground.connect() as connection:
        raw.insert_many(connection, jobs)


def drain(ground, task, jobs, *arguments, argument=1, **environment):
    """Load, start one worker, and return jobs per second from the first run to the last ack."""
    load(task, jobs, argument)
    ground.settle_down()
    with (
        ground.connect() as connection,
        ground.worker(*arguments, runs=jobs, **environment) as worker,
    ):
        read = worker.reading()
        wait_for(lambda: not connection.execute(OPEN).fetchone()[0])
        seconds = time.monotonic() - read.first
    return jobs / seconds, read.cpu / jobs


def drain_raw(ground, jobs, **options):
    ground.clear()
    load_raw(ground, jobs)
    ground.settle_down()
    with ground.connect() as connection:
        done, seconds = raw.drain(connection, **options)
    return done / seconds


@measure(
    "Drain no-op jobs, one process with threads",
    of_raw=ratio(least=0.6),
    raw_batch_100=fact("jobs/s"),
    raw_batch_500=fact("jobs/s"),
    jobs_per_second=fact("jobs/s"),
    worker_cpu=fact("ms per 1,000 jobs"),
    unkept=ratio(least=1.15),
    raw_unkept=fact("ratio"),
    one_kib=ratio(least=0.65),
)
def drains(ground, sizes):
    from .tasks import noop, noop_unkept

    limit_100 = drain_raw(ground, sizes.jobs)
    limit_500 = drain_raw(ground, sizes.jobs, batch=500)
    raw_unkept = drain_raw(ground, sizes.jobs, batch=500, kept=False)
    ground.clear()
    rate, cpu = drain(ground, noop, sizes.jobs)
    ground.clear()
    unkept, _ = drain(ground, noop_unkept, sizes.jobs)
    ground.clear()
    large, _ = drain(ground, noop, sizes.jobs, argument=ONE_KIB)
    return {
        "of_raw": rate / limit_100,
        "raw_batch_100": limit_100,
        "raw_batch_500": limit_500,
        "jobs_per_second": rate,
        "worker_cpu": cpu * 1e6,
        "unkept": unkept / rate,
        "raw_unkept": raw_unkept / limit_500,
        "one_kib": large / rate,
    }


@measure("Two processes instead of one", times_one=ratio(least=1.0), jobs_per_second=fact("jobs/s"))
def two_processes(ground, sizes):
    from .tasks import noop

    rates = {}
    for processes in ("1", "2"):
        ground.clear()
        rates[processes] = drain_by(ground, noop, sizes.jobs * 2, processes)
    return {"times_one": rates["2"] / rates["1"], "jobs_per_second": rates["2"]}


def drain_by(ground, task, jobs, processes, *arguments):
    """A drain that begins when all processes wait: until then its queue is paused."""
    from taskharbor_django.operations.pause import pause, resume

    load(task, jobs)
    ground.settle_down()
    pause("default")
    with ground.connect() as connection, ground.worker("--processes", processes, *arguments):
        alive = "SELECT count(*) FROM taskharbor_worker"
        wait_for(lambda: connection.execute(alive).fetchone()[0] == int(processes))
        resume("default")
        connection.execute("NOTIFY taskharbor, 'default'")
        began = time.monotonic()
        wait_for(lambda: not connection.execute(OPEN).fetchone()[0])
        return jobs / (time.monotonic() - began)


@measure(
    "What a drain costs the database",
    rounds=1,
    statements_per_job=limit("statements", most=0.1),
    transactions_per_job=limit("transactions", most=0.05),
    wal_of_raw=ratio(most=1.3),
    wal_per_job=fact("bytes"),
    raw_wal_per_job=fact("bytes"),
)
def costs(ground, sizes):
    from .tasks import noop

    ground.clear()
    load_raw(ground, sizes.jobs)
    ground.settle_down()
    before = ground.counts()
    with ground.connect() as connection:
        raw.drain(connection)
    raw_wal = (ground.counts().wal_bytes - before.wal_bytes) / sizes.jobs
    ground.clear()
    load(noop, sizes.jobs)
    ground.settle_down()
    with ground.statements_logged():
        before = ground.counts()
        with ground.worker("--burst") as worker:
            worker.process.wait()
        after = ground.counts()
    wal = (after.wal_bytes - before.wal_bytes) / sizes.jobs
    return {
        "statements_per_job": ground.statements_since(before.log_position) / sizes.jobs,
        "transactions_per_job": (after.transactions - before.transactions) / sizes.jobs,
        "wal_of_raw": wal / raw_wal,
        "wal_per_job": wal,
        "raw_wal_per_job": raw_wal,
    }
