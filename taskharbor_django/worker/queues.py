"""Which queues to look into, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import uniform

from ..clock import steady
from ..drivers import DatabaseDriver
from .options import ALL_QUEUES

LOOK_EACH = 1.0


class Queues:
    """The named queues in strict order, or all there are, taking turns."""

    def __init__(self, driver: DatabaseDriver, names: Sequence[str]) -> None:
        self._driver = driver
        self._names = list(names)
        self._all = ALL_QUEUES in names
        self._known: list[str] = []
        self._looked = 0.0
        self._turn = 0
        self._second_look: float | None = None
        self._called: Collection[str] = ()
        self._idle = False  # nothing was found anywhere
        self.narrowed = False  # the last look was only into queues that were called

    def in_turn(self) -> list[str]:
        if not self._all:
            return self._names
        called, self._called = self._called, ()
        # Only out of rest, and never twice: calls for one queue must not keep others waiting.
        self.narrowed, self._idle = bool(called) and self._idle, False
        if self.narrowed:
            return sorted(called)
        if not self._known or steady() - self._looked > LOOK_EACH:
            self._known, self._looked = self._driver.ready_queues(), steady()
        names = sorted({*self._known, *called})
        self._turn = (self._turn + 1) % max(1, len(names))
        # With nothing ready anywhere, one reserve still promotes and reclaims what is due.
        return (names[self._turn :] + names[: self._turn]) or ["default"]

    def woken(self, called: Collection[str], second_look: float) -> None:
        """Somebody enqueued, to these queues if known; all are looked at anew a moment later."""
        self._called = called
        self._second_look = second_look
        if self._idle or not called:
            self._looked = 0.0

    def idle_pause(self, poll: float) -> float:
        """How long to wait after a look that found nothing: the poll at most, by chance less."""
        self._idle = not self.narrowed
        pause, self._second_look = self._second_look, None
        if pause is not None:
            return pause
        return poll * uniform(0.75, 1.0)  # noqa: S311  jitter, not a secret
