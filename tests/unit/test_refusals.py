"""Arguments that cannot be stored: each refusal names the argument and its type, not the value."""

from __future__ import annotations

import enum
import tracemalloc
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskharbor_django.exceptions import InvalidPayload, PayloadTooLarge
from taskharbor_django.payload import JSONCodec, encode_call, encode_value

from .payloads import MIB, SECRET, calls, values

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
    "enum key": ({Status.PAID: 1}, "dict", "a key of type tests.unit.test_refusals.Status"),
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
    "enum": (Colour.RED, "tests.unit.test_refusals.Colour", "pass its .value"),
    "int enum": (Level.HIGH, "tests.unit.test_refusals.Level", "pass its .value"),
    "str enum": (Status.PAID, "tests.unit.test_refusals.Status", "pass its .value"),
    "str subclass": (Name(SECRET), "tests.unit.test_refusals.Name", "pass a plain str"),
    "int subclass": (Count(7), "tests.unit.test_refusals.Count", "pass a plain int"),
    "named tuple": (Point(1, 2), "tests.unit.test_refusals.Point", r"pass tuple\(\) of it"),
    "ordered dict": (OrderedDict(a=1), "collections.OrderedDict", r"pass dict\(\) of it"),
    "dataclass": (Order(), "tests.unit.test_refusals.Order", r"dataclasses.asdict\(\)"),
    "path": (Path(SECRET), r"pathlib[\w.]*Path", r"pass str\(\) of it"),
    "model": (User(username=SECRET), "django.contrib.auth.models.User", "pass its pk"),
    "queryset": (User.objects.none(), "django.db.models.query.QuerySet", "list of primary keys"),
    "translation": (gettext_lazy("Yes"), r"django.*__proxy__", r"pass str\(\) of it"),
    "lazy object": (SimpleLazyObject(never), r"django.*SimpleLazyObject", "pass the pk"),
    "unlucky object": (Unlucky(), "tests.unit.test_refusals.Unlucky", "pass"),
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


class Wrapped(JSONCodec):
    """Not the plain codec any more, so that it is called as one of somebody else's."""


@refused
def test_errors_name_the_argument_through_a_codec_too(value, kind, reason):
    with pytest.raises(InvalidPayload, match=rf"^keyword argument 'when'.*\({kind}\) .*{reason}"):
        encode_call((), {"when": value}, max_bytes=MIB, codec=Wrapped())


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


def test_sixty_five_levels_are_refused():
    with pytest.raises(InvalidPayload, match=r"^argument 1(\[0\]){8}… \(list\) .* than 64 levels"):
        encode_call((deep(65),), {}, max_bytes=MIB)
    with pytest.raises(InvalidPayload, match=r"^keyword argument 'a'(\[0\]){8}… .* than 64 levels"):
        encode_call((), {"a": deep(65)}, max_bytes=MIB)
    with pytest.raises(InvalidPayload, match=r"^value(\[0\]){8}… \(list\) .* than 64 levels"):
        encode_value(deep(65), max_bytes=MIB)


@pytest.mark.parametrize("wrap", [lambda inner: {"a": inner}, lambda inner: (inner,)])
def test_levels_of_dicts_and_tuples_count_like_those_of_lists(wrap):
    value = 7
    for _ in range(64):
        value = wrap(value)
    encode_value(value, max_bytes=MIB)
    with pytest.raises(InvalidPayload, match="nested deeper than 64 levels"):
        encode_value(wrap(value), max_bytes=MIB)


def test_long_names_are_cut():
    with pytest.raises(InvalidPayload, match=r"^keyword argument 'k{40}' \(set\)"):
        encode_call((), {"k" * 40: set()}, max_bytes=MIB)
    with pytest.raises(InvalidPayload, match=r"^keyword argument 'k{40}…' \(set\)"):
        encode_call((), {"k" * 41: set()}, max_bytes=MIB)
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
@example(([[0] * 50, [""] * 50, [[]] * 50], {}))
@example(([], {"": dict.fromkeys("abcdefghij", 0)}))
@settings(deadline=None)
def test_a_call_may_be_exactly_as_large_as_the_limit(call):
    args, kwargs = call
    data = encode_call(args, kwargs, max_bytes=16 * MIB)
    assert encode_call(args, kwargs, max_bytes=len(data)) == data
    with pytest.raises(PayloadTooLarge, match=r"^Too large to be stored: .* bytes"):
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
        " Store it as a row or a file, and pass its id or path instead."
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
