"""Reserve from the queues in their turn, and outlive whatever the database does meanwhile."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

from ..clock import Clock, steady
from ..drivers import DatabaseDriver
from ..drivers.database import claim_within
from ..values import Reservation
from .lines import Lines
from .options import WorkerOptions
from .queues import Queues
from .trouble import Trouble, disconnect
from .watermarks import Watermarks

logger = logging.getLogger(__name__)

SWEEP_EACH = 60.0
BOUNDED_PAUSE = 0.05  # a worker that spares slow searches does not ask without a pause

OnTaken = Callable[[Sequence[Reservation], float], None]


class Reserving:
    """The loop's own part of the database work, on the loop's connection."""

    def __init__(
        self,
        driver: DatabaseDriver,
        clock: Clock,
        lines: Lines,
        options: WorkerOptions,
        *,
        on_taken: OnTaken,
        on_lost_reply: Callable[[UUID], None],
        on_back: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._lines = lines
        self._options = options
        self._on_taken = on_taken
        self._on_lost_reply = on_lost_reply
        self._on_back = on_back
        self._watermarks = Watermarks()
        self._late = False
        self._swept = steady()
        driver.on_reclaim = _tell_reclaimed
        self.queues = Queues(driver, options.queues)
        self.trouble = Trouble("reserve")
        self.pause = 0.0  # how long to leave the database alone, after trouble

    @property
    def bounded(self) -> bool:
        """Whether the last turn did not look everywhere."""
        return self._watermarks.bounded or self._late

    @property
    def bounded_pause(self) -> float:
        """How long to wait after a bounded turn that found nothing."""
        return BOUNDED_PAUSE if self._watermarks.are_kept else 0.0

    def reserve(self, wanted: int) -> int | None:
        """Reserve so many at most; return how many, None when the database cannot be used."""
        if left := self.trouble.pause.left:  # others call the loop, too, and do not know of it
            self.pause = left
            return None
        self._watermarks.bounded = self._late = False
        try:
            with self._lines.waiting():
                got = self._reserve_in_turn(wanted)
        except Exception as error:  # noqa: BLE001  a worker outlives whatever it is
            disconnect(self._driver.using)
            self._watermarks.forget()
            self.pause = self.trouble.began(error)
            return None
        if self.trouble.ended():
            self._on_back()
        return got

    def _reserve_in_turn(self, wanted: int) -> int:
        self._sweep()
        got = 0
        for queue in self.queues.in_turn():
            got += self._reserve_from(queue, wanted - got)
            if got >= wanted:
                break
        return got

    def _reserve_from(self, queue: str, limit: int) -> int:
        options, token, sent = self._options, uuid4(), steady()
        try:
            reserved = self._driver.reserve(
                queue,
                now=self._clock.now(),
                lease_for=options.lease,
                limit=limit,
                worker=options.id,
                token=token,
                max_lease_losses=options.max_lease_losses,
                floor=self._watermarks.floor(queue),
            )
        except Exception:
            self._on_lost_reply(token)
            raise
        # Before anything else, which may fail: what is taken has to be heartbeated.
        self._on_taken(reserved, sent + options.lease.total_seconds())
        if not reserved and steady() - sent > claim_within(options.lease):
            self._late = True  # it has promoted and reclaimed, and may not have claimed
        self._watermarks.claimed(queue, limit, reserved)
        return len(reserved)

    def _sweep(self) -> None:
        if steady() - self._swept > SWEEP_EACH:
            self._swept = steady()
            most = self._options.max_lease_losses
            orphans = self._driver.sweep(now=self._clock.now(), max_lease_losses=most)
            if orphans:
                _tell_reclaimed(orphans)


def _tell_reclaimed(jobs: int) -> None:
    text = "jobs taken back from workers that were no longer heard of: %d"
    with contextlib.suppress(Exception):  # the claim is still to come, whatever logs raise
        logger.info(text, jobs, extra={"jobs": jobs})
