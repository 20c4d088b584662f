"""What PAYLOAD_CODEC may name, and digests that see through it."""

from __future__ import annotations

import base64
import zlib
from decimal import Decimal
from hashlib import sha256
from uuid import UUID

import pytest
from hypothesis import given, settings

from taskharbor_django.exceptions import InvalidPayload, PayloadCorrupt, PayloadTooLarge
from taskharbor_django.payload import (
    JSONCodec,
    decode_call,
    decode_value,
    digest,
    encode_call,
    encode_value,
)

from .payloads import MIB, assert_same, calls, there_and_back

# -- codecs -----------------------------------------------------------------------------------


class Scrambled(JSONCodec):
    """Stands for encryption: longer than the plain bytes, and different each time."""

    count = 0

    def encode(self, value):
        self.count += 1
        return b"%04d" % self.count + base64.b16encode(super().encode(value))

    def decode(self, data):
        assert type(data) is bytes
        return super().decode(base64.b16decode(data[4:]))


class Packed:
    def encode(self, value):
        return zlib.compress(JSONCodec().encode(value))

    def decode(self, data):
        return JSONCodec().decode(zlib.decompress(data))


@given(calls)
@settings(deadline=None)
def test_a_codec_may_wrap_the_bytes(call):
    args, kwargs = call
    data = encode_call(args, kwargs, max_bytes=16 * MIB, codec=Scrambled())
    assert b"[" not in data
    assert_same(decode_call(memoryview(data), codec=Scrambled()), (tuple(args), kwargs))


def test_a_codec_takes_arguments_of_sixty_four_levels():
    value = 7
    for _ in range(64):
        value = [value]
    data = encode_call((value,), {"a": value}, max_bytes=MIB, codec=Packed())
    assert decode_call(data, codec=Packed()) == ((value,), {"a": value})


def test_errors_of_the_plain_codec_speak_of_the_value():
    with pytest.raises(InvalidPayload, match=r"^value\['a'\] \(set\) cannot be stored"):
        JSONCodec().encode({"a": set()})


def test_the_limit_applies_to_what_the_codec_returns():
    long = "x" * 5000
    assert len(encode_call((long,), {}, max_bytes=100, codec=Packed())) <= 100
    plain = len(encode_value(long, max_bytes=MIB))
    size = 4 + 2 * plain
    assert len(encode_value(long, max_bytes=size, codec=Scrambled())) == size
    with pytest.raises(PayloadTooLarge, match=rf" {size:,} bytes where .* value \(str\)"):
        encode_value(long, max_bytes=size - 1, codec=Scrambled())


def test_a_codec_is_not_handed_more_than_it_could_ever_make_small():
    with pytest.raises(PayloadTooLarge, match=r"more than 100 bytes; .* argument 1 \(list\)"):
        encode_call((["x" * 20 * MIB] * 4,), {}, max_bytes=100, codec=Packed())


def test_a_codec_may_have_rules_of_its_own():
    class Strict(JSONCodec):
        def encode(self, value):
            raise InvalidPayload("no jobs on Fridays", argument="")

    with pytest.raises(InvalidPayload, match="no jobs on Fridays"):
        encode_call((), {}, max_bytes=MIB, codec=Strict())


def test_a_codec_that_returns_text_is_found_out():
    class Text(JSONCodec):
        def encode(self, value):
            return "[]"

    with pytest.raises(TypeError, match=r"Text\.encode returned str, not bytes"):
        encode_call((), {}, max_bytes=MIB, codec=Text())


def test_whatever_a_codec_raises_the_payload_is_corrupt_and_the_cause_is_kept():
    with pytest.raises(PayloadCorrupt, match=r"Packed cannot decode: error") as caught:
        decode_call(b"not compressed", codec=Packed())
    assert isinstance(caught.value.__cause__, zlib.error)


def test_running_out_of_memory_does_not_make_a_payload_corrupt():
    class Greedy(JSONCodec):
        def decode(self, data):
            raise MemoryError

    with pytest.raises(MemoryError):
        decode_value(b"7", codec=Greedy())


# -- digest -----------------------------------------------------------------------------------


def digest_of(*args, codec=None, **kwargs):
    codec = codec or JSONCodec()
    return digest(encode_call(args, kwargs, max_bytes=MIB, codec=codec), codec=codec)


@pytest.mark.parametrize(
    "codec", [JSONCodec(), Scrambled(), Packed()], ids=lambda codec: type(codec).__name__
)
def test_equal_calls_have_one_digest_whatever_the_order_of_keys(codec):
    one = digest_of({"x": 1, "y": [{"p": UUID(int=1), "q": (2,)}]}, a=1, b=2, codec=codec)
    other = digest_of({"y": [{"q": (2,), "p": UUID(int=1)}], "x": 1}, b=2, a=1, codec=codec)
    assert one == other == digest_of({"x": 1, "y": [{"p": UUID(int=1), "q": (2,)}]}, a=1, b=2)
    assert len(one) == 64


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), (2,)),
        ((1,), (True,)),
        ((1,), (1.0,)),
        ((1,), ("1",)),
        (([1],), ((1,),)),
        ((["a", "b"],), (["b", "a"],)),
        ((Decimal("1.0"),), (Decimal("1.00"),)),
        (({"!uuid": "x"},), ({"!!uuid": "x"},)),
        ((b"x",), ("x",)),
    ],
    ids=repr,
)
def test_different_calls_have_different_digests(one, other):
    assert digest_of(*one) != digest_of(*other)


def test_a_digest_is_the_same_in_every_process():
    expected = sha256(b'[[7],{"a":"\\u00fc","b":{"!tuple":[1]}}]').hexdigest()
    assert digest_of(7, b=(1,), a="ü") == expected


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 100_000])
def test_corrupt_bytes_have_no_digest(data):
    with pytest.raises(PayloadCorrupt):
        digest(data)


def test_the_order_in_which_a_dict_was_filled_is_kept():
    assert list(there_and_back({"b": 1, "a": 2})) == ["b", "a"]
