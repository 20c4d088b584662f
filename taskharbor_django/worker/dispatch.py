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
        self._known: dict[str, bool] = {}

    def free(self, *, sated: bool) -> int:
        """
        Slots for which to reserve; those of coroutines as far as coroutines come at all.

        When what came last had to be given back, it was because threads are taken.
        """
        if sated:
            return self._threads.free
        return self._threads.free + round(self._coroutines.free * self._share)

    @property
    def slots(self) -> int:
        """How many jobs run at once, of the kinds that come."""
        return self._threads.size + round(self._coroutines.size * self._share)

    @property
    def waiting(self) -> int:
        return len(self._threads.line) + len(self._coroutines.line)

    def take_back(self, waited: float = 0.0) -> list[Running]:
        """Take out what no slot was free for, where the first has waited for so long."""
        pools = self._threads, self._coroutines
        late = [pool for pool in pools if pool.line.oldest_wait() >= waited]
        return [running for pool in late for running in pool.take_back()]

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
        if job.lease_losses or self._isolate_all:
            return False
        known = self._known.get(job.task)
        if known is None:
            if job.task not in registry:
                return False
            task = registry.get(job.task)
            known = self._known[job.task] = task.is_async and task.isolation is None
        return known
