"""Whether a large table, or an old transaction, slows a worker down."""

import contextlib
import threading
import time
from collections import deque

from .drains import load
from .ground import wait_for
from .measures import fact, measure, ratio

# Ids that begin with the time, as the product makes them.
FILL = """
INSERT INTO taskharbor_job (id, task, queue, payload, seq, created_at, updated_at, available_at,
    run_at, state, max_attempts, started_at, finished_at, executions, lease)
SELECT uuidv7(), 'tests.benchmarks.tasks.noop', %(queue)s, '[[1],{{}}]', n, now(), now(),
    {available_at}, {run_at}, '{state}', 3, {ended}, {ended}, {executions}, {lease}
FROM generate_series(1, %(rows)s) AS n
"""
IS_DONE = "SELECT state = 'done' FROM taskharbor_job WHERE id = %s"
BATCH, BATCHES = 2_000, 3
STATES = {
    "waiting": {
        "state": "ready",
        "available_at": "now()",
        "run_at": "NULL",
        "ended": "NULL",
        "executions": "0",
        "lease": "NULL",
    },
    "done": {
        "state": "done",
        "available_at": "now() - interval '1 day'",
        "run_at": "NULL",
        "ended": "now() - interval '1 day'",
        "executions": "1",
        "lease": "gen_random_uuid()",
    },
    "scheduled": {
        "state": "scheduled",
        "available_at": "now() + n * interval '1 s' + interval '1 h'",
        "run_at": "now() + n * interval '1 s' + interval '1 h'",
        "ended": "NULL",
        "executions": "0",
        "lease": "NULL",
    },
}
FINISHED = """
SELECT count(*) FROM taskharbor_job WHERE state = 'done' AND finished_at > now() - interval '10 min'
"""


def fill(ground, what, rows):
    parameters = {"queue": "default", "rows": rows}
    with ground.connect() as connection:
        connection.execute(FILL.format(**STATES[what]), parameters)


def rate_of_runs(ground, jobs):
    """How fast so many jobs are begun; to count those that ended would cost more, the more wait."""
    with ground.worker(runs=jobs) as worker:
        read = worker.reading()
    return jobs / (read.last - read.first)


@measure(
    "Drain beside a million other jobs",
    waiting=ratio(least=0.9),
    done=ratio(least=0.9),
    scheduled=ratio(least=0.9),
)
def backlogs(ground, sizes):
    from .tasks import noop

    rates = {}
    for what in ("none", *STATES):
        ground.clear()
        if what in STATES:
            fill(ground, what, sizes.backlog)
        load(noop, sizes.jobs)
        ground.settle_down()
        rates[what] = rate_of_runs(ground, sizes.jobs)
    ground.clear()
    alone = rates.pop("none")
    return {what: rate / alone for what, rate in rates.items()}


@measure(
    "Steady load while a snapshot is held",
    rounds=1,
    at_the_end=ratio(least=0.4),
    first=fact("jobs/s"),
    last=fact("jobs/s"),
)
def held_snapshot(ground, sizes):
    ground.clear()
    window = min(15.0, sizes.hold / 4)
    with steady_load(ground), ground.worker(), ground.connect() as holder:
        wait_for(lambda: ground.run(FINISHED)[0][0])
        before = rate_over(ground, window)
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM taskharbor_queue")
        time.sleep(sizes.hold - window)
        after = rate_over(ground, window)
        holder.execute("COMMIT")
    ground.clear()
    return {"at_the_end": after / before, "first": before, "last": after}


def rate_over(ground, seconds):
    """Jobs per second that were finished in the next so many seconds, by the server's clock."""
    began = ground.run("SELECT clock_timestamp()")[0][0]
    time.sleep(seconds)
    done = "SELECT count(*), extract(epoch FROM clock_timestamp() - %(since)s)::float8"
    where = "FROM taskharbor_job WHERE state = 'done' AND finished_at >= %(since)s"
    with ground.connect() as connection:
        jobs, took = connection.execute(f"{done} {where}", {"since": began}).fetchone()
    return jobs / took


@contextlib.contextmanager
def steady_load(ground):
    """Keep some thousand jobs ready, in a thread of its own."""
    stopping = threading.Event()

    def keep_full():
        from django.db import connections

        from .tasks import noop

        # The last of each batch, by its key: to count what is ready among millions of dead rows
        # would be slower than the worker is.
        waiting = deque()
        try:
            with ground.connect() as connection:
                while not stopping.is_set():
                    while waiting and connection.execute(IS_DONE, [waiting[0]]).fetchone()[0]:
                        waiting.popleft()
                    if len(waiting) < BATCHES:
                        ids = []
                        noop.enqueue_many(((1,) for _ in range(BATCH)), on_batch=ids.extend)
                        waiting.append(ids[-1])
                    else:
                        stopping.wait(0.01)
        finally:
            connections.close_all()

    thread = threading.Thread(target=keep_full, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
