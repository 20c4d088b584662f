"""
Database servers that a test run starts for itself, uses and throws away.

    with PostgreSQL(options={"max_connections": 30}) as server:
        connect(server.url)
        server.restart("immediate")

Each has `start`, `stop(mode)`, `restart(mode)`, `remove`, `url`, `pid`, `running` and `log`, and
is removed by its context manager, and also when the process that owns it is killed.
"""

from __future__ import annotations

import os

from .base import Server, ServerNotStarted, StopMode
from .mariadb import MariaDB
from .pgbouncer import PgBouncer
from .postgresql import PostgreSQL, Standby
from .proxy import Proxy
from .sqlite import SQLite

__all__ = [
    "MariaDB",
    "PgBouncer",
    "PostgreSQL",
    "Proxy",
    "SQLite",
    "Server",
    "ServerNotStarted",
    "Standby",
    "StopMode",
    "chosen",
]

KINDS: dict[str, type[Server]] = {
    "postgresql": PostgreSQL,
    "sqlite": SQLite,
    "mariadb": MariaDB,
    "pgbouncer": PgBouncer,
}


def chosen() -> Server:
    """Return the server that TASKHARBOR_TEST_DATABASE names; it is not started yet."""
    kind = os.environ.get("TASKHARBOR_TEST_DATABASE") or "postgresql"
    if kind not in KINDS:
        raise ValueError(
            f"TASKHARBOR_TEST_DATABASE is {kind!r}; it can be one of {', '.join(KINDS)}."
        )
    return KINDS[kind]()
