"""What all servers of the tests have in common: a directory, a process, and an end."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Literal, Self

StopMode = Literal["smart", "fast", "immediate", "kill"]

DATABASE = USER = "taskharbor"
HOST = "127.0.0.1"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0


class ServerNotStarted(Exception):
    """The server did not start; the message ends with the last lines of its log."""


class Server(ABC):
    """One private server: `start`, `stop`, `restart`, and `remove` with all it stored."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._leash: Leash | None = None

    @classmethod
    def missing(cls) -> str:
        """Say in one sentence why this server cannot run here; empty when it can."""
        return ""

    @property
    @abstractmethod
    def url(self) -> str:
        """The address for DATABASE_URL; it stays the same over restarts."""

    @property
    def directory(self) -> Path:
        """The private directory that holds data and log; the first call makes it."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="taskharbor-"))
            self._leash = Leash(self._directory)
        return self._directory

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the server's main process, for tests that send it signals."""
        if self._process is None or not self.running:
            raise ServerNotStarted(f"{self.name} is not running.")
        return self._process.pid

    @abstractmethod
    def start(self) -> Self:
        """Start the server, on the first call after making its data; return when it answers."""

    @abstractmethod
    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait until it is gone; its data stay for the next start."""

    def restart(self, mode: StopMode = "fast") -> Self:
        self.stop(mode)
        return self.start()

    def remove(self) -> None:
        """Stop the server for good and delete all it stored."""
        self.stop("immediate")
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        if self._leash is not None:
            self._leash.drop()
            self._leash = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


class ProcessServer(Server):
    """A server that is a process of its own, reached by TCP on a free port."""

    signals: ClassVar[dict[StopMode, int]]
    # The port that was free may be taken, or the shared memory of a killed server not yet be gone.
    passing_troubles: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.port = 0
        self._output: IO[bytes] | None = None

    @abstractmethod
    def _create(self) -> None:
        """Make the data directory and choose a port."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line that runs the server in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether a client can connect now."""

    def _first_start(self) -> None:
        """Do what needs the running server once, such as making the database."""

    def start(self) -> Self:
        if self.running:
            return self
        fresh = not self.port
        if fresh:
            self.port = free_port()
            self._create()
        deadline = time.monotonic() + START_TIMEOUT
        while not self._launch(deadline):
            if fresh:
                self.port = free_port()
            time.sleep(0.2)
        if fresh:
            self._first_start()
        return self

    def _launch(self, deadline: float) -> bool:
        """Start the process; False when it ended by something that passes."""
        self._close()
        self._output = self.log.open("ab")
        begin = self._output.tell()
        self._process = self._spawn(self._command(), stdout=self._output)
        if self._leash is not None:
            self._leash.hold(self._process.pid)
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                said = self._said(begin)
                if any(trouble in said for trouble in self.passing_troubles):
                    return False
                raise ServerNotStarted(f"{self.name} ended at once:\n{said}")
            if self._answers():
                return True
            time.sleep(0.05)
        said = self._said(begin)
        self.stop("kill")
        raise ServerNotStarted(f"{self.name} did not answer in {START_TIMEOUT:.0f} s:\n{said}")

    def _said(self, begin: int) -> str:
        return self.log.read_bytes()[begin:][-4000:].decode(errors="replace")

    def stop(self, mode: StopMode = "fast") -> None:
        if self._process is not None and self.running:
            self._process.send_signal(self.signals[mode])
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close()

    def _close(self) -> None:
        self._process = None
        if self._output is not None:
            self._output.close()
            self._output = None
        if self._leash is not None:
            self._leash.hold(0)

    def _run(self, command: list[str]) -> None:
        """Run a command of the server's making as the user that owns its data."""
        done = subprocess.run(
            command, capture_output=True, check=False, cwd=self.directory, **run_as()
        )
        if done.returncode:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise ServerNotStarted(f"{command[0]} failed:\n{said}")

    def _spawn(self, command: list[str], stdout: IO[bytes]) -> subprocess.Popen[bytes]:
        # A session of its own keeps Ctrl-C in the terminal away from the server: the tests stop it.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            start_new_session=True,
            **run_as(),
        )


class Leash:
    """Ends the server and deletes its directory when the process that owns both is killed."""

    def __init__(self, directory: Path) -> None:
        self._watcher = subprocess.Popen(
            [sys.executable, "-ISs", str(Path(__file__).with_name("leash.py")), str(directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def hold(self, pid: int) -> None:
        if self._watcher.stdin is not None:
            self._watcher.stdin.write(f"{pid}\n".encode())
            self._watcher.stdin.flush()

    def drop(self) -> None:
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()
        self._watcher.wait()


def run_as() -> dict[str, Any]:
    """Return what `subprocess` needs to run a server: never as root, which they refuse."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}


def give_away(path: Path) -> None:
    """Make the user of `run_as` the owner of a path."""
    if user := run_as():
        os.chown(path, user["user"], user["group"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
