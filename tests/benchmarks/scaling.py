"""Worker processes on one server: what each one more of them adds."""

from .drains import drain_by
from .measures import fact, measure

PROCESSES = (1, 2, 4, 8)
THREADS = "4"  # as many jobs at once in each process, so that cores do not end it too soon


@measure(
    "1 to 8 worker processes on one PostgreSQL, 4 threads each",
    **{f"no_op_by_{number}": fact("jobs/s") for number in PROCESSES},
    **{f"waiting_5_ms_by_{number}": fact("jobs/s") for number in PROCESSES},
)
def scaling(ground, sizes):
    from .tasks import noop, wait

    rates = {}
    for number in PROCESSES:
        for name, task, jobs in (
            ("no_op", noop, sizes.jobs),
            ("waiting_5_ms", wait, max(sizes.jobs // 4, 1_000)),
        ):
            ground.clear()
            rate = drain_by(ground, task, jobs, str(number), "--threads", THREADS)
            rates[f"{name}_by_{number}"] = rate
    return rates
