"""What can run: tasks, the decorator that makes them, the registry that workers look into."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from asgiref.sync import iscoroutinefunction, sync_to_async

from .backoff import Backoff
from .exceptions import InvalidJob, InvalidTask, UnknownTask
from .task_options import DEFAULT, Limit, checked_options, duration_option
from .values import is_queue_name, no_option, no_queue_name, shown

MOST_SHAPES = 100  # remembered for a task that takes any names
UNKNOWN = "No installed app has registered a task {!r:.250}; the module tasks of each is imported."

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """What one enqueue asks for beyond what its task says."""

    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    timeout: Limit = DEFAULT
    max_attempts: int | None = None
    idempotency_key: str | None = None
    idempotency_ttl: timedelta | None = None
    tags: Mapping[str, str] | None = None
    correlation_id: str | None = None
    callback_url: str = ""
    lifetime: Limit = DEFAULT
    after: tuple[Any, ...] = ()
    after_any: tuple[Any, ...] = ()


class Submitter(Protocol):
    """What stores calls; `operations.enqueue` offers itself when the app is ready."""

    def enqueue(self, call: Call) -> Any: ...
    def enqueue_on_commit(self, call: Call) -> None: ...
    def enqueue_many(
        self, calls: Iterable[Call], batch_size: int, on_batch: Callable[[list[UUID]], Any] | None
    ) -> int: ...


_submitter: Submitter | None = None


def submit_through(submitter: Submitter) -> Submitter | None:
    """Store calls through this one from now on; return the one before."""
    global _submitter
    before, _submitter = _submitter, submitter
    return before


def _submit() -> Submitter:
    if _submitter is None:
        raise UnknownTask("Nothing can be enqueued before Django's apps are ready.")
    return _submitter


@dataclass(frozen=True, slots=True)
class Call:
    """A task with arguments, not yet stored."""

    task: Task[Any, Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Signature(Call):
    """A call that can be a step of a workflow; an immutable one takes no results."""

    immutable: bool = False

    def enqueue(self) -> Any:
        """Store it as a job of its own; return its handle."""
        return _submit().enqueue(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task(Generic[P, R]):
    """A function that workers run by name; calling it runs it here and now."""

    function: Callable[P, R]
    name: str
    queue: str | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout: Limit = DEFAULT
    backoff: Backoff | None = None
    retry_on: tuple[Any, ...] = ()
    bury_on: tuple[Any, ...] = ()
    atomic: bool = False
    isolation: str | None = None
    takes_context: bool = False
    lifetime: Limit = DEFAULT
    result_ttl: Limit = DEFAULT
    keep: bool = True
    record_attempts: str | None = None
    aliases: tuple[str, ...] = ()
    description: str = ""
    submission: Submission = Submission()

    def __post_init__(self) -> None:
        # What functools.update_wrapper does, past the frozen __setattr__.
        for name in functools.WRAPPER_ASSIGNMENTS:
            self.__dict__[name] = getattr(self.function, name, None)
        self.__dict__["__wrapped__"] = self.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @functools.cached_property
    def is_async(self) -> bool:
        return iscoroutinefunction(self.function)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """What a caller passes: without the context that the worker puts first."""
        whole = inspect.signature(self.function)
        parameters = list(whole.parameters.values())
        # *args takes the context and whatever the caller passes after it.
        if self.takes_context and parameters[0].kind != inspect.Parameter.VAR_POSITIONAL:
            del parameters[0]
        return whole.replace(parameters=parameters)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """
        Raise TypeError unless a call with these can be made.

        Only their number and names matter, so that calls of a known shape are let through.
        """
        shape = len(args), *kwargs
        if shape not in self._shapes:
            self.signature.bind(*args, **kwargs)
            if len(self._shapes) < MOST_SHAPES:
                self._shapes.add(shape)

    @functools.cached_property
    def _shapes(self) -> set[tuple[Any, ...]]:
        return set()

    @functools.cached_property
    def memory(self) -> dict[str, Any]:
        """What a submitter keeps of this task, so that the next call costs less."""
        return {}

    # -- enqueue ---------------------------------------------------------------------------------

    def using(self, **options: Any) -> Task[P, R]:
        """A copy that enqueues with these options: queue, priority, run_at or delay, ..."""
        known = {field.name for field in dataclasses.fields(Submission)}
        for name in sorted(options.keys() - known):
            raise InvalidJob(no_option("using()", name, known), field=name)
        queue = options.get("queue")
        if queue is not None and not is_queue_name(queue):
            raise InvalidJob(f"queue: {no_queue_name(queue)}", field="queue")
        for name in ("delay", "timeout", "lifetime", "idempotency_ttl"):
            if options.get(name) is not None:
                options[name] = duration_option(name, options[name])
        for name in ("after", "after_any"):
            if name in options:
                options[name] = _several(name, options[name])
        submission = dataclasses.replace(self.submission, **options)
        if submission.run_at is not None and submission.delay is not None:
            raise InvalidJob("delay: give run_at or delay, not both", field="delay")
        return dataclasses.replace(self, submission=submission)

    # The slashes leave every name, also `self`, to the task's own arguments.
    def call(self, /, *args: Any, **kwargs: Any) -> Call:
        """These arguments for this task, to be given to enqueue_many."""
        return Call(self, args, kwargs)

    def s(self, /, *args: Any, **kwargs: Any) -> Signature:
        """These arguments for this task, to be put into a workflow."""
        return Signature(self, args, kwargs)

    def si(self, /, *args: Any, **kwargs: Any) -> Signature:
        """The same, and no result of a step before it is put in front of these arguments."""
        return Signature(self, args, kwargs, immutable=True)

    def enqueue(self, /, *args: Any, **kwargs: Any) -> Any:
        """Store a job in the caller's transaction; return its handle."""
        return _submit().enqueue(Call(self, args, kwargs))

    def enqueue_on_commit(self, /, *args: Any, **kwargs: Any) -> None:
        """Store a job once the caller's transactions, of whatever database, have committed."""
        _submit().enqueue_on_commit(Call(self, args, kwargs))

    def enqueue_many(
        self,
        calls: Iterable[Any],
        *,
        batch_size: int = 1_000,
        on_batch: Callable[[list[UUID]], Any] | None = None,
    ) -> int:
        """
        Store a job for each item, a tuple of args or a dict of kwargs; return how many are new.

        All or none are stored. Items are drawn as they are needed and not kept; `on_batch` is
        told the ids of each batch.
        """
        made = (self._item(item) for item in calls)
        return _submit().enqueue_many(made, batch_size, on_batch)

    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> Any:
        return await _to_thread(lambda: self.enqueue(*args, **kwargs))

    async def aenqueue_on_commit(self, /, *args: Any, **kwargs: Any) -> None:
        await _to_thread(lambda: self.enqueue_on_commit(*args, **kwargs))

    async def aenqueue_many(self, calls: Iterable[Any], **options: Any) -> int:
        return int(await _to_thread(lambda: self.enqueue_many(calls, **options)))

    def _item(self, item: Any) -> Call:
        if isinstance(item, Call):
            return item
        if isinstance(item, tuple):
            return Call(self, item)
        if isinstance(item, dict):
            return Call(self, (), item)
        raise _no_item(item, "tuples of args, dicts of kwargs, or calls")


def _several(name: str, jobs: Any) -> tuple[Any, ...]:
    """Jobs to wait for: one, or any number of them."""
    if jobs is None:
        return ()
    one = isinstance(jobs, str | UUID) or hasattr(jobs, "id")
    if not one and not isinstance(jobs, Iterable):
        raise InvalidJob(f"{name}: {shown(jobs)} is no job to wait for", field=name)
    return (jobs,) if one else tuple(jobs)


def _no_item(item: Any, wanted: str) -> InvalidJob:
    kind = type(item).__name__
    return InvalidJob(f"enqueue_many takes {wanted}; not {kind}", field="payload")


async def _to_thread(function: Callable[[], Any]) -> Any:
    """Run in the thread that Django's connections belong to, as its own async methods do."""
    return await sync_to_async(function)()


def enqueue_many(
    calls: Iterable[Call],
    *,
    batch_size: int = 1_000,
    on_batch: Callable[[list[UUID]], Any] | None = None,
) -> int:
    """Store calls of any tasks, made by `task.call(...)`; see Task.enqueue_many."""
    made = (_call(item) for item in calls)
    return _submit().enqueue_many(made, batch_size, on_batch)


def _call(item: Any) -> Call:
    if not isinstance(item, Call):
        raise _no_item(item, "what task.call(...) makes")
    return item


# -- the registry ------------------------------------------------------------------------------


class Registry:
    """Tasks by name and alias. Only imports fill it; a name read from a job never imports."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}

    def add(self, task: Task[Any, Any]) -> None:
        for name in (task.name, *task.aliases):
            known = self._tasks.get(name)
            if known is not None and not _same_place(known, task):
                raise InvalidTask(f"two tasks are called {name!r}: {_place(known)}, {_place(task)}")
        for name in (task.name, *task.aliases):
            self._tasks[name] = task

    def get(self, name: str) -> Task[Any, Any]:
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(UNKNOWN.format(name)) from None

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def names(self) -> list[str]:
        """All names that jobs may have been stored under, aliases too."""
        return sorted(self._tasks)

    def __iter__(self) -> Any:
        return iter(sorted({task.name: task for task in self._tasks.values()}.items()))


registry = Registry()


def _place(task: Task[Any, Any]) -> str:
    return f"{task.function.__module__}.{task.function.__qualname__}"


def _same_place(one: Task[Any, Any], other: Task[Any, Any]) -> bool:
    """A module that is loaded again replaces its own tasks."""
    return _place(one) == _place(other)


# -- the decorator -----------------------------------------------------------------------------


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(**options: Any) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a task, bare or with options, and register it under its name."""
    if function is None:
        return lambda decorated: _registered(decorated, options)
    return _registered(function, options)


_OPTIONS = {field.name for field in dataclasses.fields(Task)} - {"function", "submission"}


def _registered(function: Callable[..., Any], options: dict[str, Any]) -> Task[Any, Any]:
    # A partial or another callable object has no name that a job could be stored under.
    named = callable(function) and hasattr(function, "__qualname__")
    if not named or isinstance(function, type | Task):
        raise InvalidTask(f"a task must be a function, not {shown(function)}")
    made: Task[Any, Any] = Task(function=function, **checked_options(function, options, _OPTIONS))
    registry.add(made)
    return made
