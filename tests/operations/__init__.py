"""The verbs, each on a real database. What several of these tests need stands here."""

import contextlib
from datetime import UTC, datetime, timedelta
from threading import Event
from time import monotonic
from uuid import uuid4

from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from taskharbor_django.operations.storage import driver_for

LEASE = timedelta(seconds=30)
PATIENCE = 60


class Undo(Exception):
    """Raised to roll a transaction back."""


@contextlib.contextmanager
def undone(using="default"):
    """A transaction that is rolled back at its end."""
    with contextlib.suppress(Undo), transaction.atomic(using=using):
        yield
        raise Undo


def server_now():
    """The wall clock of the server, asked past the app; on SQLite this machine's."""
    questions = {"postgresql": "SELECT clock_timestamp()", "mysql": "SELECT SYSDATE(6)"}
    if connection.vendor not in questions:
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute(questions[connection.vendor])
        told = cursor.fetchone()[0]
    return told if told.tzinfo else told.replace(tzinfo=UTC)


class Statements(CaptureQueriesContext):
    """What was sent to the database inside the block."""

    def __init__(self):
        super().__init__(connection)

    @property
    def verbs(self):
        """The first word of each statement."""
        return [query["sql"].lstrip("( ").split()[0].upper() for query in self.captured_queries]

    @property
    def inserts(self):
        return self.verbs.count("INSERT")


def hold(handle, lease_for=LEASE):
    """Reserve this job as a worker would, and what stands before it in its queue."""
    driver = driver_for(handle.using)
    queue = handle.refresh().queue
    taken = driver.reserve(queue, now=driver.now(), lease_for=lease_for, limit=1_000)
    return next(each for each in taken if each.job.id == handle.id)


def backend_of(connected):
    """
    What the server knows this connection by; outside of a transaction.

    On PostgreSQL a name that is given to it: a pooler carries that from one of its sessions to the
    next, while the process id is that of whichever session served the connection last.
    """
    if connected.vendor == "postgresql":
        name = f"test-{uuid4()}"
        with connected.cursor() as cursor:
            cursor.execute("SELECT set_config('application_name', %s, false)", [name])
        return name
    return connected.connection.thread_id()


def waits_for_a_lock(backend):
    """Say whether the server lets that connection wait for another one's lock."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # Inside a transaction pg_stat_activity shows the same picture again and again.
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(
                "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid)"
                " WHERE application_name = %s AND NOT granted",
                [backend],
            )
            return cursor.fetchone() is not None
        # Not innodb_trx: who asks for it more often than each 100 ms gets an old picture too.
        cursor.execute("SHOW ENGINE INNODB STATUS")
        told = cursor.fetchone()[2].split("---TRANSACTION")
        return any("LOCK WAIT" in each and f"thread id {backend}," in each for each in told)


def until(condition):
    """Look again and again until it holds; fail when it never does."""
    deadline, pause = monotonic() + PATIENCE, Event()
    while not condition():
        assert monotonic() < deadline, "it never came to that"
        pause.wait(0.005)


# Each means something to some database, shell, template, terminal or format string, or is quoted
# by one of them.
ODD_NAMES = [
    "'; DROP TABLE taskharbor_job; --",
    "' OR '1'='1",
    '"quoted" `back` [ed]',
    "100 % %s %(id)s %%",
    "a;b",
    "\\",
    "a\\' \\n",
    "any_%",
    "{0} {{ 7*7 }} $1 ${HOME} :name ?",
    "two\nlines\tand \x1b[2Jmore",
    "<script>alert(1)</script>",
    "é☃ 🚢",
]
UNSTORABLE_NAMES = ["a\0b", "\ud800"]
