"""
Async handlers: one event loop for the process, in a thread of its own.

A handler that does not await anything lets no other run, nor can it be cancelled. The watch asks
the loop for signs of life; a loop that gives none when the time of a job is up is left behind, and
a new process goes on with what it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar, copy_context

from asgiref.sync import sync_to_async
from django.db import connections as django_connections
from django.db.backends.signals import connection_created

from .. import signals
from ..clock import Clock, steady
from ..context import Runtime, current
from ..values import Outcome
from . import connections, executor
from .executor import Prepared
from .holdings import Running
from .inputs import Inputs, take
from .pools import OnFinished, begin, end_of, ended_before, fault, hand_over, not_ours, told
from .trouble import tell_fault
from .waiting import WaitingLine

logger = logging.getLogger(__name__)

# True for what a handler here does, also in the thread that asgiref takes its queries to; other
# connections of the process are none of this pool's.
_by_coroutine: ContextVar[bool] = ContextVar("taskharbor_by_coroutine", default=False)


class AsyncPool:
    def __init__(
        self,
        size: int,
        *,
        runtime: Runtime,
        clock: Clock,
        on_finished: OnFinished,
        inputs: Inputs,
    ) -> None:
        self.size = size
        self.line = WaitingLine()
        self.busy: set[Running] = set()
        self._drawing = threading.Lock()
        self.blocked = False
        self._tasks: dict[asyncio.Task[None], Running] = {}
        self._asked: float | None = None
        self._closing = False
        self._runtime = runtime
        self._clock = clock
        self._on_finished = on_finished
        self._inputs = inputs
        self._used_database = False
        self._doubtful = False  # nothing has run for a while, it may be

    @property
    def free(self) -> int:
        """Slots that have nothing to do and nothing waiting for them."""
        return self.size - len(self.busy) - len(self.line)

    @property
    def stuck(self) -> set[Running]:
        """What cannot end any more, and is held until the process does."""
        return self.busy if self.blocked else set()

    def start(self) -> None:
        connection_created.connect(
            self._note_use, dispatch_uid=f"taskharbor-{id(self)}", weak=False
        )
        # Made only now: a worker that never came to run has nothing to close.
        self._context = copy_context()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="taskharbor-async", daemon=True)
        self._thread.start()

    def put(self, reserved: Iterable[Running]) -> None:
        self._doubtful = self._doubtful or not self.busy
        self.line.extend(reserved)
        self._loop.call_soon_threadsafe(self._begin_waiting)

    def take_back(self) -> list[Running]:
        """Take out of the line everything that has not started; the rest is busy."""
        with self._drawing:
            return self.line.take_back()

    def close(self, timeout: float) -> bool:
        """Stop the loop; False when handlers were still at work after the timeout."""
        connection_created.disconnect(dispatch_uid=f"taskharbor-{id(self)}")
        self._closing = True
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end()))
        self._thread.join(0.0 if self.blocked else timeout)
        if self._thread.is_alive():
            return False
        self._loop.close()
        return True

    # -- from the watch --------------------------------------------------------------------------

    def silence(self) -> float:
        """Ask the loop for a sign of life; return for how long none has come."""
        asked = self._asked
        if asked is None:
            asked = self._asked = steady()
            self._call(self._answer)
        return steady() - asked

    def blocker(self) -> Running | None:
        """The job whose handler the loop is running at this moment, if it is one."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._tasks.get(task)

    def leave_behind(self, running: Running) -> bool:
        """Give up a job that does not end; False when it just did."""
        if not self._part_from(running):
            return False
        self._call(self._begin_waiting)
        return True

    def _part_from(self, running: Running) -> bool:
        """Take the job from its slot; False when the other side, watch or loop, was first."""
        try:
            self.busy.remove(running)
        except KeyError:
            return False
        return True

    # -- in the loop's thread --------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001  others run there, too
                # SystemExit in a task that a handler made: asyncio raises it here, too.
                tell_fault(logger, error, "the event loop was ended by a handler, and goes on")

    def _answer(self) -> None:
        self._asked = None
        self.blocked = False

    def _note_use(self, **_: object) -> None:
        if _by_coroutine.get():
            self._used_database = True

    def _begin_waiting(self) -> None:
        while (running := self._draw()) is not None:
            # Not that of the job whose end makes room: its variables are none of the next one's.
            task = self._loop.create_task(self._run(running), context=self._context.copy())
            self._tasks[task] = running
            task.add_done_callback(self._ended)
            running.stop = self._stopper(task)

    def _draw(self) -> Running | None:
        with self._drawing:  # it is in the line or busy, for whoever asks
            if not self.line or len(self.busy) >= self.size:
                return None
            running = self.line.popleft()
            self.busy.add(running)
            return running

    def _stopper(self, task: asyncio.Task[None]) -> object:
        return lambda _why, _force: self._call(task.cancel)

    def _call(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            self._loop.call_soon_threadsafe(function)

    async def _run(self, running: Running) -> None:
        try:
            outcome = await self._outcome(running)
        except BaseException as error:  # noqa: BLE001  its job must not be held for ever
            outcome = fault(error, running, self._clock.now())
        if not self._finish(running, outcome):
            return  # left behind: the outcome was decided without it
        # Now, not when the next job comes: an open transaction holds locks while nothing runs.
        with contextlib.suppress(asyncio.CancelledError):  # a stop that came too late
            await self._clean()

    def _finish(self, running: Running, outcome: Outcome) -> bool:
        if not self._part_from(running):
            return False
        hand_over(self._on_finished, running, outcome)
        self._begin_waiting()
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        running = self._tasks.pop(task)
        if running in self.busy:
            # A task that is cancelled before its first step never enters `_run`.
            self._finish(running, _not_begun(running))

    async def _clean(self) -> None:
        # Async database access goes through one thread of asgiref's and its one connection, which
        # others may be in the midst of using.
        if self._used_database:
            await sync_to_async(connections.undo if self.busy else connections.clean)()

    async def _end(self) -> None:
        if self._used_database:
            await sync_to_async(django_connections.close_all)()
        self._loop.stop()

    async def _outcome(self, running: Running) -> Outcome:
        if running.reservation.job.input and (unread := await self._take_inputs(running)):
            return unread
        if (ended := ended_before(running, steady())) is not None:
            return ended
        prepared = executor.prepare(running.reservation, self._clock.now())
        if isinstance(prepared, Outcome):
            return prepared
        begin(running, prepared, self._runtime)
        current.set(running.context)
        _by_coroutine.set(True)
        if signals.started.wanted:
            signals.tell_started(prepared.task, running.context)
        try:
            doubtful, self._doubtful = self._doubtful, False
            if doubtful and self._used_database:
                await sync_to_async(connections.doubt)()
            value = await executor.call(prepared, running.context)
        except BaseException as error:  # noqa: BLE001  CancelledError and SystemExit are the job's
            outcome = self._failed(error, running, prepared)
        else:
            now = self._clock.now()
            outcome = executor.finished(prepared, running.reservation, value, now)
        return told(outcome, running, prepared)

    async def _take_inputs(self, running: Running) -> Outcome | None:
        reading = self._inputs.read(running.reservation)
        try:
            with contextlib.suppress(Exception):  # `take` says what it means
                await asyncio.wrap_future(reading)
        except asyncio.CancelledError:
            return _not_begun(running)
        return take(running, reading, self._clock)

    def _failed(self, error: BaseException, running: Running, prepared: Prepared) -> Outcome:
        return end_of(error, running, prepared, self._clock.now())


def _not_begun(running: Running) -> Outcome:
    """What becomes of a job whose task was cancelled before its handler was called."""
    return ended_before(running, steady()) or not_ours(running)
