"""The dashboard: the app's index page, drawn by a template tag wherever Django shows that."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from ..operations.databases import databases, trouble_elsewhere
from ..operations.figures import Count, Minute, QueueFigures, living, queue_figures, workers_of
from ..operations.storage import aliases, driver_for
from ..operations.warnings import Trouble, Warning, warnings  # noqa: A004  the word of the screen
from .screen import LOST, database_of, may, words_of
from .sparkline import sparkline


def dashboard(request: HttpRequest) -> dict[str, Any]:
    """Everything that the page shows; nothing for who may not view jobs."""
    if not may(request, "view_job"):
        return {"allowed": False}
    using = database_of(request)
    try:
        return _board(using)
    except LOST as problem:
        # It went away behind its probe, which finds that now; Django's own has none.
        with contextlib.suppress(*LOST):
            return _board(using)
        return _bare(using) | _away(using, words_of(problem))


def _board(using: str) -> dict[str, Any]:
    side_by_side = databases() if len(aliases()) > 1 else []
    board = _bare(using) | {"databases": side_by_side}
    away = [Warning(kind=Trouble.AWAY, subject=it.alias) for it in side_by_side if it.away]
    if trouble := trouble_elsewhere(using):
        return board | _away(using, trouble, away)
    return board | _figures(using, away)


def _bare(using: str) -> dict[str, Any]:
    """What needs no database."""
    return {"allowed": True, "using": using, "aliases": aliases()}


def _away(using: str, trouble: str, known: Sequence[Warning] = ()) -> dict[str, Any]:
    only = Warning(kind=Trouble.AWAY, subject=using)
    return {"away": trouble, "now": timezone.now(), "warnings": known or [only]}


def _figures(using: str, away: list[Warning]) -> dict[str, Any]:
    now = driver_for(using).now()
    workers = workers_of(using, now)
    queues = queue_figures(using, now, workers)
    alive = living(workers, now)
    return {
        "now": now,
        "rows": [(queue, sparkline(queue.minutes)) for queue in queues],
        "totals": _totals(queues),
        "hour": sparkline(_together(queues)),
        "alive": len(alive),
        "busy": sum(worker.busy for worker in alive),
        "slots": sum(worker.slots for worker in alive),
        "warnings": [*away, *warnings(using, now, queues, workers)],
    }


def _totals(queues: list[QueueFigures]) -> dict[str, Any]:
    counted = {
        name: _sum([getattr(queue, name) for queue in queues])
        for name in ("ready", "inflight", "scheduled", "blocked", "dead")
    }
    done, failed, dead = (sum(queue.last_hour[place] for queue in queues) for place in range(3))
    return {**counted, "hour": Minute(done, failed, dead)}


def _sum(counts: list[Count]) -> Count:
    return Count(sum(count.number for count in counts), any(count.more for count in counts))


def _together(queues: list[QueueFigures]) -> list[Minute]:
    columns = zip(*(queue.minutes for queue in queues), strict=True)
    return [Minute(*map(sum, zip(*minutes, strict=True))) for minutes in columns]
