"""Async handlers: one event loop for the process, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from asgiref.sync import sync_to_async
from django.db.backends.signals import connection_created

from ..clock import Clock
from ..context import Runtime, current
from ..values import Outcome
from . import connections, executor
from .executor import Prepared
from .holdings import Running
from .pools import OnFinished, begin, end_of


class AsyncPool:
    def __init__(
        self, size: int, *, runtime: Runtime, clock: Clock, on_finished: OnFinished
    ) -> None:
        self.size = size
        self.busy: set[Running] = set()
        self._runtime = runtime
        self._clock = clock
        self._on_finished = on_finished
        self._used_database = False

    @property
    def free(self) -> int:
        return self.size - len(self.busy)

    def start(self) -> None:
        connection_created.connect(
            self._note_use, dispatch_uid=f"taskharbor-{id(self)}", weak=False
        )
        # Made only now: a worker that never came to run has nothing to close.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="taskharbor-async", daemon=True
        )
        self._thread.start()

    def put(self, reserved: Iterable[Running]) -> None:
        batch = list(reserved)
        self.busy.update(batch)
        self._loop.call_soon_threadsafe(self._begin_all, batch)

    def close(self, timeout: float) -> bool:
        """Stop the loop; False when handlers were still at work after the timeout."""
        connection_created.disconnect(dispatch_uid=f"taskharbor-{id(self)}")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self._loop.close()
        return True

    def _note_use(self, **_: object) -> None:
        # Async database access goes through one thread of asgiref's; its connection outlives jobs.
        self._used_database = True

    def _begin_all(self, batch: list[Running]) -> None:
        for running in batch:
            task = self._loop.create_task(self._run(running))
            running.stop = self._stopper(task)

    def _stopper(self, task: asyncio.Task[None]) -> object:
        return lambda _why, _force: self._loop.call_soon_threadsafe(task.cancel)

    async def _run(self, running: Running) -> None:
        try:
            outcome = await self._outcome(running)
        finally:
            self.busy.discard(running)
        self._on_finished(running, outcome)

    async def _outcome(self, running: Running) -> Outcome:
        prepared = executor.prepare(running.reservation, self._clock.now())
        if isinstance(prepared, Outcome):
            return prepared
        begin(running, prepared, self._runtime)
        if self._used_database:
            await sync_to_async(connections.clean)()
        current.set(running.context)  # each asyncio task has a context of its own
        try:
            value = await executor.call(prepared, running.context)
        except BaseException as error:  # noqa: BLE001  CancelledError and SystemExit are the job's
            return self._failed(error, running, prepared)
        return executor.finished(prepared, running.reservation, value, self._clock.now())

    def _failed(self, error: BaseException, running: Running, prepared: Prepared) -> Outcome:
        return end_of(error, running, prepared, self._clock.now())
