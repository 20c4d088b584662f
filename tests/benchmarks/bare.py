"""
What Python alone does with many threads that sleep and compute in turn: no queue, no database.

To compare with, and no limit: all of the computing holds the interpreter, of a worker's not all.

`python -m tests.benchmarks.bare THREADS SLEEP COMPUTE RUNS`, with times in seconds, prints how many
runs that makes in a second.
"""

import sys
import threading
import time
from itertools import islice


def spin(turns):
    number = 0
    for _ in range(turns):
        number += 1
    return number


def turns_for(seconds):
    """How many turns of `spin` take so long, by the CPU time of this thread."""
    trial = 200_000
    began = time.thread_time()
    spin(trial)
    return int(trial * seconds / (time.thread_time() - began))


def rate(threads, sleep, compute, runs):
    numbers, turns = iter(range(runs)), turns_for(compute)

    def work():
        while list(islice(numbers, 1)):
            time.sleep(sleep)
            spin(turns)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return runs / (time.monotonic() - began)


if __name__ == "__main__":
    threads, sleep, compute, runs = map(float, sys.argv[1:])
    sys.stdout.write(f"{rate(int(threads), sleep, compute, int(runs))}\n")
