"""workflow: list them, show one, cancel it, resume it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ...models import Workflow
from ...operations import Moved
from ...operations.storage import default_alias
from ...operations.workflow import WorkflowHandle
from ..filters import UsageError
from ..output import Output
from ..pages import add_paging, page
from .parsing import Adding, Options

LISTED = ("id", "name", "open_jobs", "created_at", "finished_at")
JOBS = ("id", "task", "state", "queue", "finished_at")


def add(adding: Adding) -> None:
    text = "List workflows, the latest first; or show one, cancel or resume it."
    parser = adding.command("workflow", workflow, text)
    parser.add_argument("id", metavar="ID", type=UUID, nargs="?", help="One of them.")
    add_paging(parser, "Workflows")
    verbs = parser.add_mutually_exclusive_group()
    verbs.add_argument("--cancel", action="store_true", help="Cancel what is open in it.")
    verbs.add_argument("--resume", action="store_true", help="Requeue what is dead in it.")
    verbs.add_argument("--jobs", action="store_true", help="List its jobs.")


def workflow(options: Options, out: Output) -> int:
    if options["id"] is None:
        return _list(options, out)
    handle = WorkflowHandle.of(options["id"], using=options["database"])
    row = handle.refresh()
    if options["cancel"]:
        return _moved(handle.cancel(), "cancelled", out)
    if options["resume"]:
        return _moved(handle.resume(), "requeued", out)
    if options["jobs"]:
        out.rows(JOBS, handle.jobs.values_list(*JOBS), spare=("finished_at", "queue"))
        return 0
    facts: dict[str, Any] = {"id": row.pk, "name": row.name, "state": handle.state.value}
    facts |= {"progress": handle.progress, "open_jobs": row.open_jobs}
    facts |= {"created_at": row.created_at, "finished_at": row.finished_at}
    out.facts(facts | {state.value: number for state, number in handle.counts.items()})
    return 0


def _list(options: Options, out: Output) -> int:
    if asked := [f"--{name}" for name in ("cancel", "resume", "jobs") if options[name]]:
        raise UsageError(f"{asked[0]} needs the ID of a workflow.")
    rows = Workflow.objects.using(options["database"] or default_alias())
    found, after = page(rows, "-created_at", LISTED, options)
    out.rows(LISTED, found, after=after, spare=("finished_at", "created_at"))
    return 0


def _moved(moved: Moved, done: str, out: Output) -> int:
    out.facts({done: moved.moved, "asked": moved.asked, "left": dict(moved.left)})
    return 0 if moved.moved or moved.asked else 1
