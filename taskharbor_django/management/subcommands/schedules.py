"""schedules: list, next, pause, resume, run-now."""

from __future__ import annotations

from typing import Any

from ...models import Schedule
from ...operations.schedules import find, pause_schedule, resume_schedule, run_schedule_now
from ...operations.storage import default_alias
from ..output import Output
from .parsing import Adding, Options

COLUMNS = ("name", "task", "when", "next_at", "last_slot", "enqueued", "skipped", "state")

SPARE = ("task", "skipped", "last_slot", "enqueued")


def add(adding: Adding) -> None:
    text = "Schedules: when they come, and what was said about them."
    below = adding.group("schedules", list_schedules, text, "next|pause|resume|run-now")
    for name, run, what in (
        ("next", upcoming, "The next five times."),
        ("pause", pause, "Let no slot come."),
        ("resume", resume, "Go on with the next slot from now."),
        ("run-now", run_now, "Enqueue its job beside the slots."),
    ):
        below.command(name, run, what).add_argument("name")


def list_schedules(options: Options, out: Output) -> int:
    rows = Schedule.objects.using(options["database"] or default_alias()).order_by("name")
    out.rows(COLUMNS, [_row(row) for row in rows], spare=SPARE)
    return 0


def _row(row: Schedule) -> list[Any]:
    when = f"{row.cron} ({row.time_zone})" if row.cron else f"{row.kind} {row.interval}"
    return [
        *(row.name, row.task, when, row.next_at, row.last_slot, row.enqueued, row.skipped),
        state_of(row),
    ]


def state_of(row: Schedule) -> str:
    if row.problem:
        return f"stopped: {row.problem}"
    if row.disabled_at:
        return "disabled"
    return "paused" if row.paused_at else "active"


def upcoming(options: Options, out: Output) -> int:
    row = find(options["name"], using=options["database"])
    out.rows(("slot",), [[slot] for slot in row.upcoming()])
    return 0


def pause(options: Options, out: Output) -> int:
    changed = pause_schedule(options["name"], using=options["database"])
    out.facts({"paused": options["name"], "was_paused": not changed})
    return 0 if changed else 1


def resume(options: Options, out: Output) -> int:
    changed = resume_schedule(options["name"], using=options["database"])
    out.facts({"resumed": options["name"], "was_paused": changed})
    return 0 if changed else 1


def run_now(options: Options, out: Output) -> int:
    handle = run_schedule_now(options["name"], using=options["database"])
    out.facts({"id": handle.id, "created": handle.created})
    return 0 if handle.created else 1
