"""Values of every kind that a payload holds, and what "comes back the same" means."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from taskharbor_django.payload import decode_value, encode_value

MIB = 2**20
SECRET = "hunter2-correct-horse"

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
keys = st.text(max_size=5) | st.sampled_from(
    ["!", "!!", "!uuid", "!!uuid", "!tuple", "!dict", "a!"]
)
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
