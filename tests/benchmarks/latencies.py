"""How soon a job begins when a worker has nothing else to do."""

import contextlib
import threading
import time

from .ground import wait_for
from .measures import fact, limit, measure, ratio
from .meter import POLLING

POLL = 0.2
RAW_TAKE = """
UPDATE bench_pickup SET taken = true
WHERE id = (SELECT id FROM bench_pickup WHERE NOT taken LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING sent
"""


def percentiles(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2] * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3


def raw_pickups(ground, times):
    """A LISTEN loop: a row and a NOTIFY in one transaction, taken by one UPDATE."""
    ground.run("CREATE TABLE IF NOT EXISTS bench_pickup (id serial, sent float8, taken bool)")
    took = []
    with raw_listener(ground, took, times) as done, ground.connect() as connection:
        for _ in range(times):
            time.sleep(0.05)
            with connection.transaction():
                insert = "INSERT INTO bench_pickup (sent, taken) VALUES (%s, false)"
                connection.execute(insert, [time.monotonic()])
                connection.execute("NOTIFY bench_pickup")
        done.wait(30)
    ground.run("DROP TABLE bench_pickup")
    return percentiles(took)


@contextlib.contextmanager
def raw_listener(ground, took, times):
    listening, done = threading.Event(), threading.Event()

    def listen():
        with ground.connect() as connection, ground.connect() as taker:
            connection.execute("LISTEN bench_pickup")
            listening.set()
            while len(took) < times:
                for _ in connection.notifies(timeout=5, stop_after=1):
                    row = taker.execute(RAW_TAKE).fetchone()
                    took.append(time.monotonic() - row[0])
        done.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    listening.wait(10)
    yield done
    thread.join(10)


def pickups(ground, times, *arguments, pause=0.05, **environment):
    """The time from before the enqueue to the first line of the handler, in milliseconds."""
    from .tasks import note

    ground.clear()
    with ground.worker(*arguments, **environment), ground.connect() as connection:
        alive = "SELECT count(*) FROM taskharbor_worker"
        wait_for(lambda: connection.execute(alive).fetchone()[0])
        note.enqueue(time.monotonic()).wait(30)
        handles = []
        for number in range(times):
            # Not in step with the polls.
            time.sleep(pause * (0.5 + number * 0.618 % 1))
            handles.append(note.enqueue(time.monotonic()))
        for handle in handles:
            handle.wait(30)
        return percentiles([handle.result for handle in handles])


@measure(
    "Pick-up on an idle queue, with NOTIFY",
    p50_of_raw=ratio(most=2.5),
    p99_of_raw=ratio(most=4.0),
    p50=fact("ms"),
    p99=fact("ms"),
    raw_p50=fact("ms"),
    raw_p99=fact("ms"),
)
def pickup(ground, sizes):
    raw_p50, raw_p99 = raw_pickups(ground, sizes.pickups)
    p50, p99 = pickups(ground, sizes.pickups)
    return {
        "p50_of_raw": p50 / raw_p50,
        "p99_of_raw": p99 / raw_p99,
        "p50": p50,
        "p99": p99,
        "raw_p50": raw_p50,
        "raw_p99": raw_p99,
    }


@measure(
    f"Pick-up by polling alone, each {POLL:g} s",
    p50_beyond_half_poll=limit("ms", most=5.0),
    p50=fact("ms"),
    p99=fact("ms"),
)
def pickup_by_polling(ground, sizes):
    environment = {POLLING: "1"}
    p50, p99 = pickups(ground, sizes.pickups // 2, "--poll", str(POLL), pause=0.3, **environment)
    return {"p50_beyond_half_poll": p50 - POLL / 2 * 1e3, "p50": p50, "p99": p99}
