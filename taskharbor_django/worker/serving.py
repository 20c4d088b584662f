"""
How an isolated child serves jobs: one after another, in its main thread.

A second thread listens to the worker. It takes cancels and answers while a handler runs, sends its
progress, and notices when the worker is gone: then it stops the handler, and what is known about
the job is settled from here. The job is given back without a loss, or acked if it was just done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from types import FrameType

from django.db import Error as DatabaseTrouble

from ..clock import DatabaseClock, steady
from ..exceptions import JobLocked
from ..failpoints import reach
from ..lifecycle import OutcomeKind
from ..operations import decide
from ..operations.settle import settle
from ..operations.storage import driver_for
from ..operations.telling import Settled, tell_settled
from ..values import Outcome, Rejection, Reservation
from . import connections
from .child_run import Run
from .holdings import Running
from .messages import Channel, ChannelClosed, Message, read_reservation
from .trouble import disconnect

logger = logging.getLogger(__name__)

LOOK_EACH = 0.25
LOCKED_PAUSE = 0.05
PATIENCE = 2.0  # less than the guard has
FAULT = 70  # exit code of a child that cannot go on, by no fault of a handler


class Serving:
    """The jobs of one child, and what it says about them."""

    def __init__(self, channel: Channel, using: str) -> None:
        self._channel = channel
        self._using = using
        self._clock = DatabaseClock(driver_for(using).now)
        self._jobs: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._run: Run | None = None
        self._unsettled: Outcome | None = None
        self._last: Reservation | None = None
        self._orphaned = False

    def serve(self) -> None:
        """Serve until told to end, or until the worker is gone."""
        signal.signal(signal.SIGTERM, self._on_signal)
        threading.Thread(target=self._listen, name="taskharbor-channel", daemon=True).start()
        while (message := self._jobs.get()) is not None:
            self._serve_one(message)
        if self._orphaned and self._unsettled is not None:
            self._settle(self._unsettled)

    # -- in the main thread ----------------------------------------------------------------------

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._run is not None:
            self._run.stretch.on_signal()

    def _serve_one(self, message: Message) -> None:
        self._clock.learn(message["now"], message["steady"], message["steady"])
        reservation = read_reservation(message)
        self._last = reservation
        self._unsettled = decide.outcome(OutcomeKind.RELEASE, reservation)
        if self._orphaned:
            return
        run = self._run = Run(self._channel, message["number"], Running(reservation), self._using)
        outcome = run.call_safely(message["started_at"], self._clock)
        self._run = None
        # Kept until the next job comes: the worker may be gone before it has settled this.
        self._unsettled = None if run.running.settled else outcome
        _flush()
        reach("child.ran")
        with contextlib.suppress(ChannelClosed):
            run.end(outcome)

    # -- in the listening thread -----------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._hear_all()
        except ChannelClosed:
            self._release()
        except BaseException:  # noqa: BLE001  a child that does not listen must not live on
            traceback.print_exc()
            os._exit(FAULT)

    def _hear_all(self) -> None:
        while True:
            message = self._channel.receive(LOOK_EACH)
            run = self._run
            if message is None:
                if run is not None:
                    run.tell_progress()
            elif message["kind"] == "job":
                self._jobs.put(message)
            elif message["kind"] == "end":
                self._jobs.put(None)
                return
            elif run is not None and message["number"] == run.number:
                run.hear(message)

    def _release(self) -> None:
        """
        The worker is gone: stop the handler, and let the main thread settle and leave.

        Where that takes too long (a handler that swallows every exception, a thread that it left
        running) the job is given back from here, and the process ends under its handler's feet.
        """
        self._orphaned = True
        self._jobs.put(None)
        until = steady() + PATIENCE
        while steady() < until:
            if (run := self._run) is not None:
                run.stop()
            time.sleep(LOOK_EACH)
        if (run := self._run) is not None:
            self._settle(run.released())
        os._exit(1)

    def _settle(self, outcome: Outcome) -> None:
        """Settle it from here; a row that others hold is tried again until the process is ended."""
        logger.warning("job %s: the worker is gone; settling its %s", outcome.job_id, outcome.kind)
        with contextlib.suppress(Exception):  # whatever the handler has left of its connection
            connections.clean()
        disconnect(self._using)
        try:
            while any(isinstance(it.error, JobLocked) for it in self._settled(outcome)):
                time.sleep(LOCKED_PAUSE)
        except DatabaseTrouble as error:
            text = " ".join(str(error).split())
            logger.warning(
                "job %s could not be settled; its lease will expire: %s", outcome.job_id, text
            )

    def _settled(self, outcome: Outcome) -> list[Rejection]:
        driver = driver_for(self._using)
        now = self._clock.now()
        rejections = settle(driver, [outcome], now=now)
        if not rejections and self._last is not None:
            tell_settled(driver, [Settled(self._last, outcome)], now=now)
        return rejections


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or a handler's own stand-in
            stream.flush()
