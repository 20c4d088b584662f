"""
Oban for Python: asyncio, fetches in batches, acknowledges job by job in one transaction.

Best settings: uvloop as under its own command, and room for 100 jobs at once; more only moves
acknowledgements behind the last handler, out of sight of the meter. Its debounce stays as it is.
"""

import contextlib

import psycopg
import uvloop
from oban import Oban, worker
from oban.schema import install

from .command import AsyncQueue, OnPostgreSQL, arrivals, chunks, main, meter, wait_until


class Driver(OnPostgreSQL, AsyncQueue):
    run = staticmethod(uvloop.run)
    batch = 100
    tables = "oban_jobs, oban_leaders, oban_producers"
    open_jobs = "oban_jobs WHERE state NOT IN ('completed', 'cancelled', 'discarded')"

    async def make_tables(self):
        async with self._pool() as pool:
            await install(pool)

    async def load(self, jobs):
        async with self._pool() as pool:
            oban = Oban(pool=pool)
            for numbers in chunks(jobs):
                await oban.enqueue_many(Noop.new({"number": number}) for number in numbers)

    @contextlib.asynccontextmanager
    async def sender(self, handler):
        worker_class = {"noop": Noop, "arrive": Arrive}[handler]
        # A connection that commits by itself saves the BEGIN and COMMIT of the pool's.
        async with (
            self._pool() as pool,
            await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection,
        ):
            oban = Oban(pool=pool)

            async def send(number):
                await oban.enqueue(worker_class.new({"number": number}), conn=connection)

            yield send

    async def work(self, batch, until):
        async with self._pool() as pool, Oban(pool=pool, queues={"default": batch}):
            await wait_until(until)

    @contextlib.asynccontextmanager
    async def _pool(self):
        async with await Oban.create_pool(self.url) as pool:
            yield pool


@worker()
class Noop:
    async def process(self, job):
        meter.hit()


@worker()
class Arrive:
    async def process(self, job):
        arrivals.note(job.args["number"])


if __name__ == "__main__":
    main(__spec__.name)
