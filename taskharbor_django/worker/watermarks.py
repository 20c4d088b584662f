"""
Where the claims of a deep queue have come to, so that the next does not begin at the beginning.

While some transaction holds an old snapshot, the index keeps the entries of all jobs that were
taken since, and a claim that reads past them gets slower and slower. One that is told where the
last one ended reads none of them. It may miss a job that was committed late, or given back with
its old place in line; so one claim in a second is not bounded. Nor is one after a claim that came
back short, unless a search from the beginning is slow and a bounded one is not: then it waits for
its second too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..clock import steady
from ..values import Reservation

BELOW = timedelta(seconds=0.5)
UNBOUNDED_EACH = 1.0
# A search from the beginning that takes longer is worth to be spared, if that is what takes the
# time: a queue that trickles beside a snapshot of two minutes kept 0.78 of its rate, before 0.56.
SLOW = 0.05


class Watermarks:
    """For each queue that is deep, or slow to search, the place of its last claim."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, datetime]] = {}
        self._unbounded_at: dict[str, float] = {}
        self._slow: dict[str, float] = {}  # how long the last search from the beginning took
        self._asked_at = 0.0
        self._whole = False  # the last claim was not bounded
        self.bounded = False  # whether a claim since this was last cleared had a floor

    def floor(self, queue: str) -> tuple[int, datetime] | None:
        """From where to search; None from the beginning."""
        mark, now = self._marks.get(queue), steady()
        self._asked_at = now
        self._whole = mark is None or now - self._unbounded_at.get(queue, 0.0) > UNBOUNDED_EACH
        if self._whole:
            self._unbounded_at[queue] = now
            return None
        self.bounded = True
        return mark

    def claimed(self, queue: str, limit: int, reserved: Sequence[Reservation]) -> None:
        self._note_time(queue)
        if len(reserved) < limit and queue not in self._slow:
            self._marks.pop(queue, None)
            self._unbounded_at.pop(queue, None)
        elif reserved and (available_at := reserved[-1].job.available_at) is not None:
            self._marks[queue] = reserved[-1].job.priority, available_at - BELOW

    def _note_time(self, queue: str) -> None:
        """Note whether searches from the beginning are slow; the second after one has its end."""
        took = steady() - self._asked_at
        if self._whole and took > SLOW:
            self._slow[queue] = took
            self._unbounded_at[queue] = steady()
        elif self._whole or took > self._slow.get(queue, took) / 2:
            # It is quick, or everything is as slow: a line that is long, a server that is busy.
            self._slow.pop(queue, None)

    @property
    def are_kept(self) -> bool:
        """Whether some queue is slow to search, so that its mark outlives a short claim."""
        return bool(self._slow)

    def forget(self) -> None:
        """Begin anew: the database may not be the one it was."""
        self._marks.clear()
        self._unbounded_at.clear()
        self._slow.clear()
