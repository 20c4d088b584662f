"""A worker beside the demo: `manage.py runworker` as a child process that never outlives it."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
LEASE, NAME = 9, "demo"
# A short lease, so that a job hears within three seconds that it was cancelled; a short poll, so
# that retries come when they are due; a short grace, so that nobody waits long after Ctrl-C.
OPTIONS = ("--lease", str(LEASE), "--poll", "0.2", "--grace", "2", "--name", NAME)
PATIENCE = 10
"""seconds to stop in: more than the grace, and what a worker wants after it"""
STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHOWN = shlex.join(("python", "manage.py", "runworker", *OPTIONS))


class Stopped(BaseException):
    """A signal tells the demo to stop; no `except Exception` is in its way."""

    def __init__(self, number):
        self.code = 128 + number
        super().__init__(signal.Signals(number).name)


class WorkerTrouble(Exception):
    """The worker does not do what the demo is about."""


def stop_on_signals():
    """Let Ctrl-C and its kin raise `Stopped`, once: what cleans up afterwards is left alone."""

    def stop(number, _frame):
        for each in STOP:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for each in STOP:
        signal.signal(each, stop)


@contextmanager
def held_back():
    """Let signals wait until this is over: half of it would be worse than a moment's delay."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerProcess:
    """One worker, from `start` to `stop`, which may be called at any time."""

    def __init__(self):
        self._process = None
        self._log = None
        self._said = []

    def start(self, environment=MappingProxyType({})):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open until stop()
        warnings = (f"-W{option}" for option in sys.warnoptions)
        command = [sys.executable, *warnings, str(MANAGE), "runworker", *OPTIONS]
        # The worker inherits this, and takes signals once it can stop in good order.
        with held_back():
            self._process = subprocess.Popen(  # noqa: S603  this very project's own command
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                # Ctrl-C in a terminal reaches the demo alone, which passes it on once: a worker
                # that hears it twice leaves at once, with jobs in its hands.
                process_group=0,
            )

    def stop(self):
        """Stop it if it runs, and wait for its end; return its exit code."""
        with held_back():
            if self._process is None:
                return None
            if self._process.returncode is None:
                self._process.terminate()
                self._await_end()
            if not self._log.closed:
                self._said = self._last_lines()
                self._log.close()
        return self._process.returncode

    def _await_end(self):
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            # Its isolated children see that it is gone, and end by themselves.
            self._process.kill()
            self._process.wait()

    @property
    def pid(self):
        return self._process.pid if self._process else None

    def require_alive(self):
        code = self._process.poll()
        if code is not None:
            raise WorkerTrouble(self.blame(f"The worker ended too early, with exit code {code}."))

    def blame(self, text):
        """Add to a complaint what the worker said last."""
        lines = self._said if self._log.closed else self._last_lines()
        return "\n    ".join([f"{text} The worker's last lines:", *(lines or ["(none)"])])

    def _last_lines(self):
        # Beside the file's position, which is where the worker writes.
        end = os.fstat(self._log.fileno()).st_size
        said = os.pread(self._log.fileno(), 10_000, max(0, end - 10_000))
        return said.decode(errors="replace").splitlines()[-20:]
