"""enqueue, list, inspect, cancel, run-now, erase."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from ...conf import get_settings
from ...exceptions import PayloadCorrupt
from ...lifecycle import JobState
from ...masking import mask, mask_url
from ...models import Job
from ...operations import JobHandle, cancel, erase, run_now
from ...operations.arguments import by_name
from ...operations.storage import alias_of, aliases, default_alias
from ...payload import decode_call, decode_value
from ...tasks import registry
from ..filters import UsageError, add_filters, add_which, move, seconds, selection_of
from ..output import Output
from ..pages import add_paging, page
from .parsing import Adding, Options

# In which order a state is listed: that of the index it has.
ORDER = {
    JobState.DONE: "-finished_at",
    JobState.DEAD: "-finished_at",
    JobState.CANCELLED: "-finished_at",
    JobState.SCHEDULED: "available_at",
    JobState.READY: "available_at",
    JobState.BLOCKED: "created_at",
    JobState.INFLIGHT: "available_at",
}
LISTED = ("id", "state", "queue", "task", "attempts", "created_at", "available_at", "finished_at")
SPARE = ("available_at", "created_at", "attempts", "finished_at")
INSPECTED = (
    *("id", "task", "state", "queue", "priority", "attempts", "max_attempts", "executions"),
    *("lease_losses", "created_at", "available_at", "started_at", "finished_at", "expires_at"),
    *("timeout", "progress", "progress_message", "tags", "correlation_id", "idempotency_key"),
    *("parent_id", "workflow_id", "schedule_id", "schedule_slot", "replay_of_id", "callback_url"),
    *("failure_category", "failure_code", "last_error"),
)


def add(adding: Adding) -> None:
    parser = adding.command("enqueue", enqueue, "Enqueue a job of a registered task.")
    parser.add_argument("task", help="Name of the task.")
    # Not by their own names: call_command() keeps "args" for itself.
    json_of = {"metavar": "JSON", "type": str}
    text = 'Arguments, as [1, "two"].'
    parser.add_argument("--args", dest="positional", default="[]", help=text, **json_of)
    text = 'Arguments, as {"name": "value"}.'
    parser.add_argument("--kwargs", dest="named", default="{}", help=text, **json_of)
    parser.add_argument("--queue", metavar="NAME", help="Another queue than the task's.")
    parser.add_argument("--priority", metavar="RANK", type=int, help="From -100 (first) to 100.")
    parser.add_argument("--delay", metavar="SECONDS", type=seconds, help="Run after this time.")
    parser.add_argument("--key", metavar="KEY", help="Idempotency key.")
    parser = adding.command("list", list_jobs, "List jobs, a page at a time.")
    add_filters(parser)
    add_paging(parser, "Jobs")
    parser = adding.command("inspect", inspect, "Show everything about a job.")
    parser.add_argument("id", metavar="ID", type=UUID)
    parser = adding.command("cancel", cancel_jobs, "Cancel waiting jobs; ask running ones to stop.")
    add_which(parser)
    parser.add_argument("--force", action="store_true", help="Take running ones from their worker.")
    add_which(adding.command("run-now", run_jobs_now, "Let scheduled jobs run at once."))
    text = "Remove payload, result and errors of ended jobs."
    add_which(adding.command("erase", erase_jobs, text))


def enqueue(options: Options, out: Output) -> int:
    args, kwargs = (
        _json("--args", options["positional"], list),
        _json("--kwargs", options["named"], dict),
    )
    asked = {name: options[name] for name in ("queue", "priority", "delay")}
    asked["idempotency_key"] = options["key"]
    given = {name: value for name, value in asked.items() if value is not None}
    task = registry.get(options["task"]).using(**given)
    if options["database"]:
        _refuse_elsewhere(options["queue"] or task.queue or get_settings().queue, options)
    handle: JobHandle = task.enqueue(*args, **kwargs)
    out.facts({"id": handle.id, "created": handle.created})
    return 0


def _refuse_elsewhere(queue: str, options: Options) -> None:
    """A job is stored where its queue is kept, whatever the command line says."""
    home = alias_of(queue)
    if home != options["database"]:
        raise UsageError(f"--database: the queue {queue} is kept in {home!r}; leave it out.")


def _json(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{option} is no JSON: {problem}") from None
    if not isinstance(value, kind):
        raise UsageError(f"{option} must be a JSON {'array' if kind is list else 'object'}.")
    return value


def cancel_jobs(options: Options, out: Output) -> int:
    return move(options, out, partial(cancel, force=options["force"]), "cancelled")


def run_jobs_now(options: Options, out: Output) -> int:
    return move(options, out, run_now, "ready")


def erase_jobs(options: Options, out: Output) -> int:
    return move(options, out, erase, "erased")


# -- looking -------------------------------------------------------------------------------------


def list_jobs(options: Options, out: Output) -> int:
    which = selection_of(options)
    using = options["database"] or (which.using if which else default_alias())
    jobs = which.jobs(using) if which else Job.objects.using(using)
    order = ORDER[JobState(options["state"])] if options["state"] else "id"
    found, after = page(jobs, order, LISTED, options)
    out.rows(LISTED, found, after=after, spare=SPARE)
    return 0


def inspect(options: Options, out: Output) -> int:
    known = [options["database"]] if options["database"] else aliases()
    found = (Job.objects.using(using).filter(pk=options["id"]).first() for using in known)
    job = next((it for it in found if it is not None), None)
    if job is None:
        raise CommandError(f"There is no job {options['id']}.")
    facts = {name.removesuffix("_id"): getattr(job, name) for name in INSPECTED}
    facts["callback_url"] = mask_url(job.callback_url, get_settings().masked_keys)
    out.facts(facts | _data(job) | _around(job, str(job._state.db)))
    return 0


def _data(job: Job) -> dict[str, Any]:
    """What went in and came out, with secrets masked."""
    settings = get_settings()
    codec, keys = settings.payload_codec, settings.masked_keys
    try:
        args, kwargs = decode_call(bytes(job.payload), codec=codec)
        named = by_name(job, args, kwargs) if args else None
        given = {"args": list(args), "kwargs": kwargs} if named is None else {"arguments": named}
        data: dict[str, Any] = mask(given, keys)
        if job.result:
            data["result"] = mask(decode_value(bytes(job.result), codec=codec), keys)
    except PayloadCorrupt as problem:
        return {"payload": f"cannot be decoded: {problem}"}
    return data


def _around(job: Job, using: str) -> dict[str, Any]:
    letters = job.dead_letters.using(using).order_by("died_at")
    attempts = job.attempt_rows.using(using).order_by("lease_version")
    children = Job.objects.using(using).filter(parent=job.pk).order_by("created_at")
    return {
        "attempt_rows": list(
            attempts.values("number", "end", "started_at", "finished_at", "category", "error")
        ),
        "dead_letters": list(
            letters.values("reason", "died_at", "closed_at", "fingerprint", "error", "note")
        ),
        "children": list(children.values("id", "task", "state")[:100]),
    }
