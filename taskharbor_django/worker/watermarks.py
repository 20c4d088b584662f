"""
Where the claims of a deep queue have come to, so that the next does not begin at the beginning.

While some transaction holds an old snapshot, the index keeps the entries of all jobs that were
taken since, and a claim that reads past them gets slower and slower. One that is told where the
last one ended reads none of them. It may miss a job that was committed late, or given back with
its old place in line; so one claim in a second is not bounded. Nor is one after a claim that came
back short, unless the last search from the beginning was slow: then it waits for its second too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..clock import steady
from ..values import Reservation

BELOW = timedelta(seconds=0.5)
UNBOUNDED_EACH = 1.0
SLOW = 0.05


class Watermarks:
    """For each queue that claims come back full from, the place of the last one."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, datetime]] = {}
        self._unbounded_at: dict[str, float] = {}
        self._slow: set[str] = set()
        self._whole = False  # the last claim was not bounded
        self.bounded = False  # whether a claim since this was last cleared had a floor

    def floor(self, queue: str) -> tuple[int, datetime] | None:
        """From where to search; None from the beginning."""
        mark = self._marks.get(queue)
        since = steady() - self._unbounded_at.get(queue, 0.0)
        self._whole = mark is None or since > UNBOUNDED_EACH
        if self._whole:
            self._unbounded_at[queue] = steady()
            return None
        self.bounded = True
        return mark

    def claimed(self, queue: str, limit: int, reserved: Sequence[Reservation]) -> None:
        if self._whole:
            self._note_time(queue)
        if len(reserved) < limit and queue not in self._slow:
            self._marks.pop(queue, None)
            self._unbounded_at.pop(queue, None)
        elif reserved and (available_at := reserved[-1].job.available_at) is not None:
            self._marks[queue] = reserved[-1].job.priority, available_at - BELOW

    def _note_time(self, queue: str) -> None:
        """Give the claims that are bounded as much time at least as this one took."""
        if steady() - self._unbounded_at[queue] > SLOW:
            self._slow.add(queue)
            self._unbounded_at[queue] = steady()
        else:
            self._slow.discard(queue)

    @property
    def are_kept(self) -> bool:
        """Whether a claim that finds nothing is followed by one that is bounded, too."""
        return bool(self._slow)

    def forget(self) -> None:
        """Begin anew: the database may not be the one it was."""
        self._marks.clear()
        self._unbounded_at.clear()
        self._slow.clear()
