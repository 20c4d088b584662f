"""A record that no driver may store is refused with the field's name; the widest one is taken."""

import dataclasses
from collections import ChainMap
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import reduce
from operator import and_, or_
from types import MappingProxyType
from uuid import RFC_4122, UUID, uuid4

import pytest
from freezegun import freeze_time

from taskharbor_django.drivers import MemoryDriver
from taskharbor_django.exceptions import InvalidJob
from taskharbor_django.lifecycle import FailureCategory, OutcomeKind, Priority
from taskharbor_django.models import Job
from taskharbor_django.values import (
    FailureUpdate,
    JobRecord,
    Lease,
    Outcome,
    Rejection,
    Reservation,
    as_duration,
    is_queue_name,
    is_rank,
    is_storable,
    new_id,
    shown,
)

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)
SECOND, TICK, CENTURY = timedelta(seconds=1), timedelta(microseconds=1), timedelta(days=36_500)
ODD = """it's 100% "odd" %s %(x)s; DROP TABLE taskharbor_job; -- ☕"""


class Zoneless(tzinfo):
    """A time zone that gives no offset: Python takes such a datetime for naive."""

    def utcoffset(self, moment):
        return None


class Unshowable:
    def __repr__(self):
        raise LookupError("no repr")


# fields of a record, the one that is refused, a part of the text
REFUSED = [
    ({"task": ""}, "task", "must not be empty"),
    ({"task": None}, "task", "must be text, not NoneType"),
    ({"task": b"bytes"}, "task", "must be text, not bytes"),
    ({"task": "x" * 256}, "task", "has 256 characters; 255 are allowed"),
    ({"task": "x" * 10_000}, "task", "has 10000 characters; 255 are allowed"),
    ({"task": "nul\0"}, "task", "a NUL character or a lone surrogate"),
    ({"task": "nul ü \0"}, "task", "a NUL character or a lone surrogate"),
    ({"task": "half \ud83d"}, "task", "a NUL character or a lone surrogate"),
    ({"queue": ""}, "queue", "'' is no queue name; use 1-128 of A-Z a-z 0-9 _ . : -"),
    ({"queue": None}, "queue", "None is no queue name"),
    ({"queue": 7}, "queue", "7 is no queue name"),
    ({"queue": "two words"}, "queue", "'two words' is no queue name"),
    ({"queue": "line\n"}, "queue", "'line\\n' is no queue name"),
    ({"queue": "100%"}, "queue", "'100%' is no queue name"),
    ({"queue": "it's"}, "queue", "is no queue name"),
    ({"queue": "a;b"}, "queue", "'a;b' is no queue name"),
    ({"queue": "größe"}, "queue", "'größe' is no queue name"),
    ({"queue": "nul\0"}, "queue", "is no queue name"),
    ({"queue": "q" * 129}, "queue", "is no queue name"),
    ({"payload": "text"}, "payload", "must be bytes, not str"),
    ({"payload": None}, "payload", "must be bytes, not NoneType"),
    ({"priority": -101}, "priority", "-101 is not a rank from -100 to 100"),
    ({"priority": 101}, "priority", "101 is not a rank from -100 to 100"),
    ({"priority": 2**70}, "priority", "is not a rank from -100 to 100"),
    ({"priority": 10**5000}, "priority", "a value of type int is not a rank"),
    ({"priority": 1.0}, "priority", "1.0 is not a rank"),
    ({"priority": True}, "priority", "True is not a rank"),
    ({"priority": None}, "priority", "None is not a rank"),
    ({"priority": "high"}, "priority", "'high' is not a rank"),
    ({"attempts": -1}, "attempts", "-1 is not a whole number from 0"),
    ({"attempts": 2**31}, "attempts", "2147483648 is not a whole number from 0"),
    ({"attempts": False}, "attempts", "False is not a whole number"),
    ({"attempts": 4, "max_attempts": 3}, "attempts", "4 is more than max_attempts, 3"),
    ({"max_attempts": -1}, "max_attempts", "-1 is not a whole number from 0"),
    ({"max_attempts": 2**31}, "max_attempts", "is not a whole number from 0"),
    ({"max_attempts": "3"}, "max_attempts", "'3' is not a whole number"),
    ({"dependencies_left": -1}, "dependencies_left", "-1 is not a whole number from 0"),
    ({"timeout": -TICK}, "timeout", "is negative"),
    ({"timeout": CENTURY + TICK}, "timeout", "is longer than a century"),
    ({"timeout": 30}, "timeout", "must be a timedelta, not int"),
    ({"delay": -TICK}, "delay", "is negative"),
    ({"delay": CENTURY + TICK}, "delay", "is longer than a century"),
    ({"delay": "soon"}, "delay", "must be a timedelta, not str"),
    ({"delay": SECOND, "run_at": NOON}, "delay", "give run_at or delay, not both"),
    ({"lifetime": -TICK}, "lifetime", "is negative"),
    ({"lifetime": CENTURY + TICK}, "lifetime", "is longer than a century"),
    ({"lifetime": 7}, "lifetime", "must be a timedelta, not int"),
    ({"run_at": NOON.replace(tzinfo=None)}, "run_at", "must have a time zone"),
    ({"run_at": NOON.replace(tzinfo=Zoneless())}, "run_at", "must have a time zone"),
    ({"run_at": "2031-05-17T12:00Z"}, "run_at", "must be a datetime, not str"),
    ({"run_at": NOON.date()}, "run_at", "must be a datetime, not date"),
    ({"run_at": 0}, "run_at", "must be a datetime, not int"),
    ({"run_at": datetime.max.replace(tzinfo=UTC)}, "run_at", "outside the years 1000 to 9898"),
    ({"run_at": datetime.min.replace(tzinfo=UTC)}, "run_at", "outside the years 1000 to 9898"),
    ({"run_at": datetime(9898, 1, 1, 0, 0, 0, 1, tzinfo=UTC)}, "run_at", "outside the years"),
    ({"created_at": NOON.replace(tzinfo=None)}, "created_at", "must have a time zone"),
    ({"schedule_slot": NOON.replace(tzinfo=None)}, "schedule_slot", "must have a time zone"),
    ({"idempotency_key": ""}, "idempotency_key", "must not be empty"),
    ({"idempotency_key": "k" * 257}, "idempotency_key", "has 257 characters; 256 are allowed"),
    ({"idempotency_key": 7}, "idempotency_key", "must be text, not int"),
    ({"idempotency_key": UUID(int=7)}, "idempotency_key", "must be text, not UUID"),
    ({"idempotency_key": "\0"}, "idempotency_key", "a NUL character"),
    ({"idempotency_key": "k", "idempotency_ttl": -TICK}, "idempotency_ttl", "is negative"),
    ({"idempotency_key": "k", "idempotency_ttl": None}, "idempotency_ttl", "must be a timedelta"),
    ({"correlation_id": "c" * 129}, "correlation_id", "has 129 characters; 128 are allowed"),
    ({"correlation_id": 7}, "correlation_id", "must be text, not int"),
    ({"correlation_id": "\udfff"}, "correlation_id", "a lone surrogate"),
    ({"callback_url": "u" * 2049}, "callback_url", "has 2049 characters; 2048 are allowed"),
    ({"callback_url": None}, "callback_url", "must be text, not NoneType"),
    ({"tags": ["a"]}, "tags", "must be a map of strings, not list"),
    ({"tags": "a=b"}, "tags", "must be a map of strings, not str"),
    ({"tags": {"a": 1}}, "tags", "must map strings to strings; 'a' does not"),
    ({"tags": {"a": None}}, "tags", "must map strings to strings; 'a' does not"),
    ({"tags": {7: "b"}}, "tags", "must map strings to strings; 7 does not"),
    ({"tags": {Unshowable(): "b"}}, "tags", "a value of type Unshowable does not"),
    ({"tags": {"a": "\0"}}, "tags", "a NUL character"),
    ({"tags": {"\ud800": "b"}}, "tags", "a lone surrogate"),
    ({"tags": {"fine": "fine", "a": "\ud800"}}, "tags", "a lone surrogate"),
    ({"tags": dict.fromkeys(map(str, range(65)), "")}, "tags", "has 65 tags; 64 are allowed"),
    ({"tags": {"k" * 129: ""}}, "tags", "has 129 characters; 128 are allowed in a key"),
    ({"tags": {"a": "", "b": "v" * 1025}}, "tags", "'b' has 1025 characters; 1024 are allowed"),
    ({"trace": {"traceparent": 7}}, "trace", "must map strings to strings"),
]

# The widest values that must still be taken.
TAKEN = [
    {"task": "x"},
    {"task": "x" * 255},
    {"task": "☕" * 255},
    {"task": ODD},
    {"queue": "q"},
    {"queue": "q" * 128},
    {"queue": "A-z_0.9:x"},
    {"payload": b""},
    {"payload": bytes(range(256))},
    {"priority": -100},
    {"priority": 100},
    {"priority": Priority.HIGH},
    {"attempts": 3, "max_attempts": 3},
    {"attempts": 3, "max_attempts": 0},
    {"attempts": 2**31 - 1, "max_attempts": 2**31 - 1},
    {"dependencies_left": 0},
    {"timeout": None},
    {"timeout": timedelta(0)},
    {"timeout": CENTURY},
    {"delay": timedelta(0)},
    {"delay": CENTURY},
    {"lifetime": None},
    {"lifetime": timedelta(0)},
    {"lifetime": CENTURY},
    {"run_at": NOON.replace(tzinfo=timezone(timedelta(hours=14)))},
    {"run_at": datetime(1000, 1, 2, tzinfo=UTC), "lifetime": CENTURY},
    {"run_at": datetime(9898, 1, 1, tzinfo=UTC), "lifetime": CENTURY},
    {"idempotency_key": "k"},
    {"idempotency_key": "k" * 256},
    {"idempotency_key": "☕" * 256},
    {"idempotency_key": " "},
    {"idempotency_key": ODD},
    {"idempotency_key": None, "idempotency_ttl": None},
    {"correlation_id": None},
    {"correlation_id": "c" * 128},
    {"correlation_id": ODD},
    {"callback_url": "u" * 2048},
    {"tags": None},
    {"tags": {}},
    {"tags": {"": ""}},
    {"tags": {ODD: ODD}},
    {"tags": {"k" * 128: "v" * 1024}},
    {"tags": {"☕" * 128: "☕" * 1024}},
    {"tags": dict.fromkeys(map(str, range(64)), "v" * 1024)},
    {"trace": {"traceparent": "00-1-2-01"}},
]


@pytest.mark.parametrize(
    ("fields", "field", "text"), REFUSED, ids=[f"{field}, {text:.40}" for _, field, text in REFUSED]
)
def test_what_cannot_be_stored_is_refused_with_its_field(fields, field, text):
    with pytest.raises(InvalidJob) as caught:
        JobRecord(**{"task": "t", **fields}).validate()
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert text in str(caught.value)


@pytest.mark.parametrize("fields", TAKEN, ids=", ".join)
def test_the_widest_values_are_taken(fields):
    record = JobRecord(**{"task": "t", **fields})
    record.validate()
    for name, value in fields.items():
        assert getattr(record, name) == value


@pytest.mark.parametrize("tags", [MappingProxyType({"a": "b"}), ChainMap({"a": "b"}, {"c": "d"})])
def test_tags_may_be_any_map(tags):
    JobRecord(task="t", tags=tags).validate()


@pytest.mark.parametrize("fields", TAKEN, ids=", ".join)
def test_whatever_a_record_may_hold_a_driver_stores(fields):
    """No overflow, no time zone and no type stops a job that was found to be valid."""
    driver = MemoryDriver()
    job_id = driver.enqueue(JobRecord(**{"task": "t", **fields}))
    assert driver.read(job_id) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "q" * 10_000},
        {"priority": "p" * 10_000},
        {"max_attempts": "9" * 10_000},
        {"tags": {"k" * 10_000: 1}},
        {"tags": {"k" * 10_000: ""}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_the_text_shows_the_value_but_not_all_of_it(fields):
    with pytest.raises(InvalidJob) as caught:
        JobRecord(task="t", **fields).validate()
    ((name, value),) = fields.items()
    start = next(iter(value)) if name == "tags" else value
    assert start[:100] in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_text_never_holds_the_payload():
    with pytest.raises(InvalidJob) as caught:
        JobRecord(task="t", payload="hunter2").validate()
    assert "hunter2" not in str(caught.value)


def test_one_text_for_one_value():
    assert shown("it's") == '"it\'s"'
    assert shown("x" * 500) == "'" + "x" * 199
    assert shown(10**5000) == "a value of type int"
    assert shown(Unshowable()) == "a value of type Unshowable"


# -- the small questions ------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["a", "A-z_0.9:x", "q" * 128])
def test_a_queue_name_has_letters_digits_and_four_signs(value):
    assert is_queue_name(value)


@pytest.mark.parametrize("value", ["", " ", "a b", "a\n", "ä", "a/b", "q" * 129, None, 7, b"a"])
def test_nothing_else_is_a_queue_name(value):
    assert not is_queue_name(value)


def test_a_rank_is_a_whole_number_from_minus_100_to_100():
    assert [value for value in (-101, -100, 0, 100, 101) if is_rank(value)] == [-100, 0, 100]
    assert not any(map(is_rank, (True, 0.0, "0", None)))


@pytest.mark.parametrize(
    ("value", "storable"),
    [
        ("", True),
        ("plain", True),
        ("☕ größe", True),
        ("\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), True),
        ("\x01\x1f\x7f", True),
        ("nul\0", False),
        ("ü\0", False),
        ("\ud83d", False),
        ("\udfff end", False),
    ],
)
def test_text_is_storable_unless_it_has_a_nul_or_half_a_character(value, storable):
    assert is_storable(value) is storable


@pytest.mark.parametrize(
    ("value", "duration"),
    [
        (0, timedelta(0)),
        (90, timedelta(minutes=1, seconds=30)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(hours=3), timedelta(hours=3)),
        (CENTURY, CENTURY),
    ],
)
def test_a_duration_is_a_timedelta_or_seconds(value, duration):
    assert as_duration(value) == duration


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "is negative"),
        (timedelta(seconds=-1), "is negative"),
        (CENTURY + TICK, "is longer than a century"),
        (1e300, "1e\\+300 seconds is no duration"),
        pytest.param(10**5000, "a value of type int seconds is no duration", id="huge"),
        (float("nan"), "nan seconds is no duration"),
        (float("inf"), "inf seconds is no duration"),
        (True, "must be a timedelta, not bool"),
        ("30", "must be a timedelta, not str"),
        (None, "must be a timedelta, not NoneType"),
    ],
)
def test_anything_else_is_no_duration(value, text):
    with pytest.raises(ValueError, match=text):
        as_duration(value)


# -- the values themselves ----------------------------------------------------------------------


def test_a_record_has_an_id_of_its_own_and_the_defaults_of_a_plain_job():
    one, other = JobRecord(task="t"), JobRecord(task="t")
    assert one.id != other.id
    assert one.id.version == 4
    assert (one.queue, one.priority, one.payload) == ("default", Priority.NORMAL, b"")
    assert (one.attempts, one.max_attempts, one.dependencies_left) == (0, 0, 0)
    assert (one.idempotency_key, one.idempotency_ttl) == (None, timedelta(hours=24))


def test_an_id_begins_with_the_time_and_has_the_form_of_version_4():
    with freeze_time("2031-05-17T09:30Z"):
        ids = [new_id() for _ in range(1_000)]
    assert {(it.version, it.variant) for it in ids} == {(4, RFC_4122)}
    assert {it.int >> 80 for it in ids} == {1_936_776_600_000}
    # Each other bit is set in some of them and not in others, but for the six of the form.
    some, all_ = reduce(or_, (it.int for it in ids)), reduce(and_, (it.int for it in ids))
    assert ((some ^ all_) & (2**80 - 1)).bit_count() == 74
    assert len(set(ids)) == len(ids)


def test_ids_of_later_jobs_are_greater():
    with freeze_time("2031-05-17T09:30:00Z") as clock:
        first = new_id()
        clock.tick(SECOND)
        assert first < new_id()


def test_a_record_has_a_field_for_every_column_that_an_enqueue_can_fill():
    """What is missing is only what a run writes; the digest is the key's, inputs are results."""
    fields = {field.name for field in dataclasses.fields(JobRecord)}
    columns = {field.name for field in Job._meta.concrete_fields}
    assert fields - columns == {
        *("delay", "lifetime", "idempotency_ttl", "payload_digest", "inputs"),
    }
    assert columns - fields == {
        *("state", "seq", "lease", "lease_version", "last_error", "failure_category"),
        *("failure_code", "failed_at", "updated_at", "started_at", "finished_at", "result"),
        *("result_expires_at", "progress", "progress_message", "cancel_requested_at"),
    }


@pytest.mark.parametrize(
    "value",
    [
        JobRecord(task="t"),
        Lease(uuid4(), NOON),
        Reservation(JobRecord(task="t"), Lease(uuid4(), NOON)),
        FailureUpdate(attempts=1),
        Outcome(job_id=uuid4(), token=uuid4(), kind=OutcomeKind.ACK),
        Rejection(Outcome(job_id=uuid4(), token=uuid4(), kind=OutcomeKind.ACK), InvalidJob()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_travels_does_not_change(value):
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, None)


def test_a_record_takes_keywords_only():
    with pytest.raises(TypeError, match="positional"):
        JobRecord("t")


def test_a_failure_is_temporary_unless_said_otherwise():
    assert FailureUpdate(attempts=1).category is FailureCategory.TEMPORARY
