"""Time travel: jobs live by the time that freezegun shows, not by that of the server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from ..clock import pretend


def frozen_now() -> datetime | None:
    """The time at which freezegun holds this process; None when it does not."""
    now = datetime.now(UTC)
    return now if type(now).__module__.startswith("freezegun") else None


pretend(frozen_now)


@contextlib.contextmanager
def travel(to: datetime | timedelta | str) -> Iterator[Any]:
    """
    Be at another time inside the block, which stands still: a time, or so much later than now.

    Gives freezegun's own factory, with `tick()` and `move_to()`.
    """
    from freezegun import freeze_time

    when = datetime.now(UTC) + to if isinstance(to, timedelta) else to
    with freeze_time(when) as frozen:
        yield frozen
