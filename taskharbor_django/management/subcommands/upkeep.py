"""prune: what workers do now and then, done now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from ...drivers import DatabaseDriver
from ...operations.expire import expire, overdue
from ...operations.prune import prunable, prune
from ...operations.storage import default_alias, driver_for
from ..output import Output
from .parsing import Adding, Options


def add(adding: Adding) -> None:
    text = "Bury what is over its lifetime, and remove what was kept long enough."
    parser = adding.command("prune", prune_now, text)
    parser.add_argument("--dry-run", action="store_true", help="Only count, up to 100,000 each.")


def prune_now(options: Options, out: Output) -> int:
    driver = driver_for(options["database"] or default_alias())
    now = driver.now()
    expected = {"expired": overdue(driver, now=now)} | prunable(driver, now=now)
    if options["dry_run"]:
        out.facts(expected)
        return 0
    done: Counter[str] = Counter(dict.fromkeys(expected, 0))
    for what, count in _batches(driver, now):
        done[what] += count
        out.progress(done.total(), max(done.total(), sum(expected.values())))
    out.end_progress()
    out.facts(done)
    return 0


def _batches(driver: DatabaseDriver, now: datetime) -> Iterator[tuple[str, int]]:
    for buried in expire(driver, now=now):
        yield "expired", buried
    for batch in prune(driver, now=now):
        yield batch.what, batch.count
