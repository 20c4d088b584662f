"""What can be done to a PostgreSQL of the test's own while workers use it."""

import contextlib
import signal
from pathlib import Path

import psycopg
from django.db import connection, connections

from .harness import kill, wait_until


@contextlib.contextmanager
def here(server):
    """Let Django's default connection of this process, in each thread, be one to the server."""
    before = connection.settings_dict
    with psycopg.connect(server.url) as probe:
        facts = probe.info.get_parameters()
    connection.close()
    names = {"HOST": "host", "PORT": "port", "USER": "user", "NAME": "dbname"}
    address = {key: facts[name] for key, name in names.items()}
    there = {**before, **address, "PASSWORD": server.password}
    # Threads make a connection of their own out of these.
    connection.settings_dict = connections.settings["default"] = there
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = connections.settings["default"] = before


def admin(server):
    """A session of the test's own, past any proxy, that may always write."""
    return psycopg.connect(
        server.url, autocommit=True, options="-c default_transaction_read_only=off"
    )


@contextlib.contextmanager
def down(server, mode="fast"):
    connection.close()
    server.stop(mode)
    try:
        yield
    finally:
        server.start()


@contextlib.contextmanager
def read_only(server):
    def switch(to):
        with admin(server) as session:
            session.execute(f"ALTER SYSTEM SET default_transaction_read_only = {to}")
            session.execute("SELECT pg_reload_conf()")

    switch("on")
    try:
        yield
    finally:
        switch("off")


@contextlib.contextmanager
def restarted_with(server, **options):
    """Let the server run with other options for a while."""
    before = dict(server.options)
    server.options |= options
    connection.close()
    server.restart()
    try:
        yield
    finally:
        connection.close()
        server.options = before
        server.restart()


@contextlib.contextmanager
def all_taken(server):
    """Hold every connection that the server has."""
    connection.close()
    with contextlib.ExitStack() as sessions:

        def take():
            try:
                sessions.enter_context(contextlib.closing(psycopg.connect(server.url)))
            except psycopg.OperationalError as error:
                return "too many clients" in str(error)
            return False

        wait_until(take, what="the last connection")
        yield


@contextlib.contextmanager
def frozen(server):
    """Stop the server with all its processes: it closes nothing, and its kernel still listens."""
    connection.close()
    try:
        kill(server.pid, signal.SIGSTOP)  # first: it starts no more of them
        for pid in family(server.pid):
            kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in family(server.pid):
            kill(pid, signal.SIGCONT)


def family(pid):
    """A process and its children."""
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            if int(path.read_text("ascii", "replace").rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def caught_up(server, standby):
    """Wait until the standby has all that the primary has."""
    with admin(server) as primary, psycopg.connect(standby.url, autocommit=True) as other:
        written = primary.execute("SELECT pg_current_wal_lsn()").fetchone()[0]
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: other.execute(replayed, [written]).fetchone()[0], what="the standby")
