"""
Where the claims of a deep queue have come to, so that the next does not begin at the beginning.

While some transaction holds an old snapshot, the index keeps the entries of all jobs that were
taken since, and a claim that reads past them gets slower and slower. One that is told where the
last one ended reads none of them. It may miss a job that was committed late, or given back with
its old place in line; so one claim in a second, and one after a claim that came back short, is
not bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..clock import steady
from ..values import Reservation

BELOW = timedelta(seconds=0.5)
UNBOUNDED_EACH = 1.0


class Watermarks:
    """For each queue that claims come back full from, the place of the last one."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, datetime]] = {}
        self._unbounded_at: dict[str, float] = {}
        self.bounded = False  # whether a claim since this was last cleared had a floor

    def floor(self, queue: str) -> tuple[int, datetime] | None:
        """From where to search; None from the beginning."""
        mark = self._marks.get(queue)
        if mark is None or steady() - self._unbounded_at.get(queue, 0.0) > UNBOUNDED_EACH:
            self._unbounded_at[queue] = steady()
            return None
        self.bounded = True
        return mark

    def claimed(self, queue: str, limit: int, reserved: Sequence[Reservation]) -> None:
        if len(reserved) < limit:
            self._marks.pop(queue, None)
            self._unbounded_at.pop(queue, None)
            return
        last = reserved[-1].job
        if last.available_at is not None:
            self._marks[queue] = last.priority, last.available_at - BELOW

    def forget(self) -> None:
        """Begin anew: the database may not be the one it was."""
        self._marks.clear()
        self._unbounded_at.clear()
