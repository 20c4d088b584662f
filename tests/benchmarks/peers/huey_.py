"""
huey on SQLite: threads, and a job is gone as soon as it is taken; nothing is acknowledged.

Best settings: no results, two threads (one is slower, four are no faster), a look each 10 ms
where the queue is empty. Its databases are in WAL mode by itself; `synchronous` is lowered to
what our own benchmarks set.
"""

import contextlib
import sqlite3

from huey import SqliteHuey

from .command import Queue, arrivals, main, meter, watcher


class Driver(Queue):
    batch = 2

    def __init__(self, url):
        super().__init__(url)
        self._huey = SqliteHuey(
            filename=url.removeprefix("sqlite:///"),
            results=False,
            timeout=30,
            factory=Connection,
        )
        self._tasks = {handler.__name__: self._huey.task()(handler) for handler in (noop, arrive)}

    def prepare(self):
        self._huey.storage.initialize_schema()

    def clear(self):
        self._huey.flush()

    def enqueue(self, jobs):
        # It has no call in bulk.
        self.singles(jobs)

    def count_open(self):
        return self._huey.pending_count()

    @contextlib.contextmanager
    def sender(self, handler):
        yield self._tasks[handler]

    def serve(self, batch, until):
        consumer = self._huey.create_consumer(
            workers=batch, initial_delay=0.01, max_delay=0.01, backoff=1.0, periodic=False
        )
        with watcher(until, lambda: consumer.stop(graceful=True)):
            consumer.run()


class Connection(sqlite3.Connection):
    """huey's own option knows only the two extremes."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.execute("PRAGMA synchronous=NORMAL")


def noop(number):
    meter.hit()


def arrive(sent):
    arrivals.note(sent)


if __name__ == "__main__":
    main(__spec__.name)
