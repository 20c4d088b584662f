"""
Other sessions at the same database, stopped at the place where a test wants them.

A session is a thread with a connection of its own. `Session.stopped_at` holds it at a failpoint;
`Session.held_back` holds it inside one statement: after that has taken its snapshot and before it
locks its rows, where READ COMMITTED keeps its surprises.
"""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

from django.db import connection, connections

from taskharbor_django import failpoints

PATIENCE = 20
GATE = 7001

_GATE_FUNCTION = f"""
CREATE FUNCTION pg_temp.gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({GATE});
    RETURN true;
END $$
"""


def execute(sql, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


def backend():
    """The server's process that serves this thread's connection."""
    return execute("SELECT pg_backend_pid()")[0][0]


class Session:
    """A thread with a connection of its own, which does one thing after another."""

    def __init__(self):
        self._thread = ThreadPoolExecutor(1)
        self.ident, self.pid = self.run(self._open)

    def _open(self):
        connection.ensure_connection()
        if connection.vendor != "postgresql":
            return threading.get_ident(), None
        # What should not wait, and does, fails instead of hanging the tests.
        execute(f"SET statement_timeout = '{PATIENCE}s'")
        return threading.get_ident(), backend()

    def start(self, work, *args, **options):
        """Begin the work and return its future."""
        return self._thread.submit(work, *args, **options)

    def run(self, work, *args, **options):
        return self.start(work, *args, **options).result(PATIENCE)

    def close(self):
        self.run(connections.close_all)
        self._thread.shutdown()

    @contextlib.contextmanager
    def stopped_at(self, name, work):
        """Hold the work at a failpoint while the block runs; it goes on afterwards, to its end."""
        reached, go_on = threading.Event(), threading.Event()

        def stop():
            if threading.get_ident() == self.ident:
                reached.set()
                assert go_on.wait(PATIENCE)

        with failpoints.armed(name, stop):
            future = self.start(work)
            try:
                until(reached.is_set, future)
                yield future
            finally:
                go_on.set()
                wait([future], PATIENCE)

    @contextlib.contextmanager
    def held_back(self, work, *, at):
        """
        Hold the work inside its first locking statement that says `at`, while the block runs.

        The gate is one more condition behind that: by then the statement has its snapshot and has
        found a row by it, but has not locked it.
        """
        used = []

        def insert_gate(run, sql, parameters, many, context):
            if at in sql and "FOR " in sql and "UPDATE" in sql and not used:
                used.append(sql)
                sql = sql.replace(at, f"{at} AND pg_temp.gate()", 1)
            return run(sql, parameters, many, context)

        def gated():
            execute(_GATE_FUNCTION)
            try:
                with connection.execute_wrapper(insert_gate):
                    return work()
            finally:
                execute("DROP FUNCTION pg_temp.gate()")

        execute("SELECT pg_advisory_lock(%s)", [GATE])
        future = self.start(gated)
        try:
            self.until_waiting(future)
            yield future
        finally:
            execute("SELECT pg_advisory_unlock(%s)", [GATE])
            wait([future], PATIENCE)

    def until_waiting(self, future):
        """Return once this session waits for a lock; fail when its work ends without."""
        until(lambda: is_waiting(self.pid), future)


def is_waiting(pid):
    found = execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid])
    return found == [("Lock",)]


def until(condition, future=None):
    """Look again and again, until a deadline; a future that ends first is an error."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        if future is None:
            pause.wait(0.005)
        elif wait([future], 0.005).done:
            raise AssertionError(f"it went on instead of stopping: {future.result()!r}")


def ended(future):
    """The result of work that must not be waiting for anything now."""
    return future.result(PATIENCE)
