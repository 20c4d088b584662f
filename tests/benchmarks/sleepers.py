"""Jobs that wait for something else: whether all slots are kept busy."""

from .drains import drain
from .measures import fact, measure, ratio


@measure(
    "Sleeping jobs against the ideal",
    threads_64_of_10_ms=ratio(least=0.9),
    async_256_of_10_ms=ratio(least=0.9),
    async_256_of_100_ms=ratio(least=0.9),
    jobs_per_second_threads=fact("jobs/s"),
    jobs_per_second_async=fact("jobs/s"),
)
def sleepers(ground, sizes):
    from .tasks import adoze, anap, doze

    ground.clear()
    threads, _ = drain(ground, doze, sizes.jobs, "--threads", "64")
    ground.clear()
    coroutines, _ = drain(ground, adoze, sizes.jobs, "--threads", "1")
    ground.clear()
    naps, _ = drain(ground, anap, sizes.jobs, "--threads", "1")
    return {
        "threads_64_of_10_ms": threads / (64 / 0.01),
        "async_256_of_10_ms": coroutines / (256 / 0.01),
        "async_256_of_100_ms": naps / (256 / 0.1),
        "jobs_per_second_threads": threads,
        "jobs_per_second_async": coroutines,
    }
