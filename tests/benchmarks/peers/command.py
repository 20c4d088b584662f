"""
What every peer is asked, and the command line that asks it.

`prepare`  makes its tables in an empty database.
`clear`    empties them.
`enqueue`  loads no-op jobs with one integer each, as fast as the peer can.
`singles`  enqueues one job per commit on one connection: {"seconds": …}.
`drain`    runs one worker, in this process, until all jobs are acknowledged: {"open": …}.
           The handler's meter writes its file; see `meter`.
`latency`  runs a worker on an idle queue while another process enqueues a job each 50 ms:
           {"p50": …, "p99": …} in ms, from the call that enqueues and commits to the handler.
`pace`     is that other process.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path

from ..meter import PATH, Meter

LOOK_EACH = 0.05
PACE = 0.05
# The first jobs meet a worker that still starts, and caches that are cold.
WARM_UP = 10
CHUNK = 1_000


class Arrivals:
    """How long after it was sent each job began."""

    def __init__(self):
        self.delays = []

    def note(self, sent):
        self.delays.append(time.monotonic_ns() - sent)

    def milliseconds(self):
        return [delay / 1e6 for delay in self.delays[WARM_UP:]]


meter = Meter()
arrivals = Arrivals()


class Queue(ABC):
    """
    One peer on one database. A process calls one method of it and ends.

    It knows two handlers: `noop`, which hits the meter, and `arrive`, which notes its arrival.
    """

    # What the worker takes or runs at once, where that can be chosen: the best of what was tried.
    batch = None

    def __init__(self, url):
        self.url = url

    @abstractmethod
    def prepare(self): ...

    @abstractmethod
    def clear(self): ...

    @abstractmethod
    def enqueue(self, jobs): ...

    @abstractmethod
    def count_open(self):
        """Count the jobs that are not finished."""

    @abstractmethod
    def sender(self, handler):
        """Give the call that enqueues one job and commits, in a context that connects."""

    @abstractmethod
    def serve(self, batch, until):
        """Run a worker until `until()` is true, and stop it in good order."""

    def drain(self, batch):
        """Run a worker until nothing is left; peers with a mode for it use theirs."""
        self.serve(batch, self._is_drained)

    def _is_drained(self):
        return Path(os.environ[PATH]).exists() and self.count_open() == 0

    def singles(self, jobs):
        with self.sender("noop") as send:
            begun = time.perf_counter()
            for number in range(jobs):
                send(number)
            return time.perf_counter() - begun

    def pace(self, jobs):
        with self.sender("arrive") as send:
            for pause in ticks(jobs):
                time.sleep(pause)
                send(time.monotonic_ns())

    def latency(self, jobs):
        expected = jobs + WARM_UP
        module = type(self).__module__
        command = [sys.executable, "-m", module, "pace", self.url, f"--jobs={expected}"]
        with subprocess.Popen(command) as sender:
            self.serve(self.batch, lambda: has_all(expected) or failed(sender))
        return arrivals.milliseconds()


class AsyncQueue(Queue):
    """A peer whose API is made of coroutines; `sender` gives one too."""

    run = staticmethod(asyncio.run)

    @abstractmethod
    async def make_tables(self): ...

    @abstractmethod
    async def load(self, jobs): ...

    @abstractmethod
    async def work(self, batch, until):
        """Run a worker until `until()` is true, and stop it in good order."""

    async def burst(self, batch):
        """Run a worker until nothing is left."""
        await self.work(batch, self._is_drained)

    def prepare(self):
        self.run(self.make_tables())

    def enqueue(self, jobs):
        self.run(self.load(jobs))

    def serve(self, batch, until):
        self.run(self.work(batch, until))

    def drain(self, batch):
        self.run(self.burst(batch))

    def singles(self, jobs):
        return self.run(self._singles(jobs))

    async def _singles(self, jobs):
        async with self.sender("noop") as send:
            begun = time.perf_counter()
            for number in range(jobs):
                await send(number)
            return time.perf_counter() - begun

    def pace(self, jobs):
        self.run(self._pace(jobs))

    async def _pace(self, jobs):
        async with self.sender("arrive") as send:
            for pause in ticks(jobs):
                await asyncio.sleep(pause)
                await send(time.monotonic_ns())


class OnPostgreSQL:
    """The part of a peer that is plain SQL on its tables."""

    tables: str
    open_jobs: str

    def clear(self):
        self._ask(f"TRUNCATE {self.tables} CASCADE")

    def count_open(self):
        return self._ask(f"SELECT count(*) FROM {self.open_jobs}")[0]

    def _ask(self, sql):
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchone() if cursor.description else None


def ticks(jobs):
    """Yield how long to sleep before each job, so that sending it takes nothing from the pace."""
    begun = time.monotonic()
    for number in range(jobs):
        yield max(0.0, begun + number * PACE - time.monotonic())


def has_all(expected):
    return len(arrivals.delays) >= expected


def failed(process):
    return bool(process.poll())


def chunks(jobs):
    """Split the numbers of the jobs into lists for calls in bulk."""
    numbers = iter(range(jobs))
    while chunk := list(itertools.islice(numbers, CHUNK)):
        yield chunk


def look_until(condition):
    while not condition():
        time.sleep(LOOK_EACH)


async def wait_until(condition, worker=None):
    """Wait for the condition, or for the end of a worker that has died."""
    await asyncio.to_thread(look_until, lambda: condition() or (worker and worker.done()))


@contextlib.contextmanager
def watcher(until, stop):
    """Call `stop` from another thread as soon as `until()` is true."""

    def watch():
        look_until(until)
        stop()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    thread.join()


def main(module):
    """Run the `Driver` of a module, imported by its name so that its handlers are known by it."""
    arguments = parser().parse_args()
    queue = import_module(module).Driver(arguments.url)
    if arguments.batch and queue.batch is None:
        sys.exit("This peer has no batch to choose the size of.")
    answer = VERBS[arguments.verb](queue, arguments)
    if answer is not None:
        sys.stdout.write(json.dumps(answer) + "\n")


def parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("url", help="postgresql://user:password@host:port/name or sqlite:////path")
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--batch", type=int, help="what a worker takes or runs at once")
    return parser


def drain(queue, arguments):
    queue.drain(arguments.batch or queue.batch)
    return {"open": queue.count_open()}


def latency(queue, arguments):
    delays = queue.latency(arguments.jobs)
    percentiles = statistics.quantiles(delays, n=100)
    return {"p50": percentiles[49], "p99": percentiles[98]}


VERBS = {
    "prepare": lambda queue, _: queue.prepare(),
    "clear": lambda queue, _: queue.clear(),
    "enqueue": lambda queue, arguments: queue.enqueue(arguments.jobs),
    "singles": lambda queue, arguments: {"seconds": queue.singles(arguments.jobs)},
    "pace": lambda queue, arguments: queue.pace(arguments.jobs),
    "drain": drain,
    "latency": latency,
}
