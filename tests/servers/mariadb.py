"""A private MariaDB, from the programs of the operating system."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from .base import DATABASE, HOST, USER, ProcessServer, StopMode, give_away

OPTIONS = {
    "bind-address": HOST,
    "max-connections": 200,
    "character-set-server": "utf8mb4",
}
ORDINARY = f"{USER}_ordinary"

# Servers stand outside the search path of ordinary users.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


class MariaDB(ProcessServer):
    """
    A server of its own with default durability; `options` are those of mariadbd.

    Who may do everything may write where others may not, and gets in where it is full: `ordinary`
    is the address of a user for whom the server is what it is for an application.
    """

    name = "MariaDB"
    signals: ClassVar[dict[StopMode, int]] = {
        "smart": signal.SIGTERM,
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
        "kill": signal.SIGKILL,
    }
    passing_troubles = ("Address already in use", "Unable to lock ./ibdata1")

    def __init__(self, *, options: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.options = {**OPTIONS, **(options or {})}
        self.password = secrets.token_hex(16)

    @classmethod
    def missing(cls) -> str:
        if program("mariadbd") and program("mariadb-install-db"):
            return ""
        return "MariaDB is not installed here: its tests are skipped."

    @property
    def url(self) -> str:
        return f"mysql://{USER}:{self.password}@{HOST}:{self.port}/{DATABASE}"

    @property
    def ordinary(self) -> str:
        return f"mysql://{ORDINARY}:{self.password}@{HOST}:{self.port}/{DATABASE}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def _create(self) -> None:
        give_away(self.directory)
        welcome = self.directory / "welcome.sql"
        welcome.write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;\n"
            f"CREATE USER IF NOT EXISTS {ORDINARY}@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON {DATABASE}.* TO {ORDINARY}@'%';\n"
            f"GRANT PROCESS ON *.* TO {ORDINARY}@'%';\n"
        )
        give_away(welcome)
        self._run(
            [
                program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={self.data}",
                f"--tmpdir={self.directory}",
                "--skip-test-db",
            ]
        )

    def _command(self) -> list[str]:
        options = {
            **self.options,
            "datadir": self.data,
            "tmpdir": self.directory,
            "socket": self.directory / "socket",
            "pid-file": self.directory / "pid",
            "init-file": self.directory / "welcome.sql",
            "port": self.port,
        }
        settings = [f"--{name}={value}" for name, value in options.items()]
        return [program("mariadbd"), "--no-defaults", *settings]

    def _answers(self) -> bool:
        import MySQLdb

        try:
            MySQLdb.connect(
                host=HOST, port=self.port, user=USER, password=self.password, connect_timeout=5
            ).close()
        except MySQLdb.OperationalError:
            return False
        return True


def program(name: str) -> str:
    """Return where a program is, or nothing."""
    return shutil.which(name, path=SEARCH_PATH) or ""
