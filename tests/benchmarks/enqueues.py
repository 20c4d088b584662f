"""How fast jobs go in."""

import time

import psutil

from . import raw
from .measures import fact, limit, measure, ratio


@measure(
    "Enqueue, one per commit",
    of_raw=ratio(least=0.75),
    jobs_per_second=fact("jobs/s"),
    raw_per_second=fact("jobs/s"),
    statements_each=limit("statements", most=1.0),
)
def enqueue_singly(ground, sizes):
    from .tasks import noop

    rates = {"raw": [], "ours": []}
    # In turns: what else the machine does falls on both.
    for _ in range(4):
        with ground.connect() as connection:
            rates["raw"].append(raw.insert_singly(connection, sizes.singles // 4))
        began = time.perf_counter()
        for _ in range(sizes.singles // 4):
            noop.enqueue(1)
        rates["ours"].append(time.perf_counter() - began)
    ours, limit_ = sum(rates["ours"]), sum(rates["raw"])
    jobs = sizes.singles // 4 * 4
    return {
        "of_raw": limit_ / ours,
        "jobs_per_second": jobs / ours,
        "raw_per_second": jobs / limit_,
        "statements_each": statements_of(lambda: noop.enqueue(1)),
    }


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
