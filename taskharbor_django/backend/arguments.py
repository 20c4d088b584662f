"""
Arguments as Django's task API defines them: JSON, and nothing else.

Tuples become lists and bytes text, as in every backend, so that a result says the same wherever it
comes from. What JSON, or some backend's database, could not keep is refused here, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..exceptions import InvalidPayload
from ..values import shown

MAX_DEPTH = 64


def plain_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as plain JSON, or raise what is wrong with which of them."""
    plain_args = [_plain(it, f"argument {place}") for place, it in enumerate(args, start=1)]
    return plain_args, {name: _plain(it, f"argument {name!r}") for name, it in kwargs.items()}


def _plain(value: Any, where: str, room: int = MAX_DEPTH) -> Any:
    if not room:
        raise InvalidPayload(f"{where} is nested deeper than {MAX_DEPTH} levels.", argument=where)
    if isinstance(value, bytes):
        value = _text(value, where)
    if isinstance(value, str):
        return _storable(value, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidPayload(f"{where}: {value} is not JSON.", argument=where)
    if value is None or isinstance(value, bool):
        return value
    # To JSON a member of an enumeration is the number, or the text, that it also is.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(it, where, room - 1) for key, it in value.items()}
    if isinstance(value, Sequence):
        return [_plain(it, where, room - 1) for it in value]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"Unsupported type: {where} holds a {kind}, which is not JSON.")


def plain_value(value: Any) -> Any:
    """What a task returned, as every backend gives it; as it was, where JSON cannot say it."""
    try:
        return _plain(value, "result")
    except (InvalidPayload, TypeError):
        return value


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise InvalidPayload(
            f"{where} has the key {shown(key)}; JSON would make it text. Pass str() of it.",
            argument=where,
        )
    return _storable(key, where)


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidPayload(
            f"{where} holds bytes that are no UTF-8 text.", argument=where
        ) from None


def _storable(text: str, where: str) -> str:
    if "\0" in text:
        raise InvalidPayload(
            f"{where} holds a NUL character, which databases do not keep in JSON.", argument=where
        )
    return str.__str__(text)
