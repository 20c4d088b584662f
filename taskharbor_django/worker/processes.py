"""A child process, and the guard of all of them, as their worker sees them; see isolation.py."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from ..clock import steady
from .farewell import GUARDED, say
from .messages import Channel, ChannelClosed, Message

# Known only by its underscore, but it is what multiprocessing itself starts processes with.
from subprocess import _args_from_interpreter_flags as interpreter_flags  # type: ignore[attr-defined]  # isort: skip

PROGRAM = "taskharbor_django.worker.child"
STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
START_TIMEOUT = 60.0
LAST_WORDS = 2.0
LOOK_EACH = 0.25


class NotReady(Exception):
    """The child did not come as far as taking a job; the text says what it said."""


class Child:
    """One process, from its start until it is reaped; `kill` may be called from any thread."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(theirs.fileno())
        except BaseException:
            mine.close()
            raise
        self._channel = Channel(mine)
        self._lock = threading.Lock()
        self._reaped = False
        self.killed = False
        self.ready = False
        self.idle_since = 0.0

    @property
    def pid(self) -> int:
        """The id of the process, of its group and of its session."""
        return self._process.pid

    def get_ready(self, using: str) -> None:
        """Tell it who it is, and wait until it can take a job."""
        path, variable = [str(entry) for entry in sys.path], os.environ.get("PYTHONPATH")
        self.send({"using": using, "path": path, "argv": sys.argv, "pythonpath": variable})
        until = steady() + START_TIMEOUT
        while (message := self.receive(LOOK_EACH)) is None:
            if steady() >= until:
                raise NotReady(f"it was not ready after {START_TIMEOUT:.0f} s")
        if message["kind"] != "ready":
            self.wait(steady() + LAST_WORDS)  # it is on its way out, with an exit code of its own
            raise NotReady(message["text"])
        self.ready = True

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def receive(self, timeout: float) -> Message | None:
        message = self._channel.receive(timeout)
        if message is None and self.has_exited():
            # What it had forked holds the line open, or its last words arrived just now.
            message = self._channel.receive(0)
            if message is None:
                raise ChannelClosed("the process has ended")
        return message

    def has_exited(self) -> bool:
        """Look without reaping: as long as nobody does, its id belongs to nobody else."""
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, how) is not None
        except ChildProcessError:
            return True  # a handler in the worker has waited for any child, and got this one

    def kill(self) -> None:
        with self._lock:
            if not self._reaped:
                self.killed = True
                self._kill_group()

    def say_goodbye(self) -> None:
        """Let an idle one end by itself; `reap` must follow."""
        with contextlib.suppress(ChannelClosed):
            self.send({"kind": "end"})

    def wait(self, until: float) -> None:
        """Wait for its end, but not longer than that."""
        with contextlib.suppress(ChannelClosed):
            while steady() < until:
                self.receive(max(0.0, min(LOOK_EACH, until - steady())))

    def reap(self) -> int:
        """
        End what is left of it and of what it had started; return how it ended.

        A process that has closed its line is ending, or is good for nothing any more. How it ends
        was decided when it began to: this signal comes too late to change that.
        """
        with self._lock:
            self._kill_group()
            self._reaped = True
        self._channel.close()
        return self._process.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of zombies only
            os.killpg(self.pid, signal.SIGKILL)


def _start(line: int) -> subprocess.Popen[bytes]:
    """Start the program in a session of its own, out of reach of the worker's terminal."""
    flags = interpreter_flags()
    # -P: where the worker was called must not come first; the path is told to it in any case, but
    # this package has to be found before that.
    command = [sys.executable, *flags, "-P", "-m", PROGRAM, str(line)]
    path = os.pathsep.join(str(entry) for entry in sys.path if entry)
    # Held back until the child can take them: a signal to everybody must not cost it its job.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        return subprocess.Popen(  # noqa: S603  this interpreter, with this package's own program
            command,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            pass_fds=[line],
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Guard:
    """The worker's side of guard.py; started with the first child."""

    def __init__(self, farewell: int | None) -> None:
        self._farewell = farewell
        self._process: subprocess.Popen[bytes] | None = None

    def hold(self, pids: Iterable[int]) -> None:
        """Say which children there are."""
        line = " ".join(map(str, sorted(pids))).encode() + b"\n"
        try:
            self._tell(line)
        except OSError:
            # Somebody has killed it: another one takes over, if this machine lets it.
            self.close()
            with contextlib.suppress(OSError):
                self._tell(line)

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _tell(self, line: bytes) -> None:
        process = self._process = self._process or self._start()
        if process.stdin is not None:
            process.stdin.write(line)

    def _start(self) -> subprocess.Popen[bytes]:
        # By the worker, and first: it may die before the guard could say so.
        say(GUARDED, self._farewell)
        return _start_guard([] if self._farewell is None else [self._farewell])


def _start_guard(farewell: list[int]) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("guard.py")
    return subprocess.Popen(  # noqa: S603  this interpreter, with the guard of this package
        [sys.executable, "-I", "-S", str(program), *map(str, farewell)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        pass_fds=farewell,
        start_new_session=True,
    )
