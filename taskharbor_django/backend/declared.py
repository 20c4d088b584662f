"""
Tasks of Django's kind, and the tasks of ours that stand for them in the registry.

A worker finds one as it finds every task: by its name, its module and function, in the registry
that imports have filled. Making a task for this backend registers it; a string from the database is
never imported.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.apps import apps

from .. import exceptions, tasks
from ..context import JobContext
from ..tasks import Submission, registry
from ..values import is_queue_name, is_rank, no_option, no_queue_name, shown
from .api import AnyContext, AnyTask, InvalidTask, Task

F = TypeVar("F", bound=Callable[..., Any])

_DJANGO = {"func", "priority", "backend", "queue_name", "run_after", "takes_context"}
# What Django says itself, and what belongs to one call only.
_OURS = {each.name for each in dataclasses.fields(tasks.Task)} | {"max_retries"}
DECLARED = _OURS - {"function", "name", "queue", "priority", "takes_context", "submission"}
CALLED = {each.name for each in dataclasses.fields(Submission)} - {"queue", "priority", "run_at"}

declared: dict[str, AnyTask] = {}


def declared_as(name: str) -> AnyTask | None:
    """The task that jobs of this name are of, which may be an alias; None if none of Django's."""
    return declared.get(registry.get(name).name) if name in registry else None


def options(**given: Any) -> Callable[[F], F]:
    """
    Say what Django's @task has no word for; stands below it, and works with every Django.

    Takes the options of `taskharbor_django.task`, but for those that Django has its own words for.
    """
    _refuse_unknown("options()", given, DECLARED)

    def mark(function: F) -> F:
        function.__dict__["taskharbor_options"] = given
        return function

    return mark


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class HarborTask(AnyTask):
    """
    A task of Django's with options of ours.

    They do not take part in comparisons: two tasks are the same when they are to Django.
    """

    options: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __init__(self, *, options: Mapping[str, Any] | None = None, **given: Any) -> None:
        ours = {name: given.pop(name) for name in sorted(given.keys() - _DJANGO)}
        object.__setattr__(self, "options", {**(options or {}), **ours})
        Task.__init__(self, **given)

    def using(self, **changes: Any) -> HarborTask:
        """A copy for calls with other values; takes those of `using` of our own tasks, too."""
        known = {"priority", "queue_name", "run_after", "backend"}
        ours = {name: changes.pop(name) for name in sorted(changes.keys() - known)}
        _refuse_unknown("using()", ours, CALLED)
        changed = cast(HarborTask, Task.using(self, **changes))
        if not ours:
            return changed
        return dataclasses.replace(changed, options={**changed.options, **ours})

    @property
    def called(self) -> dict[str, Any]:
        """What one call asks for beyond what Django has words for."""
        return {name: value for name, value in self.options.items() if name in CALLED}


def _refuse_unknown(who: str, given: Mapping[str, Any], known: set[str]) -> None:
    for name in sorted(given.keys() - known):
        raise InvalidTask(f"{no_option(who, name, known)}.")


# -- refusing ----------------------------------------------------------------------------------


def refuse(task: AnyTask) -> None:
    """Refuse what Django's own look lets pass, or stumbles over."""
    if not inspect.isfunction(task.func) or "<" in task.func.__qualname__:
        raise InvalidTask(
            f"Task function must be defined at a module level: a worker could not find"
            f" {shown(getattr(task.func, '__qualname__', task.func))} by its name."
        )
    priority: Any = task.priority
    if isinstance(priority, float) and priority.is_integer():
        priority = int(priority)
    if not is_rank(priority):
        raise InvalidTask(
            f"priority must be a whole number between -100 and 100, not {shown(task.priority)}."
        )
    if task.run_after is not None and not isinstance(task.run_after, datetime):
        kind = type(task.run_after).__name__
        raise InvalidTask(f"run_after must be an aware datetime, not {kind}.")
    if not is_queue_name(task.queue_name):
        raise InvalidTask(no_queue_name(task.queue_name))


# -- registering -------------------------------------------------------------------------------


def register(task: AnyTask, defaults: Mapping[str, Any]) -> tasks.Task[Any, Any]:
    """The task of ours that stands for this one; made for the first that has this function."""
    name = task.module_path
    known = declared.get(name)
    if known is None or known.func is not task.func or name not in registry:
        _add(task, defaults)
    return registry.get(name)


def _add(task: AnyTask, defaults: Mapping[str, Any]) -> None:
    marked = getattr(task.func, "taskharbor_options", {})
    said = {name: it for name, it in getattr(task, "options", {}).items() if name not in _FOR_CALLS}
    wanted = {"record_attempts": "all", **defaults, **marked, **said}
    try:
        tasks.task(
            name=task.module_path,
            # One that was made for another backend may name what is no queue here.
            queue=task.queue_name if is_queue_name(task.queue_name) else None,
            priority=-int(task.priority),
            takes_context=task.takes_context,
            **wanted,
        )(_with_context(task.func) if task.takes_context else task.func)
    except exceptions.InvalidTask as problem:
        raise InvalidTask(str(problem)) from None
    declared[task.module_path] = task


_FOR_CALLS = CALLED - DECLARED


def _with_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as our workers call it: with our context, which becomes Django's."""
    if iscoroutinefunction(function):

        @functools.wraps(function)
        async def arun(context: JobContext, *args: Any, **kwargs: Any) -> Any:
            made = await sync_to_async(_context)(context)
            return await function(made, *args, **kwargs)

        return arun

    @functools.wraps(function)
    def run(context: JobContext, *args: Any, **kwargs: Any) -> Any:
        return function(_context(context), *args, **kwargs)

    return run


def _context(context: JobContext) -> AnyContext:
    from .results import context_of

    return context_of(context)


def discover() -> None:
    """
    Register the tasks in the `tasks` modules of installed apps that were made for another backend.

    They may be enqueued by `using(backend=…)`, in a process that workers know nothing of.
    """
    for config in apps.get_app_configs():
        module = sys.modules.get(f"{config.name}.tasks")
        for task in list(vars(module).values()) if module else ():
            if isinstance(task, Task) and task.module_path not in registry:
                _add(task, {})
