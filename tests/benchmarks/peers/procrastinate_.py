"""
procrastinate: asyncio, one job per fetch, each statement a transaction of its own.

Best settings: a pool of our own without its ping before each statement and with connections
that commit by themselves, no LISTEN while there is a backlog. That was half as fast again as its
own pool. Two or twenty jobs at once made no difference, nor did deleting the jobs that are done.
"""

import asyncio
import contextlib

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from .command import AsyncQueue, OnPostgreSQL, Queue, arrivals, chunks, main, meter, wait_until


class Driver(OnPostgreSQL, AsyncQueue):
    batch = 10
    tables = "procrastinate_jobs, procrastinate_events, procrastinate_workers"
    open_jobs = "procrastinate_jobs WHERE status IN ('todo', 'doing')"
    # Its API without coroutines enqueues; only its worker needs a loop.
    singles, pace = Queue.singles, Queue.pace

    async def make_tables(self):
        async with self._worker_app(1) as app:
            await app.schema_manager.apply_schema_async()

    async def load(self, jobs):
        async with self._worker_app(1) as app:
            for numbers in chunks(jobs):
                arguments = ({"number": number} for number in numbers)
                await app.tasks["noop"].batch_defer_async(*arguments)

    @contextlib.contextmanager
    def sender(self, handler):
        app = with_tasks(App(connector=SyncPsycopgConnector()))
        with ConnectionPool(self.url, min_size=1, max_size=1, configure=commit_each) as pool:
            pool.wait()
            app.open(pool)
            deferrer = app.tasks[handler].configure()
            yield lambda number: deferrer.defer(number=number)

    async def burst(self, batch):
        async with self._worker_app(batch) as app:
            await app.run_worker_async(concurrency=batch, wait=False, listen_notify=False)

    async def work(self, batch, until):
        async with self._worker_app(batch) as app:
            worker = asyncio.create_task(app.run_worker_async(concurrency=batch))
            await wait_until(until, worker)
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

    @contextlib.asynccontextmanager
    async def _worker_app(self, batch):
        app = with_tasks(App(connector=PsycopgConnector()))
        # One connection for each job, one that fetches, one that listens.
        sizes = {"min_size": 1, "max_size": batch + 2}
        async with (
            AsyncConnectionPool(self.url, open=False, configure=acommit_each, **sizes) as pool,
            app.open_async(pool),
        ):
            yield app


def commit_each(connection):
    connection.autocommit = True


async def acommit_each(connection):
    await connection.set_autocommit(True)


def with_tasks(app):
    for handler in (noop, arrive):
        app.task(name=handler.__name__)(handler)
    return app


async def noop(number):
    meter.hit()


async def arrive(number):
    arrivals.note(number)


if __name__ == "__main__":
    main(__spec__.name)
