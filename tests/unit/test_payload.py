"""Arguments as bytes and back: what survives, and what is found out to be no payload."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import MappingProxyType
from zoneinfo import ZoneInfo

import pytest
from django.utils.safestring import SafeString, mark_safe
from freezegun import freeze_time
from hypothesis import example, given, settings

from taskharbor_django.exceptions import InvalidPayload, PayloadCorrupt
from taskharbor_django.payload import decode_call, decode_value, encode_call, encode_value

from .payloads import MIB, SECRET, assert_same, calls, there_and_back, values

BERLIN = ZoneInfo("Europe/Berlin")

# -- what survives ----------------------------------------------------------------------------


@given(calls)
@example(([], {}))
@example(([{"!uuid": "no tag"}], {"!x": 1}))
@example(([{"!!uuid": {"!tuple": [1]}}], {}))
@example(([{"!a": 1, "!b": 2}, {"": 1}, {"!": 1}], {}))
@example(([datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)], {}))
@example(([datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)], {}))
@example(([Decimal("-0E+5"), Decimal("1.10"), Decimal("1E-400"), -0.0, 2**70], {}))
@settings(max_examples=400, deadline=None)
def test_a_call_comes_back_equal_and_of_the_same_types(call):
    args, kwargs = call
    back = decode_call(encode_call(args, kwargs, max_bytes=16 * MIB))
    assert_same(back, (tuple(args), kwargs))


@given(values)
@settings(deadline=None)
def test_a_value_comes_back_equal_and_of_the_same_types(value):
    assert_same(there_and_back(value), value)


@given(values)
@settings(deadline=None)
def test_the_bytes_are_json_that_anything_can_read(value):
    json.loads(encode_value(value, max_bytes=16 * MIB).decode("utf-8"))


def test_a_call_is_stored_as_plainly_as_json_allows():
    assert encode_call((7, "ü"), {"a": [None]}, max_bytes=99) == '[[7,"ü"],{"a":[null]}]'.encode()


def test_tags_are_what_the_reference_says():
    value = [b"\x00\xff", (1,), date(2026, 1, 2), timedelta(days=1, microseconds=5), Decimal("1.0")]
    assert json.loads(encode_value(value, max_bytes=MIB)) == [
        {"!bytes": "AP8="},
        {"!tuple": [1]},
        {"!date": "2026-01-02"},
        {"!timedelta": [1, 0, 5]},
        {"!decimal": "1.0"},
    ]


def test_a_nul_and_every_other_character_survives():
    text = '\x00\x1f\u2028\ufffe\U0010ffff </script>"\\'
    assert there_and_back({text: text}) == {text: text}


def test_sixty_four_levels_are_allowed():
    deep = 7
    for _ in range(32):
        deep = [(deep,)]
    assert there_and_back(deep) == deep
    assert decode_call(encode_call((deep,), {"deep": deep}, max_bytes=MIB))[0] == (deep,)


def test_shared_values_are_no_circle():
    line = {"sku": ("a", 1)}
    assert there_and_back([line, line]) == [line, line]


def test_keyword_arguments_may_be_any_mapping():
    data = encode_call([1], MappingProxyType({"a": 1}), max_bytes=MIB)
    assert decode_call(data) == ((1,), {"a": 1})


def test_no_bytes_are_a_call_without_arguments():
    assert decode_call(b"") == ((), {})


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_whatever_a_database_adapter_returns_for_bytes_is_read(kind):
    data = encode_call((1, Decimal(2)), {}, max_bytes=MIB)
    assert decode_call(kind(data)) == ((1, Decimal(2)), {})


# -- times ------------------------------------------------------------------------------------


class Anywhere(tzinfo):
    """A time zone class of somebody else's."""

    def utcoffset(self, when):
        return timedelta(hours=5, minutes=45)


class Nowhere(tzinfo):
    def utcoffset(self, when):
        return None


class Broken(tzinfo):
    def utcoffset(self, when):
        raise OSError("no zone file")


def test_another_time_zone_class_comes_back_as_its_offset():
    moment = datetime(2026, 1, 2, 3, 4, tzinfo=Anywhere())
    back = there_and_back(moment)
    assert back == moment
    assert back.tzinfo == timezone(timedelta(hours=5, minutes=45))


@pytest.mark.parametrize("zone", [Nowhere(), Broken(), timezone(timedelta(microseconds=1))])
@pytest.mark.parametrize("moment", [datetime(2026, 1, 2, tzinfo=UTC), time(1, tzinfo=UTC)])
def test_a_time_zone_without_an_offset_in_whole_seconds_is_refused(zone, moment):
    with pytest.raises(InvalidPayload, match=r"\(datetime\.\w+\) cannot .* its time zone gives no"):
        encode_call((moment.replace(tzinfo=zone),), {}, max_bytes=MIB)


def test_an_unknown_zone_comes_back_as_the_offset_it_had():
    data = b'{"!datetime":["2026-07-01T12:00:00+02:00",0,"Mars/Olympus_Mons"]}'
    assert decode_value(data) == datetime(2026, 7, 1, 10, tzinfo=UTC)


def test_when_the_rules_of_a_zone_have_changed_the_instant_counts():
    data = b'{"!datetime":["2026-07-01T12:00:00+03:00",0,"Europe/Berlin"]}'
    back = decode_value(data)
    assert back == datetime(2026, 7, 1, 9, tzinfo=UTC)
    assert back.tzinfo is BERLIN
    assert back.hour == 11


@freeze_time("2026-05-01 12:00")
def test_frozen_time_is_time():
    now, today = datetime.now(UTC), date.today()  # noqa: DTZ011
    assert type(now).__module__ == "freezegun.api"
    assert there_and_back([now, today]) == [now, today]


def test_text_marked_safe_comes_back_as_plain_text():
    back = there_and_back([mark_safe("<b>"), {"body": mark_safe("<i>")}])
    assert back == ["<b>", {"body": "<i>"}]
    assert type(back[0]) is str
    assert there_and_back(SafeString("x")) == "x"


# -- bytes that are no payload ----------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b'{"!unknown":1}',
        b'{"!uuid":"no"}',
        b'{"!uuid":7}',
        b'{"!bytes":"*"}',
        b'{"!bytes":7}',
        b'{"!decimal":"one"}',
        b'{"!date":"2026-02-30"}',
        b'{"!datetime":["2026-01-01T00:00:00",0]}',
        b'{"!datetime":["2026-01-01T00:00:00+00:00",0,"../../etc/passwd"]}',
        b'{"!time":["01:00:00",0,"Mars/Olympus_Mons"]}',
        b'{"!timedelta":[1e999,0,0]}',
        b'{"!tuple":7}',
    ],
    ids=repr,
)
def test_bytes_that_cannot_be_decoded_are_corrupt(data):
    with pytest.raises(PayloadCorrupt):
        decode_value(data)


def test_what_could_not_be_decoded_is_not_quoted():
    with pytest.raises(PayloadCorrupt) as caught:
        decode_value(json.dumps({"!date": SECRET}).encode())
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("data", [b"7", b"[]", b"[[],[]]", b"[{},{}]", b"[[],{},1]", b'{"a":1}'])
def test_bytes_that_are_no_call_are_corrupt(data):
    with pytest.raises(PayloadCorrupt, match="not the arguments of a call"):
        decode_call(data)
