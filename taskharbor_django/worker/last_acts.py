"""What a worker does right before it exits: settle what can be settled, and hold nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import Error as DatabaseTrouble

from ..drivers import DatabaseDriver
from ..lifecycle import OutcomeKind
from ..operations import decide
from ..operations.settle import settle
from ..values import Outcome, Rejection
from .holdings import Running

logger = logging.getLogger(__name__)


def release_rest(
    driver: DatabaseDriver,
    held: Sequence[Running],
    known: Mapping[Running, Outcome],
    *,
    now: datetime,
    lease: timedelta,
) -> list[tuple[Running, Outcome]]:
    """Settle what could not be before, give back what will not stop; return what was."""
    left = [
        known.get(it)
        or decide.outcome(OutcomeKind.RELEASE, it.reservation, started_at=it.started_at)
        for it in held
    ]
    if not left:
        return []
    try:
        refused = settle(driver, left, now=now)
        driver.extend_leases(_emptied(left, refused), now=now, lease_for=lease)
    except DatabaseTrouble:
        logger.warning("%d jobs could not be given back; their leases will expire", len(left))
        return []
    lost = {(it.outcome.token, it.outcome.job_id) for it in refused if not it.repeated}
    pairs = zip(held, left, strict=True)
    return [(it, outcome) for it, outcome in pairs if (it.token, it.job_id) not in lost]


def _emptied(released: Iterable[Outcome], refused: Iterable[Rejection]) -> set[UUID]:
    """Leases that cover nothing any more: to renew them removes their rows, as no beat will."""
    return {outcome.token for outcome in released} - {it.outcome.token for it in refused}
