"""
How long a transaction waits for rows that others hold, and what becomes of those it waits for.

A worker may wait for who depends on a job, and whoever holds such a row may never come back. So a
verb that waits is told how long, and leaves out whom it would have to wait for.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from django.db import DatabaseError

from .transient import is_in_transaction, is_transient

if TYPE_CHECKING:
    from .database import DatabaseDriver

T = TypeVar("T")
S = TypeVar("S")


class Patience(Enum):
    """What a transaction's lock timeout is taken from; in numbers each database has its own."""

    USUAL = "usual"
    SHORT = "short"
    NONE = "none"


_patience: ContextVar[Patience] = ContextVar("patience", default=Patience.USUAL)


def patience() -> Patience:
    """How long a transaction that begins now may wait."""
    return _patience.get()


@contextlib.contextmanager
def waiting(how_long: Patience) -> Iterator[None]:
    """Let transactions that begin inside wait for so long."""
    token = _patience.set(how_long)
    try:
        yield
    finally:
        _patience.reset(token)


def unless_held(
    driver: DatabaseDriver,
    items: Sequence[T],
    verb: Callable[[list[T]], S],
    first: Patience,
) -> list[S]:
    """
    Run a verb over all of these in one transaction, and leave out those for which it would wait.

    Refused for a lock, it is tried with each half, without waiting again, until those that are
    held up are alone; they are for the caller's next turn. How often it may be refused is bounded:
    where most are held up, the next turn divides them in another way. Inside a caller's transaction
    the error is the caller's.
    """
    if is_in_transaction(driver.using):
        return [verb(list(items))]
    done, parts, how_long = list[S](), [list(items)], first
    refusals = 2 * len(items).bit_length()
    while parts and refusals:
        part = parts.pop()
        try:
            with waiting(how_long):
                done.append(verb(part))
        except DatabaseError as error:
            if not is_transient(error):
                raise
            # Without a short wait each half would take as long; on SQLite all wait for the same.
            refusals = refusals - 1 if driver.hurries else 0
            how_long = Patience.NONE
            parts += _halves(part)
    return done


def _halves(part: list[T]) -> list[list[T]]:
    """The halves in another order each time, for those that come last may not be tried at all."""
    if len(part) == 1:
        return []
    random.shuffle(part)
    middle = len(part) // 2
    return [part[:middle], part[middle:]]
