"""
pgqueuer: asyncio, jobs in batches, acknowledged by deletion and a line in its log table.

Best settings: uvloop as under its own command, and a pool of asyncpg, so that one connection
fetches the next batch while another acknowledges the last. Measure it at 100 and at 500.
"""

import asyncio
import contextlib
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from .command import LOOK_EACH, AsyncQueue, OnPostgreSQL, arrivals, chunks, main, meter, wait_until


class Driver(OnPostgreSQL, AsyncQueue):
    run = staticmethod(uvloop.run)
    batch = 100
    tables = "pgqueuer, pgqueuer_log, pgqueuer_statistics"
    # A job that succeeded leaves this table.
    open_jobs = "pgqueuer"

    async def make_tables(self):
        async with self._queries() as queries:
            await queries.install()

    async def load(self, jobs):
        async with self._queries() as queries:
            for numbers in chunks(jobs):
                names, priorities = ["noop"] * len(numbers), [0] * len(numbers)
                await queries.enqueue(names, [b"%d" % number for number in numbers], priorities)

    @contextlib.asynccontextmanager
    async def sender(self, handler):
        async with self._queries() as queries:

            async def send(number):
                await queries.enqueue(handler, b"%d" % number)

            yield send

    @contextlib.asynccontextmanager
    async def _queries(self):
        connection = await asyncpg.connect(self.url)
        try:
            yield Queries.from_asyncpg_connection(connection)
        finally:
            await connection.close()

    async def burst(self, batch):
        async with self._worker() as worker:
            # Its burst mode asks whether it is done only when the timeout has passed.
            await worker.run(
                batch_size=batch,
                mode=QueueExecutionMode.drain,
                dequeue_timeout=timedelta(seconds=LOOK_EACH),
            )

    async def work(self, batch, until):
        async with self._worker() as worker, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run(batch_size=batch))
            await wait_until(until, running)
            worker.shutdown.set()

    @contextlib.asynccontextmanager
    async def _worker(self):
        async with asyncpg.create_pool(self.url, min_size=2, max_size=4) as pool:
            worker = PgQueuer.from_asyncpg_pool(pool)
            for handler in (noop, arrive):
                worker.entrypoint(handler.__name__)(handler)
            yield worker


async def noop(job):
    meter.hit()


async def arrive(job):
    arrivals.note(int(job.payload))


if __name__ == "__main__":
    main(__spec__.name)
