"""
What tells a process to stop: SIGTERM, SIGINT, or the end of its supervisor.

Signals are heard by a thread, through the byte that the interpreter writes for each of them. A
handler in the main thread would deadlock when it interrupts the very lock that it needs to wake the
loop, and would come late while that thread waits inside a database client.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, Protocol, Self

from ..clock import steady

logger = logging.getLogger(__name__)

STOP = (signal.SIGTERM, signal.SIGINT)
STUCK = 4  # exit code of a process that did not come to its end in time
MARGIN = 30.0  # what a worker may need after its grace: cancelling, settling, releasing
ORPHANED = "its supervisor stops, or is gone"

_END_OF_LISTENING = b"\0"  # no signal has this number


class Stoppable(Protocol):
    ready: bool

    def stop(self, why: str) -> None: ...


class StopSignals:
    """
    While entered: the first signal stops the target, the second ends the process at once.

    So does running out of patience after the first. Before the target is ready there is nothing to
    finish, and one signal is enough: `at_start` is called, and the process ends.
    """

    def __init__(
        self,
        target: Stoppable,
        *,
        patience: float,
        at_once: Callable[[], None] = lambda: None,
        at_start: Callable[[], None] = lambda: None,
        supervisor: int | None = None,
    ) -> None:
        self._target = target
        self._patience = patience
        self._at_once = at_once
        self._at_start = at_start
        self._supervisor = supervisor
        self._signalled = False
        self._deadline: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._heard, self._written = socket.socketpair()
        self._written.setblocking(False)
        self._thread = threading.Thread(target=self._listen, name="taskharbor-signals", daemon=True)
        self._thread.start()
        # In another thread there are no signals to catch: whoever called is in charge of them.
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(
                self._written.fileno(), warn_on_full_buffer=False
            )
            self._before = {number: signal.signal(number, self._interrupt) for number in STOP}
            # A process that started this one anew kept signals for it.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        self._written.send(_END_OF_LISTENING)
        self._thread.join()
        self._heard.close()
        self._written.close()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """In the main thread, which may be waiting for a database that does not answer."""
        if not self._target.ready:
            self._at_start()
            raise SystemExit(0)

    def _listen(self) -> None:
        sources: list[Any] = [self._heard]
        if self._supervisor is not None:
            sources.append(self._supervisor)
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - steady())
            heard = select.select(sources, [], [], left)[0]
            if not heard:
                self._run_out()
            if self._supervisor in heard:
                sources.remove(self._supervisor)
                self._orphaned()
            if self._heard in heard and not self._take(self._heard.recv(64)):
                return

    def _take(self, numbers: bytes) -> bool:
        """React to signals, given by their numbers; False when there will be none."""
        for number in numbers:
            if number in STOP:
                self._take_one(signal.Signals(number))
        return _END_OF_LISTENING not in numbers

    def _take_one(self, number: signal.Signals) -> None:
        if self._signalled:
            self._leave(128 + number)
        self._signalled = True
        self._stop(number.name)

    def _orphaned(self) -> None:
        """The supervisor's end of the pipe is closed; it never writes."""
        self._stop(ORPHANED)  # before the look, or it might be ready, and at work, after it
        if not self._target.ready:
            self._at_start()
            self._leave(0)

    def _stop(self, why: str) -> None:
        self._deadline = self._deadline or steady() + self._patience
        self._target.stop(why)

    def _run_out(self) -> NoReturn:
        logger.critical("not stopped %.0f s after it was told to: leaving at once", self._patience)
        self._leave(STUCK)

    def _leave(self, code: int) -> NoReturn:
        self._at_once()
        os._exit(code)
