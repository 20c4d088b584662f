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
from tests.operations import backend_of, waits_for_a_lock

PATIENCE = 20
GATE = 7001

_GATE_FUNCTION = f"""
CREATE OR REPLACE FUNCTION taskharbor_gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({GATE});
    RETURN true;
END $$
"""

_CANCEL = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE application_name = %s AND state <> 'idle' AND pid <> pg_backend_pid()
"""


def execute(sql, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


class Session:
    """A thread with a connection of its own, which does one thing after another."""

    def __init__(self):
        self._thread = ThreadPoolExecutor(1)
        self.ident, self.backend = self.run(self._open)

    def _open(self):
        connection.ensure_connection()
        # What should not wait, and does, fails instead of hanging the tests; see `close`, too.
        if connection.vendor == "mysql":
            execute("SET innodb_lock_wait_timeout = 1")
        backend = None if connection.vendor == "sqlite" else backend_of(connection)
        return threading.get_ident(), backend

    def start(self, work, *args, **options):
        """Begin the work and return its future."""
        return self._thread.submit(work, *args, **options)

    def run(self, work, *args, **options):
        return self.start(work, *args, **options).result(PATIENCE)

    def close(self):
        # Not by a timeout of the session: a pooler would give that to whoever comes next.
        if connection.vendor == "postgresql":
            execute(_CANCEL, [self.backend])
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
                sql = sql.replace(at, f"{at} AND taskharbor_gate()", 1)
            return run(sql, parameters, many, context)

        def gated():
            execute(_GATE_FUNCTION)
            try:
                with connection.execute_wrapper(insert_gate):
                    return work()
            finally:
                execute("DROP FUNCTION taskharbor_gate()")

        with closed_gate() as open_gate:
            future = self.start(gated)
            try:
                self.until_waiting(future)
                yield future
            finally:
                open_gate()
                wait([future], PATIENCE)

    def until_waiting(self, future):
        """Return once this session waits for a lock; fail when its work ends without."""
        until(lambda: waits_for_a_lock(self.backend), future)


@contextlib.contextmanager
def closed_gate():
    """Close the gate by a transaction of its own, which also a pooler gives a session."""
    keeper = connection.copy()
    keeper.set_autocommit(False)
    try:
        with keeper.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [GATE])
        yield keeper.rollback
    finally:
        keeper.close()


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
