"""
From a call to a record: what the call, then its task, then the settings say about one job.

Nothing is stored and nothing is read; whatever is wrong with a call is raised here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from .. import payload
from ..callbacks import destination
from ..clock import pretended
from ..conf import Settings, get_settings
from ..context import carried, carries, current
from ..exceptions import InvalidJob, InvalidPayload
from ..task_options import Default, Limit
from ..tasks import Call, Submission, Task
from ..values import URL_MAX_CHARS, JobRecord, new_id


def record_of(call: Call, takes: str = "") -> JobRecord:
    """Make the record of a call, or raise what is wrong with it; `takes` says which results."""
    data, task = payload_of(call, takes), call.task
    if takes or not _is_plain(task.submission):
        return _record(call, data, takes)
    settings, model = task.memory.get("plain", (None, None))
    if settings is not get_settings():
        model = _record(call, b"")  # it stays: no caller's data in it
        model.validate()
        task.memory["plain"] = get_settings(), model
    return cast(JobRecord, model.alike(data))  # a sixth of what a record anew takes


def _is_plain(asked: Submission) -> bool:
    """Say whether what the task, its copy and the settings say is all there is to a record."""
    return (
        asked.idempotency_key is None
        and asked.tags is None
        and not asked.callback_url
        and not (asked.after or asked.after_any)
        and current.get() is None
        and pretended() is None
        and not carries()
    )


def _record(call: Call, data: bytes, takes: str = "") -> JobRecord:
    task, asked, settings = call.task, call.task.submission, get_settings()
    optional = _key(asked, data, settings) if asked.idempotency_key is not None else {}
    if takes:
        optional["input"] = takes
    inherited, context = None, current.get()
    if context is not None:
        inherited, optional["parent"] = context.correlation_id, context.job_id
    if isinstance(asked.callback_url, str) and 0 < len(asked.callback_url) <= URL_MAX_CHARS:
        destination(asked.callback_url, settings.callback_hosts)
    job_id, queue = new_id(), (task.queue or settings.queue) if asked.queue is None else asked.queue
    if (trace := carried(task.name, queue, job_id)) is not None:
        optional["trace"] = trace
    return JobRecord(
        id=job_id,
        task=task.name,
        payload=data,
        queue=queue,
        priority=task.priority if asked.priority is None else asked.priority,
        created_at=pretended(),
        run_at=asked.run_at,
        delay=asked.delay,
        timeout=_timeout(task, asked, settings),
        max_attempts=asked.max_attempts or task.max_attempts or settings.max_attempts,
        lifetime=_limit(asked.lifetime, task.lifetime, settings.lifetime),
        # A copy: the caller may change its own before the job is stored, on commit.
        tags=dict(asked.tags) if isinstance(asked.tags, Mapping) else asked.tags,
        correlation_id=inherited if asked.correlation_id in (None, "") else asked.correlation_id,
        callback_url="" if asked.callback_url is None else asked.callback_url,
        **optional,
    )


def payload_of(call: Call, takes: str = "") -> bytes:
    """The arguments of a call, encoded, or what is wrong with them raised."""
    settings = get_settings()
    _bind(call.task, (None, *call.args) if takes else call.args, call.kwargs)
    return payload.encode_call(
        call.args,
        call.kwargs,
        max_bytes=settings.payload_max_bytes,
        codec=settings.payload_codec,
    )


def _bind(task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        task.check_arguments(args, kwargs)
    except TypeError as problem:
        raise InvalidPayload(f"{task.name}: {problem}", argument="") from None


def _key(asked: Submission, data: bytes, settings: Settings) -> dict[str, Any]:
    return {
        "idempotency_key": asked.idempotency_key,
        "idempotency_ttl": settings.idempotency_ttl
        if asked.idempotency_ttl is None
        else asked.idempotency_ttl,
        "payload_digest": payload.digest(data, codec=settings.payload_codec),
    }


def _limit(asked: Limit, of_task: Limit, of_settings: Any) -> Any:
    for limit in (asked, of_task):
        if not isinstance(limit, Default):
            return limit
    return of_settings


def _timeout(task: Task[Any, Any], asked: Submission, settings: Settings) -> Any:
    timeout, ceiling = _limit(asked.timeout, task.timeout, settings.timeout), settings.max_timeout
    if ceiling is not None and (timeout is None or timeout > ceiling):
        shown = "no limit" if timeout is None else timeout
        raise InvalidJob(
            f"timeout: {shown} is over {ceiling}, which TASKHARBOR['MAX_TIMEOUT'] allows",
            field="timeout",
        )
    return timeout
