"""
The tables and their columns, for `_generate.py`: as the models have them, and what each one means.

A column that is missing below, or is there and not in the models, is an error.
"""  # noqa: INP001  a script beside the pages, not a package

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]

MEANINGS = {
    "Job": {
        "id": "made by the system; version 4, and begins with the time",
        "task": "name under which the task is registered",
        "queue": "where it waits",
        "state": "one of the seven [states](../explanation/lifecycle.md)",
        "priority": "rank from -100 (first) to 100 (last)",
        "payload": "arguments, encoded; never changes, but by `erase`",
        "run_at": "not before this time; empty: at once",
        "available_at": "since when it may run; second key of the order of reservation",
        "seq": "rises within a process; breaks ties",
        "timeout": "longest run; empty: no limit",
        "attempts": "recorded failures",
        "executions": "starts; 1 while it runs for the first time",
        "max_attempts": "failures that bury it",
        "lease": "token of the lease that holds it, or of the one that ended it",
        "lease_version": "rises with each reserve: the fencing token",
        "lease_losses": "leases that expired under it",
        "last_error": "class and message of the last failure, masked and cut",
        "failure_category": "of the last failure",
        "failure_code": "of the last failure: what `PermanentError` said, a signal, an exit code",
        "failed_at": "when it last failed",
        "created_at": "when it was enqueued, by the database's clock",
        "updated_at": "when a verb last changed the row",
        "started_at": "of the current or last run; written by settle, or by the first heartbeat",
        "finished_at": "when it ended",
        "expires_at": "end of its lifetime; empty: none",
        "result": "what the handler returned, encoded",
        "result_expires_at": "when the result is removed; empty: with the job",
        "progress": "0 to 100",
        "progress_message": "what the handler said with it",
        "checkpoint": "what the handler saved, encoded",
        "tags": "map of text to text, from the caller",
        "correlation_id": "from the caller, or from the job around the enqueue",
        "callback_url": "told of the end",
        "idempotency_key": "from the caller",
        "parent_id": "job that enqueued it",
        "workflow_id": "workflow it belongs to",
        "dependencies_left": "conditions that are still open",
        "has_dependents": "whether some job waits, or waited, for it",
        "input": "whether it takes results of other jobs, and how",
        "schedule_id": "schedule that enqueued it",
        "schedule_slot": "time for which it did",
        "replay_of_id": "dead job that it was made from",
        "handler_misses": "how often a worker did not know its task",
        "cancel_requested_at": "when somebody asked it to stop while it ran",
        "trace": "context for tracing",
    },
    "Lease": {
        "token": "shown with every move out of `inflight`; never used twice",
        "call": "token of the reserve call that made it",
        "worker": "id of the process that holds it",
        "acquired_at": "when it was made",
        "expires_at": "until when it is valid without another heartbeat",
    },
    "Notice": {
        "id": "number",
        "token": "lease whose holder is meant",
        "job_id": "job that is meant",
        "kind": "asked to cancel, or taken away",
        "created_at": "when it was written",
    },
    "Attempt": {
        "id": "number",
        "job_id": "job that ran",
        "lease_version": "fencing token of the run",
        "number": "1 for the first run",
        "end": "how it ended",
        "worker": "id of the process it ran in",
        "started_at": "start of the run, if it started",
        "finished_at": "end of the run, or when its loss was seen",
        "category": "of the failure",
        "code": "of the failure",
        "error_class": "class of the exception",
        "error": "class and message, masked and cut",
        "traceback": "without locals, masked and cut",
        "previous_id": "attempt before it",
    },
    "DeadLetter": {
        "id": "number",
        "job_id": "job that died",
        "open_for": "the job's id while the letter is open, so that there is one at most",
        "task": "of the job",
        "queue": "of the job, when it died",
        "reason": "why it is dead",
        "category": "of the last failure",
        "code": "of the last failure",
        "error_class": "class of the exception",
        "error": "class and message, masked and cut",
        "traceback": "without locals, masked and cut",
        "fingerprint": "of the error, for groups",
        "attempts": "failures until then",
        "cause_id": "dead job that it died with",
        "died_at": "when",
        "closed_at": "when it was requeued, replayed, discarded or cancelled",
        "closed_by_id": "user who did so",
        "note": "why",
    },
    "IdempotencyKey": {
        "id": "number",
        "task": "keys are unique for each task",
        "key": "from the caller",
        "job_id": "job that it stands for",
        "payload_digest": "of the arguments, for `IDEMPOTENCY_STRICT`",
        "expires_at": "until when it is remembered",
    },
    "Workflow": {
        "id": "made by the system; version 4",
        "name": "from the caller",
        "open_jobs": "jobs that have not ended; changed by differences",
        "created_at": "when it was enqueued",
        "finished_at": "when its last job ended",
    },
    "Dependency": {
        "id": "number",
        "job_id": "job that waits",
        "depends_on_id": "job that it waits for",
        "kind": "for which end",
        "position": "place of the result among those that the job takes; empty: takes none",
        "depth": "length of the longest path that ends here",
    },
    "Schedule": {
        "id": "number",
        "name": "unique",
        "task": "name of the task",
        "queue": "empty: that of the task",
        "priority": "empty: that of the task",
        "payload": "arguments, encoded",
        "kind": "cron, fixed rate or fixed delay",
        "cron": "five fields",
        "time_zone": "of the five fields",
        "interval": "of a fixed rate or delay",
        "anchor": "where a fixed rate counts from",
        "catch_up": "what becomes of slots that were missed",
        "overlap": "what becomes of a slot while the job before is open",
        "jitter": "most that a job is put off by chance",
        "declared": "in code or settings, not in the admin",
        "next_at": "first slot that was not dealt with",
        "last_slot": "last slot that became a job",
        "last_job": "that job",
        "enqueued": "slots that became jobs",
        "skipped": "slots that did not",
        "problem": "why it cannot be enqueued; it has stopped",
        "paused_at": "since when it is paused",
        "disabled_at": "since when no code declares it any more",
        "created_at": "when it was first seen",
    },
    "Queue": {
        "name": "a queue that somebody has paused; others have no row",
        "paused_at": "since when; empty: not paused",
        "paused_until": "until when; empty: until `resume`",
        "paused_by_id": "user who did so",
        "note": "why",
    },
    "Worker": {
        "id": "new at every start of a process",
        "name": "`--name`; need not be unique",
        "host": "of the process",
        "pid": "of the process",
        "version": "of this package",
        "queues": "with commas between; `*`: all",
        "slots": "threads",
        "busy": "threads that ran a job at the last heartbeat",
        "memory_bytes": "at the last heartbeat",
        "lease": "`--lease`: not heard of for longer, it counts as silent",
        "started_at": "when the process was ready",
        "last_beat_at": "last heartbeat",
        "request": "what an operator asks of it",
        "stopped_at": "when it said that it ends; empty after a crash",
    },
    "QueueMinute": {
        "id": "number",
        "minute": "its beginning",
        "queue": "one row for each queue",
        "worker": "and each worker, so that none waits for another to count",
        "done": "jobs acked",
        "failed": "failures that are tried again",
        "dead": "jobs buried by a worker's own outcome",
    },
    "Chore": {
        "name": "what is done now and then: expire, prune",
        "next_at": "nobody looks before this time",
        "worker": "who does it, or did last",
        "finished_at": "when it was last done",
    },
}


def tables(table: Table) -> str:
    """Every model: its table, its columns as the models have them, what each means, its indexes."""
    from django.apps import apps

    models = {it.__name__: it for it in apps.get_app_config("taskharbor").get_models()}
    if models.keys() != MEANINGS.keys():
        raise SystemExit(f"_columns.py: {models.keys() ^ MEANINGS.keys()} is not in both.")
    return "\n".join(_model(models[name], MEANINGS[name], table) for name in MEANINGS)


def _model(model: Any, meanings: Mapping[str, str], table: Table) -> str:
    columns = {field.column: field for field in model._meta.concrete_fields}
    if columns.keys() != meanings.keys():
        raise SystemExit(f"_columns.py: {model.__name__} {columns.keys() ^ meanings.keys()}.")
    shown_as = table(
        ("Column", "Type", "Empty", "Meaning"),
        (
            (f"`{name}`", _type(field), "may be" if field.null else "", _meaning(field, meanings))
            for name, field in columns.items()
        ),
    )
    name, text = model._meta.db_table, inspect.getdoc(sys.modules[model.__module__])
    own = "" if str(model.__doc__).startswith(f"{model.__name__}(") else inspect.getdoc(model)
    told = " ".join((own or text or "").partition("\n\n")[0].split())
    return f"## {model.__name__}\n\n`{name}`. {told}\n\n{shown_as}\n{_indexes(model)}"


def _type(field: Any) -> str:
    if field.is_relation:
        return f"id of a `{field.related_model.__name__}`"
    name = field.get_internal_type().removesuffix("Field")
    return f"{name}, {field.max_length}" if name == "Char" else name


def _meaning(field: Any, meanings: Mapping[str, str]) -> str:
    chosen = ", ".join(f"`{value}`" for value, _ in field.choices or () if value != "")
    return meanings[field.column] + (f": {chosen}" if chosen else "")


def _indexes(model: Any) -> str:
    """Indexes and constraints by their names, with their columns and for which rows."""

    def columns(names: Iterable[str]) -> str:
        return ", ".join(f"`{model._meta.get_field(name).column}`" for name in names)

    lines = [
        f"- index `{it.name}`: {columns(it.fields)}{_where(it.condition)}"
        for it in model._meta.indexes
    ]
    for it in model._meta.constraints:
        fields = columns(getattr(it, "fields", ()))
        kind = "unique" if fields else "check"
        lines.append(f"- {kind} `{it.name}`{f': {fields}' * bool(fields)}")
    return "".join(f"{line}\n" for line in lines)


def _where(condition: Any) -> str:
    """Say which rows a partial index has."""
    if condition is None:
        return ""
    ((name, value),) = condition.children
    column, _, lookup = name.partition("__")
    if lookup == "isnull":
        return f", where `{column}` is set"
    states = [value] if isinstance(value, str) else value
    return f", where `{column}` is {' or '.join(f'`{it}`' for it in states)}"
