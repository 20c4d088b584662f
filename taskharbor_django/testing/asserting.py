"""What should have been enqueued, and what should not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.test import TestCase

from ..conf import get_settings
from ..exceptions import PayloadCorrupt
from ..models import Job
from ..operations import JobHandle
from ..payload import decode_call
from ..tasks import Task, registry
from .allowed import allowed_aliases

SHOWN = 10


def assert_enqueued(
    task: Any = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    count: int | None = None,
    **columns: Any,
) -> JobHandle:
    """
    Fail unless there is a job of this task, in whatever state; return the first.

    `args` and `kwargs` are those of the call, as far as they matter: `args=[7]` also finds a call
    with that argument by its name. `count` says how many there must be. Anything else is a column
    of the job, or a lookup: `queue="mail"`, `state="scheduled"`, `tags__order="A-7"`.
    """
    if count is not None and count < 1:
        raise ValueError("count must be at least 1; for none there is assert_not_enqueued")
    found, others = _found(task, args, kwargs, columns)
    if not found:
        raise AssertionError(_said("No such job was enqueued", task, others))
    if count is not None and len(found) != count:
        raise AssertionError(
            _said(f"{len(found)} such jobs were enqueued, not {count}", task, others)
        )
    return found[0]


def assert_not_enqueued(
    task: Any = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **columns: Any,
) -> None:
    """Fail if there is a job like this."""
    found, others = _found(task, args, kwargs, columns)
    if found:
        what = "A job like this was" if len(found) == 1 else f"{len(found)} jobs like this were"
        raise AssertionError(_said(f"{what} enqueued", task, others))


async def aassert_enqueued(*args: Any, **options: Any) -> JobHandle:
    return await sync_to_async(assert_enqueued)(*args, **options)


async def aassert_not_enqueued(*args: Any, **options: Any) -> None:
    await sync_to_async(assert_not_enqueued)(*args, **options)


@contextlib.contextmanager
def capture_on_commit(
    *, using: str | None = None, execute: bool = True
) -> Iterator[list[Callable[[], object]]]:
    """
    Take what waits for the commit inside the block, and call it at its end.

    For `enqueue_on_commit` in tests whose transaction is never committed. It is Django's own
    `captureOnCommitCallbacks`, for tests of every style, on all databases or on one.
    """
    callbacks: list[Callable[[], object]] = []
    captured: list[list[Callable[[], object]]] = []
    try:
        with contextlib.ExitStack() as stack:
            for alias in [using] if using else connections:
                capture = TestCase.captureOnCommitCallbacks(using=alias, execute=execute)
                captured.append(stack.enter_context(capture))
            yield callbacks
    finally:
        for found in captured:
            callbacks += found


# -- finding -----------------------------------------------------------------------------------


def _found(
    task: Any,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    columns: Mapping[str, Any],
) -> tuple[list[JobHandle], list[Job]]:
    """The jobs that match, and all of that task."""
    name, found, others = _name_of(task), list[JobHandle](), list[Job]()
    for using in allowed_aliases():
        jobs = Job.objects.using(using).order_by("created_at", "seq")
        if name is not None:
            jobs = jobs.filter(task=name)
        others += jobs[: 10 * SHOWN]
        found += [
            JobHandle.of(job.pk, using=using)
            for job in jobs.filter(**columns)
            if _matches(job, args, kwargs)
        ]
    return found, others


def _name_of(task: Any) -> str | None:
    if task is None or isinstance(task, str):
        return task
    if isinstance(task, Task):
        return task.name
    # A task of Django's own API is registered under the path of its function.
    return str(task.module_path)


def _matches(job: Job, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> bool:
    if args is None and kwargs is None:
        return True
    had_args, had_kwargs = _arguments(job)
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    if job.task not in registry:
        return had_args[: len(args)] == args and had_kwargs.items() >= kwargs.items()
    signature = registry.get(job.task).signature
    try:
        wanted = signature.bind_partial(*args, **kwargs)
    except TypeError:
        return False
    had = signature.bind_partial(*had_args, **had_kwargs)
    had.apply_defaults()
    return all(
        name in had.arguments and had.arguments[name] == value
        for name, value in wanted.arguments.items()
    )


def _arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return decode_call(bytes(job.payload), codec=get_settings().payload_codec)
    except PayloadCorrupt:
        return (), {}


def _said(problem: str, task: Any, jobs: Sequence[Job]) -> str:
    which = "" if task is None else f" of {_name_of(task)}"
    if not jobs:
        return f"{problem}; there are no jobs{which}."
    lines = [f"  {_call(job)}, {job.queue}, {job.state}" for job in jobs[:SHOWN]]
    if len(jobs) > SHOWN:
        lines.append("  …")
    return "\n".join([f"{problem}. Jobs{which}:", *lines])


def _call(job: Job) -> str:
    args, kwargs = _arguments(job)
    shown = [repr(it) for it in args] + [f"{name}={it!r}" for name, it in kwargs.items()]
    return f"{job.task}({', '.join(shown)})"
