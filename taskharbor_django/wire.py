"""
Values as JSON: plain where JSON has the type, tagged where it has not.

A tag is an object whose only key begins with "!", such as {"!uuid": "…"}. A caller's dict that
looks like one gets a second "!" in front of its key, and loses it again on the way back.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

MAX_DEPTH = 64
# Twice the largest limit that settings allow: a codec may make the bytes smaller.
CEILING = 32 * 1024 * 1024

PLAIN = frozenset({str, int, float, bool, type(None)})
_TEXT = frozenset({str})


class Unencodable(Exception):
    """Something in the value has no wire form; refusals.find_fault says what and where."""


class OverLimit(Exception):
    """The value certainly takes more bytes than allowed."""


# -- tags: how to write and how to read one ---------------------------------------------------


def _zone(value: datetime | time) -> str | None:
    """Return the name of the value's time zone, None when an offset says it all."""
    zone = value.tzinfo
    if type(zone) is ZoneInfo and zone.key:
        return zone.key
    # Below a second datetime.fromisoformat loses part of an offset; no zone on earth has one.
    if zone is not None and ((offset := value.utcoffset()) is None or offset.microseconds):
        raise Unencodable
    return None


def _write_moment(value: datetime | time) -> Any:
    text, zone = value.isoformat(), _zone(value)
    return [text, value.fold, zone] if zone or value.fold else text


def _read_datetime(wire: Any) -> datetime:
    if type(wire) is str:
        return datetime.fromisoformat(wire)
    text, fold, zone = wire
    moment = datetime.fromisoformat(text).replace(fold=fold)
    return _in_zone(moment, zone) if zone else moment


def _in_zone(moment: datetime, key: str) -> datetime:
    try:
        zone = ZoneInfo(key)
    except (KeyError, OSError):
        return moment  # this machine does not know the zone; the offset still names the instant
    local = moment.replace(tzinfo=zone)
    # Zone rules change. When they did since this was written, the instant counts, not the dial.
    return local if local.utcoffset() == moment.utcoffset() else moment.astimezone(zone)


def _read_time(wire: Any) -> time:
    if type(wire) is str:
        return time.fromisoformat(wire)
    text, fold, zone = wire
    moment = time.fromisoformat(text).replace(fold=fold)
    return moment.replace(tzinfo=ZoneInfo(zone)) if zone else moment


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Unencodable
    return str(value)


WRITERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("!bytes", lambda value: b64encode(value).decode("ascii")),
    datetime: ("!datetime", _write_moment),
    date: ("!date", date.isoformat),
    time: ("!time", _write_moment),
    timedelta: ("!timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    UUID: ("!uuid", str),
    Decimal: ("!decimal", _write_decimal),
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "!bytes": lambda wire: b64decode(wire, validate=True),
    "!datetime": _read_datetime,
    "!date": date.fromisoformat,
    "!time": _read_time,
    "!timedelta": lambda wire: timedelta(*wire),
    "!uuid": UUID,
    "!decimal": Decimal,
    "!tuple": tuple,
}
# Subclasses that reach a caller unasked: what freezegun hands out for now(), and the text that a
# template renders to. They are equal to the plain type, and come back as that.
_STAND_INS: dict[str, type] = {
    "freezegun.api.FakeDatetime": datetime,
    "freezegun.api.FakeDate": date,
    "django.utils.safestring.SafeString": str,
}


def plain_type(value: Any) -> type:
    """Return the type that decides how a value is written."""
    kind = type(value)
    if kind in PLAIN or kind in WRITERS:
        return kind
    return _STAND_INS.get(type_name(kind), kind)


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


# -- writing ----------------------------------------------------------------------------------


class Writer:
    """
    Turn values into what json.dumps takes, without copying what is plain already.

    `left` counts down by what each part takes at least, so that a huge value, or a small one that
    refers to itself a million times, is refused before any of it is encoded.
    """

    __slots__ = ("left",)

    def __init__(self, limit: int) -> None:
        self.left = limit

    def write(self, value: Any, room: int = MAX_DEPTH) -> Any:
        kind = type(value)
        if kind is list:
            return self.items(value, room)
        if kind is dict:
            return self.pairs(value, room)
        if kind is tuple:
            return {"!tuple": self.items(value, room)}
        return self._leaf(value)

    def items(self, items: Collection[Any], room: int) -> Collection[Any]:
        if not room:
            raise Unencodable
        if self._is_flat(items):
            return items
        return [item if type(item) in PLAIN else self.write(item, room - 1) for item in items]

    def pairs(self, pairs: dict[Any, Any], room: int) -> dict[str, Any]:
        if not room or not _TEXT.issuperset(map(type, pairs)):
            raise Unencodable
        if not pairs:
            return pairs
        self._spend(sum(map(len, pairs)))
        if not self._is_flat(pairs.values()):
            pairs = {
                key: item if type(item) in PLAIN else self.write(item, room - 1)
                for key, item in pairs.items()
            }
        if len(pairs) == 1 and (key := next(iter(pairs)))[:1] == "!":
            return {"!" + key: pairs[key]}
        return pairs

    def _is_flat(self, items: Collection[Any]) -> bool:
        self._spend(2 * len(items))
        # Sets of types are compared without a step of Python per item: this is the hot path.
        kinds = set(map(type, items))
        if str in kinds:
            self._spend(sum([len(item) for item in items if type(item) is str]))
        return kinds <= PLAIN

    def _leaf(self, value: Any) -> Any:
        kind = plain_type(value)
        if kind is str or kind is bytes:
            self._spend(len(value))
        if kind in PLAIN:
            return value
        try:
            tag, write = WRITERS[kind]
            return {tag: write(value)}
        except Exception as error:  # an unknown type, or whatever a time zone class raises
            raise Unencodable from error

    def _spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise OverLimit


def untag(pairs: dict[str, Any]) -> Any:
    """Read one JSON object; made for the object_hook of a decoder, which works from inside out."""
    if len(pairs) != 1:
        return pairs
    ((key, value),) = pairs.items()
    if key[:1] != "!":
        return pairs
    return {key[1:]: value} if key[:2] == "!!" else _READERS[key](value)
