"""health: for probes. Exit 0 when all is well, 1 when a threshold is crossed, 3 when unknown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import Error as DatabaseTrouble

from ...models import Schedule
from ...operations.figures import CAP, QueueFigures, living, queue_figures, workers_of
from ...operations.storage import aliases, driver_for
from ..filters import count, seconds
from ..output import Output
from ..tables import require_tables
from .letters import open_letters
from .parsing import AWAY, Adding, Options

COLUMNS = ("check", "value", "limit", "ok")
DATABASE = "database"


class Check(NamedTuple):
    name: str
    value: Any
    limit: Any
    ok: bool


def add(adding: Adding) -> None:
    text = "Say whether all is well: exit 0, 1 when not, 3 when the database is away."
    parser = adding.command("health", health, text)
    waits = {"metavar": "SECONDS", "type": seconds}
    parser.add_argument(
        "--max-age", **waits, default=timedelta(minutes=5), help="Oldest ready job (default: 300)."
    )
    parser.add_argument(
        "--max-late", **waits, default=timedelta(minutes=2), help="Latest schedule (default: 120)."
    )
    parser.add_argument("--max-dead", metavar="N", type=count, help="Dead letters (default: any).")
    parser.add_argument(
        "--min-workers", metavar="N", type=count, default=1, help="Workers alive (default: 1)."
    )


def health(options: Options, out: Output) -> int:
    known = [options["database"]] if options["database"] else aliases()
    found = {using: _look(using, options) for using in known}
    several = len(known) > 1
    checks = [
        check._replace(name=f"{using}: {check.name}") if several else check
        for using, looked in found.items()
        for check in looked
    ]
    out.rows(COLUMNS, checks)
    if any(check.name == DATABASE for looked in found.values() for check in looked):
        return AWAY
    return 0 if all(check.ok for check in checks) else 1


def _look(using: str, options: Options) -> list[Check]:
    """All checks of one database, or the one that it cannot be asked."""
    try:
        return list(_checks(using, driver_for(using).now(), options))
    except DatabaseTrouble as problem:
        require_tables(using, returncode=2)
        text = " ".join(str(problem).split())
        return [Check(DATABASE, text, None, ok=False)]


def _checks(using: str, now: datetime, options: Options) -> Iterator[Check]:
    known = workers_of(using, now)
    yield from _queues(queue_figures(using, now, known), now, options["max_age"])
    dead, letters = options["max_dead"], open_letters(using, (options["max_dead"] or 0) + CAP)
    yield Check("dead letters", letters, dead, dead is None or letters <= dead)
    alive = living(known, now)
    yield Check("workers", len(alive), options["min_workers"], len(alive) >= options["min_workers"])
    yield from _schedules(using, now, options["max_late"])


def _queues(figures: list[QueueFigures], now: datetime, most: timedelta) -> Iterator[Check]:
    for it in figures:
        if it.oldest_at is not None and it.paused is None:
            age = max(timedelta(0), now - it.oldest_at)
            yield Check(f"queue {it.name}", age, most, age <= most)


def _schedules(using: str, now: datetime, most: timedelta) -> Iterator[Check]:
    schedules = Schedule.objects.using(using)
    first = schedules.active().order_by("next_at").first()
    late = max(timedelta(0), now - first.next_at) if first and first.next_at else timedelta(0)
    yield Check("schedules", late, most, late <= most)
    for row in schedules.filter(disabled_at__isnull=True).exclude(problem=""):
        yield Check(f"schedule {row.name}", row.problem, None, False)
