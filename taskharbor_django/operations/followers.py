"""Who hears, in the transaction that ends them, of jobs that somebody follows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..drivers import DatabaseDriver
from .advance import advance
from .callback import enqueue_callbacks


def ended(driver: DatabaseDriver, ids: Sequence[UUID]) -> None:
    """Tell of ends; those that ended with them are told of, too."""
    too = advance(driver, ids)
    enqueue_callbacks(driver, [*ids, *too])
