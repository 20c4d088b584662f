"""
notify: wake the workers, once the jobs are committed.

A NOTIFY takes a lock that every committing NOTIFY of the database shares, so a process sends at
most one for a queue in some twenty milliseconds. A worker that was woken looks a second time a
little later, which covers what was left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from django.db import connections, transaction

from ..conf import get_settings

CHANNEL = "taskharbor"
DEBOUNCE = 0.018  # less than the second look of a worker is away

# A transaction that notifies has a commit of its own, which would wait for the disk like any other;
# there is nothing in it that a crash could lose. The setting ends with that transaction.
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"

_last: dict[tuple[str, str], float] = {}


def notify_on_commit(queues: Iterable[str], using: str) -> None:
    """Wake workers of these queues after the caller's transaction; failing to do so is nothing."""
    connection = connections[using]
    if connection.vendor != "postgresql" or get_settings().notify is False:
        return
    wanted = list(queues)
    if not connection.in_atomic_block:  # they are committed, and mostly nothing is to be sent
        wanted = [queue for queue in wanted if _is_due(queue, using)]
    # Who manages transactions by hand gets no call after them; polling finds the jobs.
    if wanted and (connection.in_atomic_block or connection.get_autocommit()):
        transaction.on_commit(lambda: _notify_all(wanted, using), using=using, robust=True)


def _notify_all(queues: Iterable[str], using: str) -> None:
    for queue in queues:
        if _is_due(queue, using):
            _notify(queue, using)


def _is_due(queue: str, using: str) -> bool:
    return time.monotonic() - _last.get((using, queue), 0.0) >= DEBOUNCE


def _notify(queue: str, using: str) -> None:
    _last[using, queue] = time.monotonic()
    with connections[using].cursor() as cursor:
        cursor.execute(_NOTIFY, [CHANNEL, queue])
