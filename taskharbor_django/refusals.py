"""
Why a value cannot be stored: the slow second look, once encoding has failed.

The texts name the argument, the way inside it and the type, never the value, which may be a secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, time
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from .exceptions import InvalidPayload, PayloadTooLarge
from .wire import (
    MAX_DEPTH,
    PLAIN,
    WRITERS,
    OverLimit,
    Unencodable,
    Writer,
    plain_type,
    type_name,
)

Named = list[tuple[str, Any]]


def arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Named:
    """Give every argument of a call the name that errors use."""
    if _key_reason(kwargs):
        return [("keyword arguments", kwargs)]
    named = [(f"argument {place}", value) for place, value in enumerate(args, start=1)]
    return named + [(f"keyword argument {_short(name)}", kwargs[name]) for name in kwargs]


def refusal(
    error: Exception, named: Named, max_bytes: int, room: int = MAX_DEPTH
) -> InvalidPayload:
    """Make the error that says which of the named values cannot be stored, and why."""
    if isinstance(error, OverLimit | PayloadTooLarge):
        return _too_large(error, named, max_bytes)
    for name, value in named:
        if fault := find_fault(value, room):
            where = f"{name}{fault.trail} ({type_name(fault.kind)})"
            return InvalidPayload(f"{where} cannot be stored: {fault.reason}.", argument=name)
    # Nothing to find by the rules of JSON: the codec in use has rules of its own.
    return error if isinstance(error, InvalidPayload) else InvalidPayload()


def _too_large(error: Exception, named: Named, max_bytes: int) -> PayloadTooLarge:
    weigh = partial(_weight, limit=max_bytes)
    name, largest = max(named, key=lambda pair: weigh(pair[1]), default=("the call", ()))
    size = f"more than {max_bytes:,} bytes"
    if isinstance(error, OverLimit) and error.args:
        size = f"{error.args[0]:,} bytes where {max_bytes:,} are allowed"
    kind = type_name(type(largest))
    return PayloadTooLarge(
        f"Too large to be stored: {size}; the largest part is {name} ({kind})."
        f" Store it as a row or a file, and pass its id or path instead.",
        argument=name,
    )


def _weight(value: Any, limit: int) -> int:
    """Return about how many bytes a value takes; one beyond the limit is not looked at further."""
    writer = Writer(limit)
    with suppress(OverLimit, Unencodable):
        writer.write(value)
    return limit - writer.left


# -- finding it -------------------------------------------------------------------------------


class Fault(NamedTuple):
    """The way to a value that has no wire form, its type, and the reason."""

    steps: tuple[str | int, ...]
    kind: type
    reason: str

    @property
    def trail(self) -> str:
        shown = "".join(f"[{_short(step)}]" for step in self.steps[:8])
        return shown + "…" if len(self.steps) > 8 else shown


def find_fault(value: Any, room: int, above: tuple[Any, ...] = ()) -> Fault | None:
    """Look for the first thing that a Writer or the JSON encoder would stumble over."""
    if reason := _reason(value, room, above):
        return Fault((), type(value), reason)
    for step, item in _inside(value):
        if fault := find_fault(item, room - 1, (*above, value)):
            return fault._replace(steps=(step, *fault.steps))
    return None


def _inside(value: Any) -> Iterator[tuple[str | int, Any]]:
    if type(value) is dict:
        yield from value.items()
    elif type(value) in (list, tuple):
        yield from enumerate(value)


def _short(step: str | int) -> str:
    return repr(step[:40] + "…" if isinstance(step, str) and len(step) > 40 else step)


# -- the reasons ------------------------------------------------------------------------------


def _reason(value: Any, room: int, above: tuple[Any, ...]) -> str:
    kind = plain_type(value)
    if kind in (list, tuple, dict):
        if any(value is container for container in above):
            return "it contains itself"
        if not room:
            return f"it is nested deeper than {MAX_DEPTH} levels"
    elif kind not in PLAIN and kind not in WRITERS:
        return _hint(kind)
    return _CHECKS[kind](value) if kind in _CHECKS else ""


def _text_reason(value: str) -> str:
    try:
        str.encode(value)
    except UnicodeEncodeError:
        return "it holds a lone surrogate, which is not text"
    return ""


def _key_reason(value: Mapping[Any, Any]) -> str:
    for key in value:
        if type(key) is not str:
            return f"it has a key of type {type_name(type(key))}, and keys must be str"
        if _text_reason(key):
            return "it has a key with a lone surrogate, which is not text"
    return ""


def _digits_reason(value: int) -> str:
    try:
        int.__repr__(value)
    except ValueError:
        return "it has more digits than Python converts; pass hex() of it"
    return ""


def _zone_reason(value: datetime | time) -> str:
    try:
        WRITERS[plain_type(value)][1](value)
    except Exception:  # noqa: BLE001 - a time zone class may raise what it likes
        return "its time zone gives no offset in whole seconds; use one of zoneinfo"
    return ""


_NOT_FINITE = "NaN and infinities are not allowed"
_CHECKS: dict[type, Callable[[Any], str]] = {
    dict: _key_reason,
    str: _text_reason,
    int: _digits_reason,
    float: lambda value: "" if math.isfinite(value) else _NOT_FINITE,
    Decimal: lambda value: "" if value.is_finite() else _NOT_FINITE,
    datetime: _zone_reason,
    time: _zone_reason,
}

# The first line that names the type or an ancestor counts: the special ones stand first.
_HINTS = {
    "enum.Enum": "pass its .value",
    "django.db.models.base.Model": "pass its pk and load it in the task",
    "django.db.models.query.QuerySet": "pass a list of primary keys",
    "django.utils.functional.Promise": "it is lazy, pass str() of it",
    "django.utils.functional.LazyObject": "it is lazy, pass the pk of what it stands for",
    "bytearray": "pass bytes() of it",
    "memoryview": "pass bytes() of it",
    "tuple": "pass tuple() of it",
    "list": "pass list() of it",
    "dict": "pass dict() of it",
    "str": "pass a plain str",
    "bytes": "pass a plain bytes",
    "int": "pass a plain int",
    "float": "pass a plain float",
    "uuid.UUID": "pass a plain UUID",
    "decimal.Decimal": "pass a plain Decimal",
    "datetime.datetime": "pass a plain datetime",
    "datetime.date": "pass a plain date",
    "datetime.time": "pass a plain time",
    "datetime.timedelta": "pass a plain timedelta",
}


def _hint(kind: type) -> str:
    """Say what to pass instead, by the type alone: touching a lazy object would evaluate it."""
    family = {type_name(ancestor) for ancestor in kind.__mro__}
    for name, advice in _HINTS.items():
        if name in family:
            return advice
    if hasattr(kind, "__dataclass_fields__"):
        return "pass dataclasses.asdict() of it"
    if hasattr(kind, "__fspath__"):
        return "pass str() of it"
    return "pass a list" if hasattr(kind, "__iter__") else "pass plain data, or an id to load it by"
