"""
Renew all leases of the process, by one statement, on a connection of its own.

A beat that fails is tried again until the local deadline of each lease: its length, counted from
before the last accepted renewal was sent, by a clock that runs through suspend. Only then, or when
the database says plainly that a lease is gone, are its jobs made to stop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..clock import DatabaseClock, steady
from ..drivers import DatabaseDriver
from ..failpoints import reach
from ..operations.report import notices_for, remove_notices
from ..values import Reservation
from .holdings import CANCEL, REVOKED, Holdings
from .lines import Lines
from .trouble import Trouble, disconnect, tell_fault

logger = logging.getLogger(__name__)

SOONEST = 0.2
NEARLY = 0.9
LAST_BEATS = 3  # tries of the one that removes leases at the end


class Heartbeat(threading.Thread):
    def __init__(
        self,
        driver: DatabaseDriver,
        holdings: Holdings,
        clock: DatabaseClock,
        *,
        lease: timedelta,
        interval: timedelta,
        lines: Lines,
        on_beat: Callable[[], None],
        on_found: Callable[[Sequence[Reservation], float], None],
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="taskharbor-heartbeat", daemon=True)
        self._driver = driver
        self._holdings = holdings
        self._clock = clock
        self._lease = lease
        self._interval = interval.total_seconds()
        self._lines = lines
        self._on_beat = on_beat
        self._on_found = on_found
        self._on_turn = on_turn
        self._doubtful: dict[UUID, float] = {}
        self._now = threading.Event()
        self._tell_at = 0.0  # by the steady clock
        self._stopping = False
        self._trouble = Trouble("heartbeat")
        self.connected = threading.Event()

    def doubt(self, token: UUID) -> None:
        """A reserve got no reply: ask what it took until its lease, if any, has expired."""
        self._doubtful[token] = steady() + self._lease.total_seconds()
        self._now.set()

    def close(self) -> None:
        """Stop after a last beat, which removes the rows of leases that cover nothing any more."""
        self._stopping = True
        self._now.set()
        self.join()

    def run(self) -> None:
        pause, left = self._interval, LAST_BEATS
        self._lines.connect(self._trouble, wait=self._wait, over=lambda: self._stopping)
        self.connected.set()
        while left:
            self._wait(pause)
            # Looked at before the beat: one that is under way at `close` is not the last.
            stopping, began = self._stopping, steady()
            again = self._turn_safely()
            if stopping:
                pause, left = SOONEST, left - 1 if again else 0
            else:
                # From beginning to beginning: on a bad line a beat takes seconds, and leases go on.
                pause = again or max(SOONEST, self._interval - (steady() - began))
        disconnect(self._driver.using)

    def _turn_safely(self) -> float:
        try:
            return self._turn()
        except Exception as error:  # noqa: BLE001  whatever raises, leases have to be renewed
            tell_fault(logger, error, "a turn of the heartbeat failed; the next comes")
            return self._soon

    def _turn(self) -> float:
        """Beat, and lose what is overdue; return how soon to beat again, 0 when all is well."""
        again = 0.0
        try:
            # Shorter than others: there must be time for another try, on a new connection.
            with self._lines.waiting(0.5):
                self.beat()
            self._trouble.ended()
        except Exception as error:  # noqa: BLE001  the next beat may go through
            disconnect(self._driver.using)
            self._tell_at = 0.0  # of the next that goes well: others may have been cut off, too
            again = min(self._trouble.began(error), self._soon)
        self.lose_overdue()
        self._on_turn()
        return again

    @property
    def _soon(self) -> float:
        return max(SOONEST, self._interval / 4)

    def _wait(self, pause: float) -> None:
        self._now.wait(pause)
        self._now.clear()

    def beat(self) -> None:
        sent = steady()
        self._clock.measure()
        emptied = self._holdings.take_emptied()
        tokens = self._holdings.tokens()
        if tokens or emptied:
            try:
                self._renew(tokens, emptied, sent)
            except Exception:
                self._holdings.emptied_still(emptied)
                raise
            self._read_notices(tokens + emptied)
        self._ask_for_doubtful(sent)
        # Not after one that a doubt called for: a reserve that fails would call itself that way.
        if sent >= self._tell_at:
            # A little sooner than the next is due: it may begin some microseconds before its time.
            self._tell_at = sent + NEARLY * self._interval
            self._on_beat()

    def _renew(self, tokens: list[UUID], emptied: list[UUID], sent: float) -> None:
        """Renew what is held; the driver removes the rows of what covers nothing any more."""
        reach("heartbeat.renewing")
        now = self._clock.now()
        renewed = self._driver.extend_leases(tokens + emptied, now=now, lease_for=self._lease)
        self._holdings.renewed(renewed, sent + self._lease.total_seconds())
        for token in tokens:
            # One that a settle has emptied is gone, too, and the settle's reply may be on its way,
            # or lost: the completer finds out, now or by asking again.
            if token not in renewed and not self._holdings.all_ended(token):
                self._lose(token, "it was taken back")

    def _read_notices(self, tokens: list[UUID]) -> None:
        notices = notices_for(self._driver, tokens)
        for _, token, job_id, kind in notices:
            running = self._holdings.find(token, job_id)
            if running is not None:
                revoked = kind == "revoked"
                running.cancel(REVOKED if revoked else CANCEL, force=revoked)
        if notices:
            remove_notices(self._driver, [notice[0] for notice in notices])

    def _ask_for_doubtful(self, sent: float) -> None:
        for token, until in list(self._doubtful.items()):
            found = self._driver.held(token, now=self._clock.now())
            if found:
                self._take_charge(found, sent)
            if found or until <= steady():
                del self._doubtful[token]

    def _take_charge(self, found: Sequence[Reservation], sent: float) -> None:
        """
        Renew, before any of it begins, what a reserve without a reply had taken.

        Much of its lease is over; and of a renewal this process knows until when it may believe in
        it, whatever its clock is. While that gets no reply either, it is asked for again.
        """
        tokens = {reservation.lease.token for reservation in found}
        renewed = self._driver.extend_leases(
            list(tokens), now=self._clock.now(), lease_for=self._lease
        )
        if ours := [it for it in found if it.lease.token in renewed]:
            self._on_found(ours, sent + self._lease.total_seconds())

    def lose_overdue(self) -> None:
        """Stop what is past its local deadline; also called while a beat waits for its answer."""
        for token in self._holdings.overdue():
            self._lose(token, "it could not be renewed in time")

    def _lose(self, token: UUID, why: str) -> None:
        lost = self._holdings.lose(token)
        if lost:
            facts: dict[str, Any] = {"token": str(token), "jobs": [str(r.job_id) for r in lost]}
            logger.warning("lease %s with %d jobs is lost: %s", token, len(lost), why, extra=facts)
