"""
Run pytest on the database that TASKHARBOR_TEST_DATABASE names, with what that needs installed.

    python -m tests.servers [pytest's arguments]

A database that is not on this machine ends the run well, with a line that says so; with
TASKHARBOR_TEST_STRICT set, it is an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from typing import NoReturn

from . import MariaDB, chosen
from .plugin import leave

NO_CLIENT = (
    "mysqlclient cannot be installed here (it wants libmariadb-dev, pkg-config and a compiler): "
    "the tests on MariaDB are skipped."
)


def main() -> NoReturn:
    server = chosen()
    if reason := server.missing():
        leave(reason)
    if isinstance(server, MariaDB) and not has_client():
        leave(NO_CLIENT)
    # In place of this process, so that Ctrl-C reaches pytest and nobody in between.
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])


def has_client() -> bool:
    """Install the client of MariaDB only now: elsewhere nobody needs its headers."""
    if find_spec("MySQLdb"):
        return True
    wanted = [
        line.partition(";")[0]
        for line in requires("taskharbor-django") or ()
        if line.startswith("mysqlclient")
    ]
    return not subprocess.call([sys.executable, "-m", "pip", "install", "--quiet", *wanted])


if __name__ == "__main__":
    main()
