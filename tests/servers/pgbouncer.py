"""A private PgBouncer in transaction mode, from the operating system, and PostgreSQL behind it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import ClassVar, Self

from .base import DATABASE, HOST, USER, ProcessServer, StopMode, give_away
from .mariadb import program
from .postgresql import PostgreSQL

OPTIONS = {
    "pool_mode": "transaction",
    "default_pool_size": 40,
    "max_client_conn": 1000,
    # DROP DATABASE waits five seconds for sessions to go: those that nobody uses are gone by then.
    "server_idle_timeout": 2,
    "ignore_startup_parameters": "extra_float_digits,options",
}


class PgBouncer(ProcessServer):
    """
    Shares the sessions of a server among its clients, each for the time of one transaction.

    `behind` is a server that somebody else starts and removes; without it there is one of its own.
    The address forbids cursors on the server's side: they would outlive their transaction.
    """

    name = "PgBouncer"
    signals: ClassVar[dict[StopMode, int]] = {
        "smart": signal.SIGINT,
        "fast": signal.SIGTERM,
        "immediate": signal.SIGTERM,
        "kill": signal.SIGKILL,
    }
    passing_troubles = ("Address already in use", "Address in use")

    def __init__(
        self, behind: PostgreSQL | None = None, *, options: Mapping[str, object] | None = None
    ) -> None:
        super().__init__()
        self.options = {**OPTIONS, **(options or {})}
        self.behind = behind or PostgreSQL(options={"max_connections": 300})
        self._owns = behind is None

    @classmethod
    def missing(cls) -> str:
        if not program("pgbouncer"):
            return "PgBouncer is not installed here: its tests are skipped."
        return PostgreSQL.missing()

    @property
    def url(self) -> str:
        return f"{self.plain_url}?DISABLE_SERVER_SIDE_CURSORS=true"

    @property
    def plain_url(self) -> str:
        """The address for libpq, which knows nothing of Django's settings."""
        return f"postgresql://{USER}:{self.behind.password}@{HOST}:{self.port}/{DATABASE}"

    def start(self) -> Self:
        self.behind.start()
        return super().start()

    def remove(self) -> None:
        super().remove()
        if self._owns:
            self.behind.remove()

    def _create(self) -> None:
        give_away(self.directory)
        self._write("users", f'"{USER}" "{self.behind.password}"\n')

    def _command(self) -> list[str]:
        options = {
            **self.options,
            "listen_addr": HOST,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": self.directory / "users",
            "admin_users": USER,
        }
        lines = [f"{name} = {value}" for name, value in options.items()]
        databases = f"[databases]\n* = host={HOST} port={self.behind.port}\n"
        self._write("settings", "\n".join([databases, "[pgbouncer]", *lines, ""]))
        return [program("pgbouncer"), str(self.directory / "settings")]

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        give_away(path)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.plain_url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True
