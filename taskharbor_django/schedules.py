"""What the code declares about recurring work: `@schedule`, and TASKHARBOR["SCHEDULES"]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from .exceptions import InvalidSchedule
from .tasks import Task
from .timing import CatchUp, Overlap, Timing, timing_of
from .values import (
    NAME_MAX_CHARS,
    as_duration,
    is_queue_name,
    is_rank,
    is_storable,
    no_option,
    no_queue_name,
    shown,
)

AnyTask = TypeVar("AnyTask", bound=Task[Any, Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One schedule as code, settings or a form describe it; made by `declare`."""

    name: str
    task: str
    timing: Timing
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str = ""
    priority: int | None = None
    catch_up: CatchUp = CatchUp.SKIP
    overlap: Overlap = Overlap.SKIP
    jitter: timedelta | None = None


def declare(name: Any, task: Any, **options: Any) -> Declared:
    """Read the options of a schedule, or raise InvalidSchedule saying what does not fit."""
    for what, value in (("name", name), ("task", task)):
        if not isinstance(value, str) or not 0 < len(value) <= NAME_MAX_CHARS:
            raise InvalidSchedule(f"{what}: {shown(value)} has not 1-{NAME_MAX_CHARS} characters")
        if not is_storable(value):
            raise InvalidSchedule(f"{what}: holds a NUL character or a lone surrogate")
    known = _TIMES | _READ.keys()
    for unknown in sorted(map(str, options.keys() - known)):
        raise InvalidSchedule(no_option(f"{name}: a schedule", unknown, known))
    try:
        timing = timing_of(**{key: options[key] for key in options.keys() & _TIMES})
        read = {
            key: _READ[key](options[key])
            for key in _READ
            if options.get(key) is not None  # the same as not given
        }
    except ValueError as problem:
        raise InvalidSchedule(f"{name}: {problem}") from None
    declared = Declared(name=name, task=task, timing=timing, **read)
    if declared.catch_up == CatchUp.ALL and declared.overlap == Overlap.SKIP:
        raise InvalidSchedule(
            f"{name}: catch_up='all' makes up for several slots at once: it needs overlap='allow'"
        )
    return declared


def _args(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"args: must be a list or tuple, not {shown(value)}")  # noqa: TRY004  one kind of error for all that is wrong
    return tuple(value)


def _kwargs(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"kwargs: must be a dict of names, not {shown(value)}")
    return dict(value)


def _queue(value: Any) -> str:
    if not is_queue_name(value):
        raise ValueError(f"queue: {no_queue_name(value)}")
    return str(value)


def _priority(value: Any) -> int:
    if not is_rank(value):
        raise ValueError(f"priority: {shown(value)} is not a rank from -100 to 100")
    return int(value)


def _jitter(value: Any) -> timedelta:
    try:
        return as_duration(value)
    except ValueError as problem:
        raise ValueError(f"jitter: {problem}") from None


def _one_of(choices: Any, name: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return choices(value)
        except ValueError:
            known = " or ".join(map(repr, choices.values))
            raise ValueError(f"{name}: must be {known}, not {shown(value)}") from None

    return read


_TIMES = {"cron", "fixed_rate", "fixed_delay", "time_zone", "anchor"}
_READ: dict[str, Callable[[Any], Any]] = {
    "args": _args,
    "kwargs": _kwargs,
    "queue": _queue,
    "priority": _priority,
    "catch_up": _one_of(CatchUp, "catch_up"),
    "overlap": _one_of(Overlap, "overlap"),
    "jitter": _jitter,
}


# -- by decorator ------------------------------------------------------------------------------

_declared: dict[str, tuple[Declared, str]] = {}  # name -> what, by which function


def schedule(*, name: str | None = None, **options: Any) -> Callable[[AnyTask], AnyTask]:
    """Enqueue a task again and again; stands above @task."""

    def decorate(task: AnyTask) -> AnyTask:
        if not isinstance(task, Task):
            raise InvalidSchedule(f"@schedule stands above @task: {shown(task)} is no task")
        declared = declare(task.name if name is None else name, task.name, **options)
        refuse_arguments(declared, task)
        place = f"{task.function.__module__}.{task.function.__qualname__}"
        known = _declared.get(declared.name)
        # A module that is loaded again replaces its own schedules.
        if known is not None and (known[1] != place or known[0].timing != declared.timing):
            raise InvalidSchedule(f"two schedules are called {declared.name!r}: give one a name=")
        _declared[declared.name] = declared, place
        return task

    return decorate


def refuse_arguments(declared: Declared, task: Task[Any, Any]) -> None:
    """Raise InvalidSchedule unless the task can be called as the schedule will."""
    try:
        task.check_arguments(declared.args, declared.kwargs)
    except TypeError as problem:
        raise InvalidSchedule(f"{declared.name}: {task.name}: {problem}") from None


def by_decorator() -> list[Declared]:
    """What @schedule has declared so far."""
    return [declared for declared, _ in _declared.values()]
