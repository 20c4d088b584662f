"""How many jobs to ask for: the free slots, and more while jobs are short and the queue is deep."""

from __future__ import annotations

FIRST_BATCH, LARGEST_BATCH = 50, 500
REMEMBERED = 64
# No more is held ahead than is begun within this; nothing, where a slot would not begin two.
BEGUN_WITHIN = 0.3
SHORT_RUN = BEGUN_WITHIN / 2


class Appetite:
    """Watches how long runs take and whether claims come back full."""

    def __init__(self, most: int | None = None, slots: int = 1) -> None:
        self._most = most
        self.slots = slots
        self._batch = FIRST_BATCH
        self._runs: list[float] = []
        self._median = 0.0
        self.sated = False

    def ran(self, seconds: float) -> None:
        self._runs.append(seconds)
        if len(self._runs) >= REMEMBERED:
            # Other threads are here as well, and may just have begun anew.
            runs, self._runs = sorted(self._runs), []
            if len(runs) >= REMEMBERED:
                self._median = runs[REMEMBERED // 2]

    def waited_too_long(self) -> None:
        """What was prefetched had to be given back: none of it until a slot frees."""
        self.sated = True
        self._batch = FIRST_BATCH

    def slot_freed(self) -> None:
        self.sated = False

    def claimed(self, asked: int, got: int) -> None:
        """Grow while claims come back full."""
        if self._is_short():
            full = got >= asked
            self._batch = min(self._batch * 2, LARGEST_BATCH) if full else FIRST_BATCH

    def wants(self, free: int, waiting: int) -> int:
        """How many to ask for, given free slots (negative when some wait) and how many wait."""
        ahead = self._prefetch()
        # Asked for in halves, so that the line never runs dry while the next claim is on its way.
        if ahead and waiting <= ahead // 2:
            return max(free, 0) + min(ahead - waiting, self._batch)
        return max(free, 0)

    def _prefetch(self) -> int:
        median = self._median
        if self.sated or (self._most == 0) or not 0.0 < median < SHORT_RUN:
            return 0
        # Of a deep queue two batches: the next is claimed while threads work off the one before.
        # With one they took turns, for a loop among busy threads gets to ask late; no-op jobs are
        # drained 1.3 times as fast.
        ahead = 2 * self._batch if self._batch > FIRST_BATCH else FIRST_BATCH
        # No more than is begun within a part of the second after which it would be given back.
        ahead = min(ahead, int(self.slots * BEGUN_WITHIN / median))
        return ahead if self._most is None else min(ahead, self._most)

    def _is_short(self) -> bool:
        return 0.0 < self._median < SHORT_RUN
