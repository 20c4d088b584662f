"""
Which transactions the caller has open, and which of them a new job waits for.

A job is written to the database of its queue. With a transaction of that database it commits or
vanishes; with one of another database it can only be stored before, or after its commit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import connections, transaction

from ..exceptions import TransactionElsewhere

IDLE = 0  # of libpq


def refuse_elsewhere(using: str, queue: str) -> None:
    """Refuse a job that would stay when the caller's transaction is rolled back."""
    if len(connections.settings) == 1:
        return  # there is no elsewhere; to look at connections takes longer than all else here
    own = connections[using]
    if in_atomic(own) or is_by_hand(own):
        return
    others = open_aliases()
    if others:
        raise TransactionElsewhere(
            f"The queue {queue} is kept in the database {using!r}, and the transaction that is "
            f"open is one of {' and '.join(map(repr, others))}: a rollback there would leave the "
            f"job behind. Commit first, use enqueue_on_commit(), or enqueue inside "
            f"atomic(using={using!r}).",
            queue=queue,
            using=using,
            open_in=others,
        )


def after_commit(function: Callable[[], object]) -> None:
    """
    Call it once all transactions that the caller has open are committed; at once without any.

    Each of them is told, and the last one to commit calls: when one is rolled back, nobody does.
    """
    left = open_aliases() or _held_by_tests()

    def committed(alias: str) -> None:
        left.remove(alias)
        if not left:
            function()

    if not left:
        function()
    for alias in list(left):
        transaction.on_commit(partial(committed, alias), using=alias)


def open_aliases() -> list[str]:
    """The databases on which this thread has a transaction open."""
    return [it.alias for it in connections.all(initialized_only=True) if _is_open(it)]


def in_atomic(connection: Any) -> bool:
    """Say whether there is an atomic() on it; that of a TestCase is not the caller's."""
    blocks = connection.atomic_blocks
    return bool(blocks) and any(not block._from_testcase for block in blocks)


def is_by_hand(connection: Any) -> bool:
    """Say whether the caller commits by hand on it: what is written next waits for that."""
    # The attribute, not get_autocommit(), which would open a connection to answer.
    if connection.autocommit or connection.in_atomic_block:
        return False
    return connection.connection is not None


def _is_open(connection: Any) -> bool:
    return in_atomic(connection) or (is_by_hand(connection) and _has_begun(connection))


def _has_begun(connection: Any) -> bool:
    """Say whether there is something to commit by hand; MySQL's driver cannot tell."""
    if connection.vendor == "postgresql":
        return int(connection.connection.info.transaction_status) != IDLE
    return bool(getattr(connection.connection, "in_transaction", True))


def _held_by_tests() -> list[str]:
    """
    The first database that will commit nothing by itself, as a list.

    In a TestCase callbacks wait to be captured there; where transactions are managed by hand,
    Django says that they cannot wait.
    """
    held = (it for it in connections.all(initialized_only=True) if _is_held(it))
    return [it.alias for it in held][:1]


def _is_held(connection: Any) -> bool:
    return bool(connection.in_atomic_block) or is_by_hand(connection)
