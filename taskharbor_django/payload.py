"""
Calls, results and checkpoints as bytes, and back.

The bytes are JSON in UTF-8, see `wire`; a call is the list [args, kwargs]. A codec may wrap them,
for example to encrypt. Nothing here imports or runs what the bytes name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NoReturn, Protocol

from .exceptions import InvalidPayload, PayloadCorrupt
from .masking import describe_exception, mask, mask_text, sanitise_text
from .refusals import arguments, refusal
from .wire import CEILING, MAX_DEPTH, OverLimit, Unencodable, Writer, type_name, untag

__all__ = [
    "ERASED",
    "Codec",
    "JSONCodec",
    "decode_call",
    "decode_value",
    "describe_exception",
    "digest",
    "encode_call",
    "encode_value",
    "mask",
    "mask_text",
    "sanitise_text",
]

Data = bytes | bytearray | memoryview

_SEQUENCES = (list, tuple)  # to write `list | tuple` makes that union anew each time: 0.2 us

# What stands where a payload was before it was erased; no codec can read it.
ERASED = b"\x00erased"

# The list [args, kwargs] and the two in it are not of the caller's making.
CALL_DEPTH = MAX_DEPTH + 2


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# The writer bounds the depth, so the encoder need not look for circles.
_dumps = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode
_canonical = json.JSONEncoder(check_circular=False, separators=(",", ":"), sort_keys=True).encode
_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_loads_tagged = json.JSONDecoder(object_hook=untag, parse_constant=_refuse_constant).decode
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def _loads(text: str) -> Any:
    """As the decoder's own `decode`, which looks for blanks around what is written without any."""
    try:
        value, end = _decoder.raw_decode(text)
    except json.JSONDecodeError:
        end = -1
    return value if end == len(text) else _decoder.decode(text)


# -- codecs -----------------------------------------------------------------------------------


class Codec(Protocol):
    """What PAYLOAD_CODEC names; a call arrives as the list [args, kwargs]."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class JSONCodec:
    """The codec used unless settings name another, and the one to build another on."""

    def encode(self, value: Any) -> bytes:
        try:
            return _dump(Writer(CEILING).write(value, CALL_DEPTH))
        except (Unencodable, OverLimit) as error:
            raise refusal(error, [("value", value)], CEILING, CALL_DEPTH) from None

    def decode(self, data: Data) -> Any:
        try:
            text = str(data, "utf-8")
            # Quotes inside a JSON string are escaped, so a tag cannot be without these two.
            return _loads_tagged(text) if '"!' in text else _loads(text)
        except _UNREADABLE as error:
            # No cause: the texts of these errors quote what they could not read.
            name = type(error).__name__
            raise PayloadCorrupt(f"The stored bytes are no payload: {name}.") from None


JSON = JSONCodec()


def _dump(wire: Any) -> bytes:
    try:
        return _dumps(wire).encode()
    except ValueError:  # NaN, too many digits, or a lone surrogate met by encode()
        raise Unencodable from None


def _foreign(codec: Codec, value: Any) -> bytes:
    data: Any = codec.encode(value)
    if not isinstance(data, bytes):
        kind = type_name(type(data))
        raise TypeError(f"{type_name(type(codec))}.encode returned {kind}, not bytes")
    return bytes(data)


def _within(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise OverLimit(len(data))
    return data


# -- calls ------------------------------------------------------------------------------------


def encode_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, max_bytes: int, codec: Codec = JSON
) -> bytes:
    """Encode the arguments of a call, or raise InvalidPayload naming the one that will not go."""
    pairs = dict(kwargs)
    try:
        if type(codec) is not JSONCodec:
            return _within(_foreign(codec, [list(args), pairs]), max_bytes)
        writer = Writer(max_bytes)
        wire = writer.items(args, MAX_DEPTH + 1), writer.pairs(pairs, MAX_DEPTH + 1)
        return _within(_dump(wire), max_bytes)
    except (Unencodable, OverLimit, InvalidPayload) as error:
        raise refusal(error, arguments(args, pairs), max_bytes) from None


def decode_call(data: Data, *, codec: Codec = JSON) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the args and kwargs of a call; no bytes at all are a call without arguments."""
    if not data:
        return (), {}
    call = decode_value(data, codec=codec)
    if isinstance(call, _SEQUENCES) and len(call) == 2:
        args, kwargs = call
        if isinstance(args, _SEQUENCES) and isinstance(kwargs, dict):
            return tuple(args), kwargs
    raise PayloadCorrupt("The stored bytes are not the arguments of a call.")


# -- single values: results, checkpoints ------------------------------------------------------


def encode_value(value: Any, *, max_bytes: int, codec: Codec = JSON, name: str = "value") -> bytes:
    """Encode one value, or raise InvalidPayload; `name` is what the error calls it."""
    try:
        if type(codec) is not JSONCodec:
            return _within(_foreign(codec, value), max_bytes)
        return _within(_dump(Writer(max_bytes).write(value)), max_bytes)
    except (Unencodable, OverLimit, InvalidPayload) as error:
        raise refusal(error, [(name, value)], max_bytes) from None


def decode_value(data: Data, *, codec: Codec = JSON) -> Any:
    """Return what encode_value was given, or raise PayloadCorrupt."""
    if type(codec) is JSONCodec:
        return codec.decode(data)
    try:
        return codec.decode(bytes(data))
    except (PayloadCorrupt, MemoryError):
        raise
    except Exception as error:  # a wrong key, a broken signature: the codec's own classes
        name = type_name(type(codec))
        raise PayloadCorrupt(f"{name} cannot decode: {type(error).__name__}.") from error


def digest(data: Data, *, codec: Codec = JSON) -> str:
    """
    Return 64 hexadecimal digits that are the same for the same call.

    Payloads keep the order in which a dict was filled, so keys are sorted here. What another codec
    made is decoded first: two encryptions of one call need not have a byte in common.
    """
    if type(codec) is not JSONCodec:
        data = JSON.encode(decode_value(data, codec=codec))
    try:
        wire = _loads(str(data, "utf-8"))
    except (RecursionError, ValueError):
        raise PayloadCorrupt from None
    return sha256(_canonical(wire).encode()).hexdigest()
