"""
`python -m django runworker …` as a real process on the database of the test.

Everything is waited for with a deadline. When the test ends, whatever it started is killed, and no
process may have printed a traceback or a warning that the test did not expect.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from django.db import connection

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
LOOK_EACH = 0.02
READ_FOR = 2.0  # orphans may keep the output open
# A pytest that is killed cannot clean up: then the kernel does.
LEASH = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
TROUBLE = re.compile(r"Traceback|Exception ignored|Warning:")
# The line of a dead job and its traceback, which is the job's trouble and not the worker's.
DEAD = re.compile(r"^\S+ \S+ ERROR .* is dead \(.*(\n(?!\d{4}-\d\d-\d\d ).*)*", re.MULTILINE)


def wait_until(condition, *, timeout=PATIENCE, what="the condition"):
    """Return what the condition gives as soon as it is true."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true in {timeout:g} s")
        time.sleep(LOOK_EACH)


def database_url():
    """The address of the test's database for another process."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))


class Processes:
    """Starts processes, and leaves none behind."""

    def __init__(self):
        self._started = []

    def start(
        self, *arguments, command="runworker", expect_trouble=False, within=(), **environment
    ):
        """Start a command of Django; `within` are words that run it somewhere else."""
        process = Process([command, *arguments], environment, within)
        process.expect_trouble = expect_trouble
        self._started.append(process)
        return process

    def remove(self):
        for process in self._started:
            process.kill_session()
        for process in self._started:
            process.close()
        for process in self._started:
            if not process.expect_trouble:
                assert not TROUBLE.search(DEAD.sub("", process.output)), process.output


class Process:
    def __init__(self, arguments, environment, within=()):
        settings = {"DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
        # In a session of its own, by which all that it starts is found again.
        self._process = subprocess.Popen(
            [*LEASH, *within, sys.executable, "-W", "error", "-m", "django", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | settings | environment,
            start_new_session=True,
            text=True,
        )
        self.pid = self._process.pid
        self._lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.append(line)

    @property
    def output(self):
        return "".join(self._lines)

    def lines(self, pattern):
        """The lines that match, as matches."""
        return [found for line in list(self._lines) if (found := re.search(pattern, line))]

    def line(self, pattern, *, times=1, timeout=PATIENCE):
        """Wait until a line has come so many times; return the last match."""

        def came():
            found = self.lines(pattern)
            return found if len(found) >= times else None

        try:
            return wait_until(came, timeout=timeout)[times - 1]
        except AssertionError:
            raise AssertionError(f"no {pattern!r} in {timeout:g} s:\n{self.output}") from None

    def ready(self, *, times=1):
        self.line("is ready", times=times)
        return self

    def send(self, number):
        os.kill(self.pid, number)

    def exit_code(self, *, timeout=PATIENCE):
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end in {timeout:g} s:\n{self.output}") from None
        self._reader.join(READ_FOR)
        return code

    def stop(self, number=signal.SIGTERM, *, timeout=PATIENCE):
        """Send a signal and wait for the end; return the exit code and how long it took."""
        before = time.monotonic()
        self.send(number)
        return self.exit_code(timeout=timeout), time.monotonic() - before

    @property
    def alive(self):
        return self._process.poll() is None

    def session(self):
        """The ids of all processes that come from this one and are alive, itself included."""
        return {
            pid for pid, (state, sid) in processes().items() if sid == self.pid and state != "Z"
        }

    def children(self):
        return self.session() - {self.pid}

    def kill_session(self):
        for pid in self.session():
            kill(pid)

    def close(self):
        self._process.wait(PATIENCE)
        wait_until(lambda: not self.session(), what="the end of its session")
        self._reader.join(PATIENCE)
        self._process.stdout.close()


def processes():
    """All processes of the machine: id -> state and session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            facts = path.read_text("ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        found[int(path.parent.name)] = facts[0], int(facts[3])
    return found


def kill(pid, number=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def pids_in(path):
    """The process ids that tasks have written into a file, in their order."""
    return [int(line) for line in path.read_text("ascii").split()] if path.exists() else []
