"""
How an isolated child serves jobs: one after another, in its main thread.

A second thread listens to the worker. It takes cancels and answers while a handler runs, sends its
progress, and notices when the worker is gone: then it stops the handler, and what is known about
the job is settled from here. The job is given back without a loss, or acked if it was just done.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import FrameType
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error as DatabaseTrouble

from ..clock import DatabaseClock, steady
from ..context import JobContext
from ..exceptions import CancelRequested, JobLocked, LeaseMismatch
from ..failpoints import reach
from ..lifecycle import OutcomeKind
from ..operations import additions, decide
from ..operations.settle import settle
from ..operations.storage import driver_for
from ..operations.telling import Settled, tell_settled
from ..payload import sanitise_text
from ..tasks import Task
from ..values import Outcome, Rejection, Reservation
from . import connections, executor, reports
from .holdings import Running
from .interrupts import InterruptibleBySignal
from .messages import Channel, ChannelClosed, Message, outcome_facts, read_error, read_reservation
from .pools import SHUTDOWN, begin, fault, run_here
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
        outcome = run.call_safely(message["started_at"], self._using, self._clock)
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
            self._give_back()
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

    def _give_back(self) -> None:
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
            self._settle(run.given_back())
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


class Run:
    """One job while it runs here; what stands behind its context."""

    def __init__(self, channel: Channel, number: int, running: Running, using: str) -> None:
        self.number = number
        self.running = running
        self._using = using
        self.stretch = InterruptibleBySignal()
        self._channel = channel
        self._over = False
        self._told: tuple[int, str] | None = None
        self._cancel_coroutine: Callable[[], object] | None = None
        self._questions = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[Message]] = {}

    @property
    def _reservation(self) -> Reservation:
        return self.running.reservation

    def call_safely(self, started_at: Any, using: str, clock: DatabaseClock) -> Outcome:
        try:
            return self.call(started_at, using, clock)
        except BaseException as error:  # noqa: BLE001  as in the threads of a worker
            return fault(error, self.running, clock.now())

    def call(self, started_at: Any, using: str, clock: DatabaseClock) -> Outcome:
        """Run the handler as a pool of the worker would."""
        prepared = executor.prepare(self._reservation, started_at)
        if isinstance(prepared, Outcome):
            return prepared
        begin(self.running, prepared, self)
        if prepared.task.is_async:
            prepared = replace(prepared, task=self._awaited(prepared.task))
        connections.doubt()
        return run_here(self.running, prepared, using=using, clock=clock, stretch=self.stretch)

    def _awaited(self, task: Task[Any, Any]) -> Task[Any, Any]:
        """The task with a function that runs its coroutine to the end."""

        async def clean_and_call(*args: Any, **kwargs: Any) -> Any:
            loop, current = asyncio.get_running_loop(), asyncio.current_task()
            if current is not None:
                self._cancel_coroutine = lambda: loop.call_soon_threadsafe(current.cancel)
            # Async database access goes through one thread of asgiref's, as long as this lives.
            await sync_to_async(connections.doubt)()
            try:
                return await task.function(*args, **kwargs)
            finally:
                await sync_to_async(connections.clean)()

        def function(*args: Any, **kwargs: Any) -> Any:
            return asyncio.run(clean_and_call(*args, **kwargs))

        return replace(task, function=function)

    def end(self, outcome: Outcome) -> None:
        """Tell what became of it; what threads of the handler say later is not said any more."""
        self.tell_progress()
        self._over = True
        facts = {"outcome": outcome_facts(outcome), "settled": self.running.settled}
        self._channel.send({"kind": "outcome", "number": self.number, **facts})

    def stop(self) -> None:
        """Make the handler stop, wherever it is; answer what it asked and nobody will answer."""
        self.running.cancel(SHUTDOWN, force=True)
        for answers in list(self._answers.values()):
            answers.put({"error": {"class": "CancelRequested", "text": "The worker is gone."}})

    def given_back(self) -> Outcome:
        started_at = self.running.started_at
        return decide.outcome(OutcomeKind.RELEASE, self._reservation, started_at=started_at)

    # -- what the worker says --------------------------------------------------------------------

    def hear(self, message: Message) -> None:
        if message["kind"] == "cancel":
            self.running.cancel(message["why"], force=False)
            if self._cancel_coroutine is not None:
                with contextlib.suppress(RuntimeError):  # its loop has just been closed
                    self._cancel_coroutine()
        elif (answers := self._answers.get(message["question"])) is not None:
            answers.put(message)

    # -- what the context asks for ---------------------------------------------------------------

    def progressed(self, context: JobContext) -> None:
        """Nothing yet: the listening thread sends what is new four times a second."""

    def tell_progress(self) -> None:
        context = self.running.context
        progress = None if context is None else context.progress
        if progress is None or progress == self._told:
            return
        self._told, (percent, text) = progress, progress
        text = sanitise_text(text, reports.MESSAGE_MAX_CHARS)
        facts = {"percent": percent, "text": text}
        self._channel.send({"kind": "progress", "number": self.number, **facts})

    def load_checkpoint(self, data: bytes) -> Any:
        return reports.decode_checkpoint(data)

    def save_checkpoint(self, context: JobContext, value: Any) -> None:
        data = reports.encode_checkpoint(value)
        self._ask("checkpoint", data=data)
        reports.keep_checkpoint(context, data)

    def add(self, context: JobContext, part: Any, key: str | None) -> Any:
        asked = reports.addition_of(context, part, key)
        if not reports.kept_for_the_ack(context, asked):
            # In a thread of its own, whose connection is not in the handler's transaction.
            with ThreadPoolExecutor(1) as apart:
                apart.submit(self._add, asked).result()
        return additions.handles(asked, self._using)

    def _add(self, asked: additions.Addition) -> None:
        try:
            additions.add(driver_for(self._using), self._reservation, asked)
        finally:
            disconnect(self._using)

    def previous_attempt_id(self, context: JobContext) -> int | None:  # noqa: ARG002  as the worker's own has it
        known: int | None = self._ask("previous_attempt")
        return known

    def _ask(self, kind: str, **facts: Any) -> Any:
        if self._over:
            raise LeaseMismatch("The job has ended; it has no lease any more.")
        question = next(self._questions)
        answers = self._answers[question] = queue.SimpleQueue()
        asked = {"kind": kind, "number": self.number, "question": question, **facts}
        try:
            self._channel.send(asked)
            answer = answers.get()
        except ChannelClosed:
            # Said here, too: the listening thread may not have noticed yet, and without a reason
            # of the worker's this would end the job as if somebody had cancelled it.
            self.running.cancel(SHUTDOWN, force=False)
            raise CancelRequested("The worker is gone.") from None
        finally:
            del self._answers[question]
        if "error" in answer:
            raise read_error(answer["error"])
        return answer["value"]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or a handler's own stand-in
            stream.flush()
