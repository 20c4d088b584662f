"""How fast jobs go in."""

import time

import psutil

from . import raw
from .measures import fact, limit, measure, ratio

TURN = 25  # some tens of milliseconds


@measure(
    "Enqueue, one per commit",
    of_raw=ratio(least=0.75),
    jobs_per_second=fact("jobs/s"),
    raw_per_second=fact("jobs/s"),
    django_cursor_of_raw=fact("ratio"),
    statements_each=limit("statements", most=1.0),
)
def enqueue_singly(ground, sizes):
    from .tasks import noop

    turns = max(4, sizes.singles // TURN)
    ours = limit_ = by_cursor = 0.0
    # In short turns: what else the machine does falls on all.
    with ground.connect() as connection:
        for _ in range(turns):
            limit_ += raw.insert_singly(connection.execute, TURN)
            ours += enqueue_some(noop)
            by_cursor += raw.insert_singly(execute_by_django, TURN)
    jobs = turns * TURN
    return {
        "of_raw": limit_ / ours,
        "django_cursor_of_raw": limit_ / by_cursor,
        "jobs_per_second": jobs / ours,
        "raw_per_second": jobs / limit_,
        "statements_each": statements_of(lambda: noop.enqueue(1)),
    }


def enqueue_some(task):
    began = time.perf_counter()
    for _ in range(TURN):
        task.enqueue(1)
    return time.perf_counter() - began


def execute_by_django(sql, parameters):
    """The same INSERT on Django's own cursor, which prepares nothing."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)


def statements_of(work):
    """Statements of one call but for the wake-up, which is one in some milliseconds."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        work()
    return sum("pg_notify" not in query["sql"] for query in captured)


@measure(
    "Enqueue many",
    of_raw=ratio(least=0.6),
    jobs_per_second=fact("jobs/s"),
    raw_per_second=fact("jobs/s"),
)
def enqueue_many(ground, sizes):
    from .tasks import noop

    ground.clear()
    with ground.connect() as connection:
        limit_ = raw.insert_many(connection, sizes.many)
    ground.clear()
    began = time.perf_counter()
    noop.enqueue_many((number,) for number in range(sizes.many))
    ours = time.perf_counter() - began
    return {
        "of_raw": limit_ / ours,
        "jobs_per_second": sizes.many / ours,
        "raw_per_second": sizes.many / limit_,
    }


@measure("Enqueue a million from a generator", rounds=1, memory_grown=limit("MB", most=5.0))
def enqueue_flood(ground, sizes):
    from .tasks import noop

    ground.clear()
    process, early = psutil.Process(), []

    def calls():
        for number in range(sizes.flood):
            if number == sizes.flood // 10:
                early.append(process.memory_info().rss)
            yield (number,)
        early.append(process.memory_info().rss)

    noop.enqueue_many(calls())
    ground.clear()
    return {"memory_grown": (early[1] - early[0]) / 2**20}
