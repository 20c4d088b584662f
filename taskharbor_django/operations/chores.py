"""
chores: who does what one worker does for all.

Locks:  the chore's row, for one statement.
Fence:  the time is moved from one that has come; who moves it does the work.
Repeat: safe. Who dies with the work leaves it to the first that looks after the claimed time.
"""

from __future__ import annotations

from datetime import datetime

from ..drivers import DatabaseDriver
from ..models import Chore


def claim_chore(
    driver: DatabaseDriver, name: str, *, worker: str, now: datetime, until: datetime
) -> bool:
    """Take a chore that is due; nobody else does before `until`."""
    chores = Chore.objects.using(driver.using)
    due = chores.filter(pk=name, next_at__lte=now)
    if due.update(next_at=until, worker=worker):
        return True
    if chores.filter(pk=name).exists():
        return False
    chores.bulk_create([Chore(name=name, next_at=now)], ignore_conflicts=True)
    return bool(due.update(next_at=until, worker=worker))


def finish_chore(
    driver: DatabaseDriver, name: str, *, worker: str, now: datetime, next_at: datetime
) -> None:
    """Say when it is due again, unless another has taken it since."""
    mine = Chore.objects.using(driver.using).filter(pk=name, worker=worker)
    mine.update(next_at=next_at, finished_at=now)
