"""
What Python alone does with many jobs that sleep at once: no queue, no database.

Threads compute after each sleep. To compare with, and no limit: all of the computing holds the
interpreter, of a worker's not all. Coroutines compute nothing, and that is a limit: each is a task
of its own, as in a worker, and asyncio wakes what sleeps up to a millisecond late.

`python -m tests.benchmarks.bare threads AT_ONCE SLEEP RUNS COMPUTE` and `... coroutines AT_ONCE
SLEEP RUNS`, with times in seconds, print how many runs that makes in a second.
"""

import asyncio
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


def by_threads(at_once, sleep, runs, compute):
    numbers, turns = iter(range(int(runs))), turns_for(compute)

    def work():
        while list(islice(numbers, 1)):
            time.sleep(sleep)
            spin(turns)

    workers = [threading.Thread(target=work) for _ in range(int(at_once))]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return runs / (time.monotonic() - began)


def by_coroutines(at_once, sleep, runs):
    async def main():
        loop, over, left = asyncio.get_running_loop(), asyncio.Event(), int(runs)
        running = set()

        def begin():
            task = loop.create_task(asyncio.sleep(sleep))
            running.add(task)
            task.add_done_callback(ended)

        def ended(task):
            nonlocal left
            running.remove(task)
            left -= 1
            if left >= at_once:
                begin()
            elif not running:
                over.set()

        for _ in range(int(at_once)):
            begin()
        await over.wait()

    began = time.monotonic()
    asyncio.run(main())
    return runs / (time.monotonic() - began)


KINDS = {"threads": by_threads, "coroutines": by_coroutines}

if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    sys.stdout.write(f"{KINDS[kind](*map(float, numbers))}\n")
