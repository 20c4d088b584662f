"""Jobs that wait for something else: whether all slots are kept busy."""

import subprocess
import sys

from .drains import drain
from .ground import ROOT
from .measures import fact, measure, ratio


@measure(
    "Sleeping jobs against the ideal",
    threads_64_of_10_ms=ratio(least=0.9),
    async_256_of_10_ms=ratio(least=0.9),
    async_256_of_100_ms=ratio(least=0.9),
    bare_threads_64_of_10_ms=fact("ratio"),
    bare_async_256_of_10_ms=fact("ratio"),
    worker_cpu=fact("ms per 1,000 jobs"),
    jobs_per_second_threads=fact("jobs/s"),
    jobs_per_second_async=fact("jobs/s"),
)
def sleepers(ground, sizes):
    from .tasks import adoze, anap, doze, noop

    ground.clear()
    _, cpu = drain(ground, noop, sizes.jobs)
    ideal, ideal_async = 64 / 0.01, 256 / 0.01
    bare_threads = bare("threads", 64, 0.01, sizes.jobs, cpu)
    bare_async = bare("coroutines", 256, 0.01, sizes.jobs)
    ground.clear()
    threads, _ = drain(ground, doze, sizes.jobs, "--threads", "64")
    ground.clear()
    coroutines, _ = drain(ground, adoze, sizes.jobs, "--threads", "1")
    ground.clear()
    naps, _ = drain(ground, anap, sizes.jobs, "--threads", "1")
    return {
        "threads_64_of_10_ms": threads / ideal,
        "bare_threads_64_of_10_ms": bare_threads / ideal,
        "bare_async_256_of_10_ms": bare_async / ideal_async,
        "worker_cpu": cpu * 1e6,
        "async_256_of_10_ms": coroutines / ideal_async,
        "async_256_of_100_ms": naps / (256 / 0.1),
        "jobs_per_second_threads": threads,
        "jobs_per_second_async": coroutines,
    }


def bare(kind, *numbers):
    """Runs a second of a bare program; of threads that compute as long as a job costs a worker."""
    command = [sys.executable, "-m", "tests.benchmarks.bare", kind, *map(str, numbers)]
    return float(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
