"""Which pool a reservation goes to, and how much both of them can take."""

from __future__ import annotations

from collections.abc import Sequence

from ..tasks import registry
from .async_pool import AsyncPool
from .holdings import Running
from .pools import ThreadPool

# How much the latest reserve counts in the share of coroutines among jobs.
LATEST = 0.3


class Dispatch:
    def __init__(self, threads: ThreadPool, coroutines: AsyncPool, *, isolate_all: bool) -> None:
        self._threads = threads
        self._coroutines = coroutines
        self._isolate_all = isolate_all
        self._share = 0.0

    def free(self, *, sated: bool) -> int:
        """
        Slots for which to reserve; those of coroutines as far as coroutines come at all.

        When what came last had to be given back, it was because threads are taken.
        """
        if sated:
            return self._threads.free
        return self._threads.free + round(self._coroutines.free * self._share)

    def put(self, taken_on: Sequence[Running]) -> None:
        if not taken_on:
            return
        coroutines: list[Running] = []
        others: list[Running] = []
        for running in taken_on:
            (coroutines if self._is_async(running) else others).append(running)
        self._share += LATEST * (len(coroutines) / len(taken_on) - self._share)
        if coroutines:
            self._coroutines.put(coroutines)
        if others:
            self._threads.put(others)

    def _is_async(self, running: Running) -> bool:
        job = running.reservation.job
        if job.lease_losses or self._isolate_all or job.task not in registry:
            return False
        task = registry.get(job.task)
        return task.is_async and task.isolation is None
