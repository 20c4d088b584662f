"""What leases and their fence cost."""

import time
from datetime import timedelta

from .drains import drain_raw, load
from .measures import fact, measure, ratio

LEASE = timedelta(minutes=10)


@measure(
    "Heartbeats of many inflight jobs",
    times_a_hundred=ratio(most=3.0),
    many=fact("ms"),
    a_hundred=fact("ms"),
)
def heartbeats(ground, sizes):
    few = heartbeat(ground, 100)
    many = heartbeat(ground, sizes.held_leases)
    ground.clear()
    return {"times_a_hundred": many / few, "many": many * 1e3, "a_hundred": few * 1e3}


def heartbeat(ground, jobs):
    """Seconds for one renewal of everything, the fastest of some."""
    from taskharbor_django.drivers import DatabaseDriver

    from .tasks import noop

    ground.clear()
    load(noop, jobs)
    driver = DatabaseDriver()
    tokens = []
    for _ in range(jobs // min(jobs, 500)):
        reserved = driver.reserve("default", now=driver.now(), lease_for=LEASE, limit=500)
        tokens.append(reserved[0].lease.token)
    ground.settle_down()
    return min(_seconds(driver, tokens) for _ in range(20))


def _seconds(driver, tokens):
    now = driver.now()
    began = time.perf_counter()
    renewed = driver.extend_leases(tokens, now=now, lease_for=LEASE)
    took = time.perf_counter() - began
    assert len(renewed) == len(tokens)
    return took


@measure("Leases and fence against none of it, raw", of_unfenced=ratio(least=0.9))
def fencing(ground, sizes):
    rates = {True: [], False: []}
    for fenced in (True, False, False, True, True, False, False, True):
        rates[fenced].append(drain_raw(ground, sizes.jobs, fenced=fenced))
    return {"of_unfenced": sum(rates[True]) / sum(rates[False])}
