"""The options of @task: what each accepts, and the form in which a task keeps it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from asgiref.sync import iscoroutinefunction

from .backoff import Backoff
from .backoff import parse as parse_backoff
from .exceptions import InvalidJob, InvalidTask
from .lifecycle import FailureCategory
from .values import (
    NAME_MAX_CHARS,
    as_duration,
    is_queue_name,
    is_rank,
    is_storable,
    no_option,
    shown,
)


class Default:
    """Stands for "as the settings say", where None means "no limit"."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()
Limit = timedelta | Default | None


def checked_options(
    function: Callable[..., Any], options: dict[str, Any], known: set[str]
) -> dict[str, Any]:
    """Read what was given to @task, or raise InvalidTask saying what does not fit."""
    known = known | {"max_retries"}
    for name in sorted(options.keys() - known):
        raise InvalidTask(no_option("@task", name, known))
    # None is the same as not given, but for the limits, where it means that there is none.
    options = {
        name: options[name] for name in options if options[name] is not None or name in _LIMITS
    }
    options["name"] = _name_of(function, options.get("name"))
    if "max_retries" in options:
        options["max_attempts"] = _attempts(options)
    _refuse_values(options)
    if options.get("atomic") and iscoroutinefunction(function):
        raise InvalidTask(f"{options['name']}: an async task cannot be atomic")
    if options.get("takes_context") and not _takes_a_first(function):
        raise InvalidTask(f"{options['name']}: takes_context, but there is no argument to take it")
    options.setdefault("description", (inspect.getdoc(function) or "").partition("\n")[0])
    return _read(options)


def _refuse_values(options: dict[str, Any]) -> None:
    for name, (holds, wanted) in _OPTION_RULES.items():
        if name in options and not holds(options[name]):
            value = shown(options[name])
            raise InvalidTask(f"{options['name']}: {name} must be {wanted}, not {value}")


def _read(options: dict[str, Any]) -> dict[str, Any]:
    """Give each option the form that a Task keeps."""
    for name in _LIMITS:
        if options.get(name) is not None:
            options[name] = duration_option(name, options[name], InvalidTask)
    for name in ("retry_on", "bury_on", "aliases"):
        if name in options:
            options[name] = _as_tuple(options[name])
    if "backoff" in options:
        options["backoff"] = _backoff(options["backoff"])
    return options


def _takes_a_first(function: Callable[..., Any]) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    return bool(kinds) and kinds[0] not in (
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )


def _name_of(function: Callable[..., Any], name: Any) -> str:
    if name is None:
        name = f"{function.__module__}.{function.__qualname__}"
        if "<" in name:
            raise InvalidTask(f"{name} is a lambda or local function; give it a name= of its own")
    if not _is_name(name):
        raise InvalidTask(f"a task's name must have 1-{NAME_MAX_CHARS} characters: {shown(name)}")
    return str(name)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME_MAX_CHARS and is_storable(value)


def _attempts(options: dict[str, Any]) -> int:
    retries = options.pop("max_retries")
    if "max_attempts" in options:
        raise InvalidTask("give max_attempts or max_retries, not both")
    if not _is_count(retries):
        raise InvalidTask(f"max_retries must be a whole number from 0, not {shown(retries)}")
    return int(retries) + 1


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 - 1


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _are_failures(value: Any) -> bool:
    return all(
        item in FailureCategory.values
        if isinstance(item, str)
        else isinstance(item, type) and issubclass(item, BaseException)
        for item in _as_tuple(value)
    )


def _are_names(value: Any) -> bool:
    return all(_is_name(item) for item in _as_tuple(value))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)


_LIMITS = ("timeout", "lifetime", "result_ttl")
_MAY_BE_ZERO = ("delay", "result_ttl", "idempotency_ttl")

_FLAG = (_is_flag, "True or False")
_FAILURES = (_are_failures, "exception classes or failure categories")

_OPTION_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "queue": (is_queue_name, "a queue name"),
    "priority": (is_rank, "a Priority or a rank from -100 to 100"),
    "max_attempts": (_is_count, "a whole number from 0"),
    "isolation": (lambda value: value == "process", "'process' or None"),
    "atomic": _FLAG,
    "takes_context": _FLAG,
    "keep": _FLAG,
    "record_attempts": (lambda value: value in ("failures", "all"), "'failures' or 'all'"),
    "retry_on": _FAILURES,
    "bury_on": _FAILURES,
    "aliases": (_are_names, "task names"),
    "description": (lambda value: isinstance(value, str), "text"),
}


def duration_option(
    name: str, value: Any, error: type[InvalidJob] | type[InvalidTask] = InvalidJob
) -> Any:
    if isinstance(value, Default):
        return value
    try:
        duration = as_duration(value)
    except ValueError as problem:
        raise error(f"{name}: {problem}", field=name) from None
    if not duration and name not in _MAY_BE_ZERO:
        raise error(f"{name}: must be more than zero; None means no limit", field=name)
    return duration


def _backoff(value: Any) -> Backoff:
    try:
        return parse_backoff(value)
    except ValueError as problem:
        raise InvalidTask(f"backoff: {problem}") from None
