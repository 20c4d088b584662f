"""SQLite in a private directory, with the face of a server."""

from __future__ import annotations

from typing import Self

from .base import Server, StopMode


class SQLite(Server):
    """A directory for database files; there is no process to start or stop."""

    name = "SQLite"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.directory / 'taskharbor.sqlite3'}"

    def start(self) -> Self:
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        pass
