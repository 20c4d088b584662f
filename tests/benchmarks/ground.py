"""Where the measuring happens: a database of its own, workers as real processes, exact counts."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from ..servers.postgresql import PostgreSQL
from .meter import PATH, RUNS

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
# What the tests of the project set: default durability, a cache that holds the tables.
OPTIONS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}


class NotDone(Exception):
    """What was waited for did not come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What the server has counted so far."""

    transactions: int
    wal_bytes: int
    log_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a meter read in a worker: by its monotonic clock and its own CPU time."""

    first: float
    last: float
    cpu: float


class Ground:
    """A PostgreSQL server with the tables of the product, in a process set up for Django."""

    def __init__(self, server):
        self.server = server
        self.url = server.url
        self.scratch = Path(tempfile.mkdtemp(prefix="taskharbor-bench-"))

    # -- the database ----------------------------------------------------------------------------

    def connect(self, **options):
        return psycopg.connect(self.url, autocommit=True, **options)

    def run(self, sql, *parameters):
        with self.connect() as connection:
            cursor = connection.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def clear(self):
        """Empty the product's tables, and give the server a quiet start."""
        self.run(
            "TRUNCATE taskharbor_job, taskharbor_lease, taskharbor_attempt, taskharbor_deadletter,"
            " taskharbor_queue, taskharbor_worker"
        )
        self.run("CHECKPOINT")

    def settle_down(self):
        """Let statistics and the visibility map catch up with what was loaded."""
        self.run("VACUUM ANALYZE taskharbor_job")
        self.run("CHECKPOINT")

    def counts(self):
        # A session's own counts are handed in a moment after it went idle, or at its end.
        time.sleep(1.2)
        transactions, wal = self.run(
            "SELECT xact_commit + xact_rollback, (SELECT wal_bytes FROM pg_stat_wal)"
            " FROM pg_stat_database WHERE datname = current_database()"
        )[0]
        size = self.server.log.stat().st_size
        return Counts(transactions=transactions, wal_bytes=int(wal), log_position=size)

    @contextlib.contextmanager
    def statements_logged(self):
        """Make the server write down each statement of sessions that begin now."""
        self.run("ALTER SYSTEM SET log_statement = 'all'")
        self.run("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            self.run("ALTER SYSTEM RESET log_statement")
            self.run("SELECT pg_reload_conf()")

    def statements_since(self, position):
        """Count the logged statements but for BEGIN, COMMIT and the like."""
        with self.server.log.open("rb") as log:
            log.seek(position)
            said = log.read().decode(errors="replace")
        found = re.findall(r"LOG:  (?:statement|execute [^:]*): \s*(\w+)", said)
        return sum(word.upper() not in {"BEGIN", "COMMIT", "ROLLBACK"} for word in found)

    # -- workers ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def worker(self, *arguments, runs=0, **environment):
        """A real `runworker`, stopped by a signal at the end of the block."""
        meter = self.scratch / "meter.json"
        meter.unlink(missing_ok=True)
        process = self.start(
            "runworker", *arguments, **{PATH: str(meter), RUNS: str(runs)}, **environment
        )
        try:
            yield Worker(process, meter)
        finally:
            process.terminate()
            process.wait(PATIENCE)

    def start(self, command, *arguments, **environment):
        settings = {"DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings"}
        with (self.scratch / "worker.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "django", command, *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | settings | environment,
            )

    def remove(self):
        shutil.rmtree(self.scratch, ignore_errors=True)


class Worker:
    """A running worker and the meter inside it."""

    def __init__(self, process, meter):
        self.process = process
        self.pid = process.pid
        self._meter = meter

    def reading(self):
        """Wait for the run that the meter was to count to."""
        wait_for(self._meter.exists, lambda: self.process.poll() is None)
        return Reading(**json.loads(self._meter.read_text()))


def wait_for(condition, alive=lambda: True, *, each=0.005):
    until = time.monotonic() + PATIENCE
    while not condition():
        if not alive():
            raise NotDone("the process ended before it had done its part")
        if time.monotonic() > until:
            raise NotDone(f"not within {PATIENCE:g} s")
        time.sleep(each)


@contextlib.contextmanager
def on_postgresql():
    """Start a server, migrate, and set Django up in this process; once."""
    with PostgreSQL(options=OPTIONS) as server:
        ground = Ground(server)
        set_up_django(server.url)
        try:
            yield ground
        finally:
            close_connections()
            ground.remove()


def set_up_django(url):
    os.environ["DATABASE_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def close_connections():
    from django.db import connections

    connections.close_all()
