"""
One job in an isolated child: its handler, and what its context asks of the worker.

The handler runs in the main thread; the listening one hands in what the worker says.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from asgiref.sync import sync_to_async

from ..clock import DatabaseClock
from ..context import JobContext
from ..exceptions import CancelRequested, LeaseMismatch
from ..lifecycle import OutcomeKind
from ..operations import additions, decide
from ..operations.storage import driver_for
from ..payload import sanitise_text
from ..tasks import Task
from ..values import Outcome, Reservation
from . import connections, executor, reports
from .holdings import Running
from .interrupts import InterruptibleBySignal
from .messages import Channel, ChannelClosed, Message, outcome_facts, read_error
from .pools import SHUTDOWN, begin, fault, run_here
from .trouble import disconnect


class Run:
    """What stands behind the context of a job that runs in a child."""

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

    def call_safely(self, started_at: Any, clock: DatabaseClock) -> Outcome:
        try:
            return self.call(started_at, clock)
        except BaseException as error:  # noqa: BLE001  as in the threads of a worker
            return fault(error, self.running, clock.now())

    def call(self, started_at: Any, clock: DatabaseClock) -> Outcome:
        """Run the handler as a pool of the worker would."""
        prepared = executor.prepare(self._reservation, started_at)
        if isinstance(prepared, Outcome):
            return prepared
        begin(self.running, prepared, self)
        if prepared.task.is_async:
            prepared = replace(prepared, task=self._awaited(prepared.task))
        connections.doubt()
        return run_here(
            self.running, prepared, using=self._using, clock=clock, stretch=self.stretch
        )

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

    def released(self) -> Outcome:
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
