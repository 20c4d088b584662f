"""Arguments as bytes and back: what survives, what is refused, and how the refusal reads."""

from __future__ import annotations

import base64
import enum
import json
import tracemalloc
import zlib
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext_lazy
from freezegun import freeze_time
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskharbor_django.exceptions import InvalidPayload, PayloadCorrupt, PayloadTooLarge
from taskharbor_django.payload import (
    JSONCodec,
    decode_call,
    decode_value,
    digest,
    encode_call,
    encode_value,
)

MIB = 2**20
SECRET = "hunter2-correct-horse"
BERLIN = ZoneInfo("Europe/Berlin")

# -- values of every kind, and what "comes back the same" means -------------------------------

offsets = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
zones = st.none() | offsets | st.timezones()
folds = st.sampled_from([0, 1])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
    st.builds(lambda moment, fold: moment.replace(fold=fold), st.datetimes(timezones=zones), folds),
    st.builds(lambda moment, fold: moment.replace(fold=fold), st.times(timezones=zones), folds),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False),
)
keys = st.text(max_size=5) | st.sampled_from(["!", "!!", "!uuid", "!!uuid", "!tuple", "!dict", "a!"])
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)
names = st.text(max_size=8) | st.sampled_from(["!x", "self", "args"])
calls = st.tuples(st.lists(values, max_size=3), st.dictionaries(names, values, max_size=3))


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    else:
        assert left == right
        assert details(left) == details(right)


def details(value):
    """Return what == does not look at."""
    if isinstance(value, datetime | time):
        zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
        return value.fold, value.utcoffset(), zone
    if isinstance(value, float):
        return repr(value)
    return value.as_tuple() if isinstance(value, Decimal) else None


def there_and_back(value):
    return decode_value(encode_value(value, max_bytes=16 * MIB))


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
    text = "\x00\x1f\u2028\ufffe\U0010ffff </script>\"\\"
    assert there_and_back({text: text}) == {text: text}


def test_sixty_four_levels_are_allowed():
    deep = 7
    for _ in range(32):
        deep = [(deep,)]
    assert there_and_back(deep) == deep
    assert decode_call(encode_call((deep,), {"deep": deep}, max_bytes=MIB))[0] == (deep,)


def test_sixty_five_levels_are_refused():
    with pytest.raises(InvalidPayload, match=r"^argument 1(\[0\]){8}… \(list\) .* than 64 levels"):
        encode_call((deep(65),), {}, max_bytes=MIB)
    with pytest.raises(InvalidPayload, match=r"^value(\[0\]){8}… \(list\) .* than 64 levels"):
        encode_value(deep(65), max_bytes=MIB)


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
    back = there_and_back([mark_safe("<b>"), {"body": mark_safe("<i>")}])  # noqa: S308
    assert back == ["<b>", {"body": "<i>"}]
    assert type(back[0]) is str
    assert there_and_back(SafeString("x")) == "x"


# -- what is refused --------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = SECRET


class Level(enum.IntEnum):
    HIGH = 1


class Status(enum.StrEnum):
    PAID = SECRET


class Name(str):
    __slots__ = ()


class Count(int):
    pass


class Unlucky:
    """Nothing about it can be asked without trouble."""

    def __getattr__(self, name):
        raise RuntimeError(SECRET)

    def __repr__(self):
        raise RuntimeError(SECRET)

    __str__ = __hash__ = __eq__ = __len__ = __iter__ = __bool__ = __repr__


@dataclass
class Order:
    note: str = SECRET


Point = namedtuple("Point", "x y")
circle: list = [SECRET]
circle.append({"again": circle})


def deep(levels):
    value: list = []
    for _ in range(levels - 1):
        value = [value]
    return value


def never():
    pytest.fail("a lazy object was evaluated")


REFUSED = {
    "nan": (float("nan"), "float", "NaN and infinities"),
    "infinity": (float("-inf"), "float", "NaN and infinities"),
    "decimal nan": (Decimal("sNaN"), "decimal.Decimal", "NaN and infinities"),
    "decimal infinity": (Decimal("Infinity"), "decimal.Decimal", "NaN and infinities"),
    "huge int": (10**4300, "int", "more digits"),
    "lone surrogate": (SECRET + "\ud800", "str", "lone surrogate"),
    "safe surrogate": (SafeString("\udfff"), "django.*SafeString", "lone surrogate"),
    "surrogate in a key": ({SECRET + "\udfff": 1}, "dict", "a key with a lone surrogate"),
    "int key": ({1: SECRET}, "dict", "a key of type int"),
    "none key": ({"a": 1, None: SECRET}, "dict", "a key of type NoneType"),
    "enum key": ({Status.PAID: 1}, "dict", "a key of type tests.unit.test_payload.Status"),
    "set": ({SECRET}, "set", "pass a list"),
    "frozenset": (frozenset([SECRET]), "frozenset", "pass a list"),
    "generator": ((SECRET for _ in "x"), "generator", "pass a list"),
    "dict view": ({SECRET: 1}.keys(), "dict_keys", "pass a list"),
    "bytearray": (bytearray(b"x"), "bytearray", r"pass bytes\(\) of it"),
    "memoryview": (memoryview(b"x"), "memoryview", r"pass bytes\(\) of it"),
    "complex": (1j, "complex", "pass plain data"),
    "type": (int, "type", "pass plain data"),
    "function": (never, "function", "pass plain data"),
    "object": (object(), "object", "pass plain data"),
    "enum": (Colour.RED, "tests.unit.test_payload.Colour", "pass its .value"),
    "int enum": (Level.HIGH, "tests.unit.test_payload.Level", "pass its .value"),
    "str enum": (Status.PAID, "tests.unit.test_payload.Status", "pass its .value"),
    "str subclass": (Name(SECRET), "tests.unit.test_payload.Name", "pass a plain str"),
    "int subclass": (Count(7), "tests.unit.test_payload.Count", "pass a plain int"),
    "named tuple": (Point(1, 2), "tests.unit.test_payload.Point", r"pass tuple\(\) of it"),
    "ordered dict": (OrderedDict(a=1), "collections.OrderedDict", r"pass dict\(\) of it"),
    "dataclass": (Order(), "tests.unit.test_payload.Order", r"dataclasses.asdict\(\)"),
    "path": (Path(SECRET), r"pathlib[\w.]*Path", r"pass str\(\) of it"),
    "model": (User(username=SECRET), "django.contrib.auth.models.User", "pass its pk"),
    "queryset": (User.objects.none(), "django.db.models.query.QuerySet", "list of primary keys"),
    "translation": (gettext_lazy("Yes"), r"django.*__proxy__", r"pass str\(\) of it"),
    "lazy object": (SimpleLazyObject(never), r"django.*SimpleLazyObject", "pass the pk"),
    "unlucky object": (Unlucky(), "tests.unit.test_payload.Unlucky", "pass"),
    "circle": (circle, "list", "it contains itself"),
    "depth of 67": (deep(67), "list", "nested deeper than 64"),
    "depth of 5,000": (deep(5000), "list", "nested deeper than 64"),
}
refused = pytest.mark.parametrize(("value", "kind", "reason"), REFUSED.values(), ids=REFUSED)


@refused
def test_an_argument_that_cannot_be_stored_is_named_with_its_type_and_never_shown(
    value, kind, reason
):
    with pytest.raises(InvalidPayload, match=rf"\({kind}\) cannot be stored: .*{reason}") as caught:
        encode_call((1, value), {}, max_bytes=MIB)
    assert str(caught.value).startswith("argument 2")
    assert caught.value.argument == "argument 2"
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    str(caught.value).encode()


@refused
def test_a_keyword_argument_that_cannot_be_stored_is_named(value, kind, reason):
    with pytest.raises(InvalidPayload, match=rf"\({kind}\) cannot be stored: .*{reason}") as caught:
        encode_call((), {"fine": (1,), "when": value}, max_bytes=MIB)
    assert str(caught.value).startswith("keyword argument 'when'")
    assert caught.value.argument == "keyword argument 'when'"
    assert caught.value.field == "payload"


@refused
def test_a_result_that_cannot_be_stored_is_called_by_its_name(value, kind, reason):
    with pytest.raises(InvalidPayload, match=rf"^result.*\({kind}\) cannot be stored"):
        encode_value(value, max_bytes=MIB, name="result")


places = st.recursive(
    st.just([]),
    lambda steps: st.builds(
        lambda step, rest: [step, *rest], st.integers(0, 3) | st.sampled_from(["a", "!b"]), steps
    ),
    max_leaves=5,
)


@given(places, st.sampled_from(sorted(REFUSED)), values)
@settings(deadline=None)
def test_the_way_to_what_cannot_be_stored_is_part_of_the_name(steps, name, neighbour):
    value = REFUSED[name][0]
    if "depth" in name:
        steps = []  # where it is found depends on how deep it stands
    trail = "".join(f"[{step!r}]" for step in steps)
    for step in reversed(steps):
        value = {step: value} if isinstance(step, str) else [*[neighbour] * step, value]
    with pytest.raises(InvalidPayload) as caught:
        encode_call((neighbour,), {"order": value}, max_bytes=16 * MIB)
    assert str(caught.value).startswith(f"keyword argument 'order'{trail}")
    assert SECRET not in str(caught.value)


def test_the_name_reads_like_python():
    order = {"lines": [1, (2, {3})]}
    with pytest.raises(InvalidPayload) as caught:
        encode_call((), {"order": order}, max_bytes=MIB)
    assert str(caught.value) == (
        "keyword argument 'order'['lines'][1][1] (set) cannot be stored: pass a list."
    )


def test_long_names_are_cut():
    with pytest.raises(InvalidPayload, match=r"^keyword argument 'k{40}…'\['x{40}…'\] \(set\)"):
        encode_call((), {"k" * 10_000: {"x" * 10_000: set()}}, max_bytes=MIB)


@pytest.mark.parametrize("kwargs", [{1: 2}, {"\ud800": 1}])
def test_names_of_keyword_arguments_follow_the_rules_of_keys(kwargs):
    with pytest.raises(InvalidPayload, match=r"^keyword arguments \(dict\) cannot .* a key"):
        encode_call((), kwargs, max_bytes=MIB)


def test_the_first_of_two_bad_arguments_is_named():
    with pytest.raises(InvalidPayload, match=r"^argument 1 \(set\)"):
        encode_call((set(), 1j), {"a": object()}, max_bytes=MIB)


# -- size -------------------------------------------------------------------------------------


@given(calls)
@settings(deadline=None)
def test_a_call_may_be_exactly_as_large_as_the_limit(call):
    args, kwargs = call
    data = encode_call(args, kwargs, max_bytes=16 * MIB)
    assert encode_call(args, kwargs, max_bytes=len(data)) == data
    with pytest.raises(PayloadTooLarge, match="^Too large to be stored: .* bytes"):
        encode_call(args, kwargs, max_bytes=len(data) - 1)


@given(values)
@settings(deadline=None)
def test_a_value_may_be_exactly_as_large_as_the_limit(value):
    data = encode_value(value, max_bytes=16 * MIB)
    assert encode_value(value, max_bytes=len(data)) == data
    with pytest.raises(PayloadTooLarge):
        encode_value(value, max_bytes=len(data) - 1)


def test_the_largest_argument_is_blamed_for_the_size():
    with pytest.raises(PayloadTooLarge) as caught:
        encode_call(("a" * 50, [SECRET] * 3), {"small": 1}, max_bytes=100)
    assert caught.value.argument == "argument 2"
    assert str(caught.value) == (
        "Too large to be stored: more than 100 bytes; the largest part is argument 2 (list)."
    )


def test_the_size_is_told_when_it_is_known():
    with pytest.raises(PayloadTooLarge, match=r"13 bytes where 12 are .* argument 1 \(str\)"):
        encode_call(('""',), {}, max_bytes=12)


def test_a_call_without_arguments_can_be_too_large_too():
    with pytest.raises(PayloadTooLarge, match="largest part is the call"):
        encode_call((), {}, max_bytes=6)


HUGE = "x" * (20 * MIB)


@pytest.mark.parametrize(
    "value",
    [HUGE, HUGE.encode(), [HUGE], {"a": {"b": HUGE}}, {HUGE: 1}, [("y" * 900_000,)] * 1000],
    ids=["str", "bytes", "list", "dict", "key", "the same text a thousand times"],
)
def test_what_is_far_too_large_is_refused_without_copying_it(value):
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge):
            encode_call((value,), {}, max_bytes=MIB)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_value_that_doubles_at_each_of_sixty_levels_is_refused():
    bomb: object = []
    for _ in range(60):
        bomb = [bomb, bomb]
    # Whoever follows it to its end does not come back.
    with pytest.raises(PayloadTooLarge, match=r"argument 1 \(list\)"):
        encode_call((bomb,), {}, max_bytes=10_000)


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


# -- codecs -----------------------------------------------------------------------------------


class Scrambled(JSONCodec):
    """Stands for encryption: longer than the plain bytes, and different each time."""

    count = 0

    def encode(self, value):
        self.count += 1
        return b"%04d" % self.count + base64.b16encode(super().encode(value))

    def decode(self, data):
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


@refused
def test_errors_name_the_argument_through_a_codec_too(value, kind, reason):
    with pytest.raises(InvalidPayload, match=rf"^keyword argument 'when'.*\({kind}\) .*{reason}"):
        encode_call((), {"when": value}, max_bytes=MIB, codec=Packed())


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
        encode_call(([HUGE] * 4,), {}, max_bytes=100, codec=Packed())


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


@pytest.mark.parametrize("codec", [JSONCodec(), Scrambled(), Packed()], ids=repr)
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
