"""The values that travel: a record in, a reservation out, an outcome back."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from .exceptions import InvalidJob, TaskHarborError
from .lifecycle import (
    PRIORITY_FIRST,
    PRIORITY_LAST,
    QUEUE_NAME_PATTERN,
    FailureCategory,
    OutcomeKind,
    Priority,
)

NAME_MAX_CHARS = 255
KEY_MAX_CHARS = 256
CORRELATION_MAX_CHARS = 128
URL_MAX_CHARS = 2048
TAGS_MAX = 64
TAG_KEY_MAX_CHARS = 128
TAG_VALUE_MAX_CHARS = 1024
CODE_MAX_CHARS = 64
COUNT_MAX = 2**31 - 1
DURATION_MAX = timedelta(days=36_500)
# MariaDB begins with the year 1000, and Python ends with 9999: a lifetime must fit behind run_at.
TIME_FIRST = datetime(1000, 1, 2, tzinfo=UTC)
TIME_LAST = datetime(9898, 1, 1, tzinfo=UTC)
IDEMPOTENCY_TTL = timedelta(hours=24)

_queue_name = re.compile(QUEUE_NAME_PATTERN)
# What makes 128 bits a UUID of version 4 and its usual variant.
_FORM, _OTHERS = 0x4 << 76 | 0b10 << 62, ~(0xF << 76 | 0b11 << 62)


def new_id() -> UUID:
    """
    Make the id of a job: the time in milliseconds, and 74 random bits, in the form of version 4.

    Jobs that are made together lie together in each index that way. With nothing but random bits
    each of them has pages of its own there: beside a million others a drain had 0.86 of its rate,
    and with these all of it.
    """
    drawn = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    return UUID(int=drawn & _OTHERS | _FORM)


# Not slotted: a driver fills only the fields that a run needs, straight into __dict__, and the
# class answers for the others with their defaults (1.2 us a job against 17 us for the constructor).
@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """One job as a driver takes it in and hands it out."""

    task: str
    payload: bytes = b""
    queue: str = "default"
    id: UUID = field(default_factory=new_id)
    created_at: datetime | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    priority: int = Priority.NORMAL
    timeout: timedelta | None = None
    attempts: int = 0
    max_attempts: int = 0
    lifetime: timedelta | None = None
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    idempotency_ttl: timedelta = IDEMPOTENCY_TTL
    payload_digest: str = ""
    tags: Mapping[str, str] | None = None
    correlation_id: str | None = None
    callback_url: str = ""
    parent: UUID | None = None
    workflow: UUID | None = None
    dependencies_left: int = 0
    has_dependents: bool = False
    input: str = ""
    inputs: tuple[Any, ...] = ()
    """what was read for `input`; never stored"""
    schedule: int | None = None
    schedule_slot: datetime | None = None
    replay_of: UUID | None = None
    trace: Mapping[str, str] | None = None
    checkpoint: bytes | None = None
    executions: int = 0
    lease_losses: int = 0
    handler_misses: int = 0
    available_at: datetime | None = None

    def validate(self) -> None:
        """Raise InvalidJob, naming the field, for what no driver may store."""
        if "_kin" in self.__dict__:
            return
        for name, problem in _problems(self):
            raise InvalidJob(f"{name}: {problem}", field=name)
        self.__dict__["_kin"] = {}

    @property
    def kin(self) -> dict[str, Any]:
        """What a driver remembers of a valid record; one and the same for all made alike."""
        kin: dict[str, Any] = self.__dict__.get("_kin", {})
        return kin

    def alike(self, payload: bytes) -> JobRecord:
        """A new job with another payload and, but for the id, nothing else that differs."""
        record, facts = (
            object.__new__(JobRecord),
            self.__dict__ | {"id": new_id(), "payload": payload},
        )
        object.__setattr__(record, "__dict__", facts)
        return record

    def apart(self) -> JobRecord:
        """The same job in a record that nothing shares: who makes a plan writes into its fields."""
        record, facts = object.__new__(JobRecord), dict(self.__dict__)
        facts.pop("_kin", None)
        object.__setattr__(record, "__dict__", facts)
        return record


def _problems(record: JobRecord) -> Any:
    """Yield (field, what is wrong) for one record."""
    yield from _text("task", record.task, NAME_MAX_CHARS, empty=False)
    if not is_queue_name(record.queue):
        yield "queue", no_queue_name(record.queue)
    if not isinstance(record.payload, bytes):
        yield "payload", f"must be bytes, not {type(record.payload).__name__}"
    if not is_rank(record.priority):
        yield "priority", f"{shown(record.priority)} is not a rank from -100 to 100"
    for name in ("attempts", "max_attempts", "dependencies_left"):
        if not _is_whole(getattr(record, name), 0, COUNT_MAX):
            yield name, f"{shown(getattr(record, name))} is not a whole number from 0"
    if record.max_attempts and record.attempts > record.max_attempts:
        yield "attempts", f"{record.attempts} is more than max_attempts, {record.max_attempts}"
    if record.timeout is not None:
        yield from _duration("timeout", record.timeout)
    if record.idempotency_key is not None:
        yield from _text("idempotency_key", record.idempotency_key, KEY_MAX_CHARS, empty=False)
        yield from _duration("idempotency_ttl", record.idempotency_ttl)
    yield from _optional_problems(record)


def _optional_problems(record: JobRecord) -> Any:
    for name in ("created_at", "run_at", "schedule_slot"):
        yield from _time(name, getattr(record, name))
    for name in ("delay", "lifetime"):
        if getattr(record, name) is not None:
            yield from _duration(name, getattr(record, name))
    if record.run_at is not None and record.delay is not None:
        yield "delay", "give run_at or delay, not both"
    if record.correlation_id is not None:
        yield from _text("correlation_id", record.correlation_id, CORRELATION_MAX_CHARS)
    yield from _text("callback_url", record.callback_url, URL_MAX_CHARS)
    if record.tags is not None:
        yield from _tags(record.tags)
    if record.trace is not None:
        yield from _strings("trace", record.trace)


def shown(value: Any) -> str:
    """A value as error texts quote it: cut, and by its type alone when it has no repr."""
    try:
        return f"{value!r:.200}"
    except Exception:  # noqa: BLE001 - a repr may raise what it likes; that of 10**5000 does
        return f"a value of type {type(value).__name__}"


def is_queue_name(value: Any) -> bool:
    return isinstance(value, str) and _queue_name.match(value) is not None


def no_queue_name(value: Any) -> str:
    return f"{shown(value)} is no queue name; use 1-128 of A-Z a-z 0-9 _ . : -"


def no_option(who: str, name: object, known: Iterable[str]) -> str:
    return f"{who} has no option {name!r}; there are {', '.join(sorted(known))}"


def is_rank(value: Any) -> bool:
    return _is_whole(value, PRIORITY_FIRST, PRIORITY_LAST)


def as_duration(value: Any) -> timedelta:
    """Read a timedelta or a number of seconds; raise ValueError saying what is wrong."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            value = timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise ValueError(f"{shown(value)} seconds is no duration") from None
    for _, problem in _duration("", value):
        raise ValueError(problem)
    return cast(timedelta, value)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _text(name: str, value: Any, most: int, *, empty: bool = True) -> Any:
    if not isinstance(value, str):
        yield name, f"must be text, not {type(value).__name__}"
    elif not value and not empty:
        yield name, "must not be empty"
    elif len(value) > most:
        yield name, f"has {len(value)} characters; {most} are allowed"
    elif not is_storable(value):
        yield name, "holds a NUL character or a lone surrogate"


def is_storable(value: str) -> bool:
    """Say whether every database can keep this text: PostgreSQL refuses NUL, UTF-8 surrogates."""
    if value.isascii():
        return "\0" not in value
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _duration(name: str, value: Any) -> Any:
    if not isinstance(value, timedelta):
        yield name, f"must be a timedelta, not {type(value).__name__}"
    elif value < timedelta(0):
        yield name, f"{value.total_seconds():g} s is negative"
    elif value > DURATION_MAX:
        yield name, f"{value} is longer than a century"


def _time(name: str, value: Any) -> Any:
    if value is None:
        return
    if not isinstance(value, datetime):
        yield name, f"must be a datetime, not {type(value).__name__}"
    elif value.utcoffset() is None:
        yield name, "must have a time zone"
    elif not TIME_FIRST <= value <= TIME_LAST:
        yield name, f"{value} is outside the years 1000 to 9898"


def _strings(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        yield name, f"must be a map of strings, not {type(value).__name__}"
        return
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            yield name, f"must map strings to strings; {shown(key)} does not"
        elif not (is_storable(key) and is_storable(text)):
            yield name, "holds a NUL character or a lone surrogate"


def _tags(tags: Any) -> Any:
    if isinstance(tags, Mapping) and len(tags) > TAGS_MAX:
        yield "tags", f"has {len(tags)} tags; {TAGS_MAX} are allowed"
    yield from _strings("tags", tags)
    for key, text in tags.items():
        if len(key) > TAG_KEY_MAX_CHARS:
            size = f"has {len(key)} characters; {TAG_KEY_MAX_CHARS} are allowed in a key"
            yield "tags", f"{shown(key)} {size}"
        if len(text) > TAG_VALUE_MAX_CHARS:
            size = f"has {len(text)} characters; {TAG_VALUE_MAX_CHARS} are allowed in a value"
            yield "tags", f"the value of {shown(key)} {size}"


@dataclass(frozen=True, slots=True)
class Lease:
    """Temporary ownership: every move of the job must show this token before `expires_at`."""

    token: UUID
    expires_at: datetime
    version: int = 0
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A job and the lease under which it may run."""

    job: JobRecord
    lease: Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureUpdate:
    """What the core decided about a failure; a driver only stores it."""

    attempts: int
    last_error: str = ""
    failed_at: datetime | None = None
    run_at: datetime | None = None
    category: FailureCategory = FailureCategory.TEMPORARY
    code: str = ""
    error_class: str = ""
    traceback: str = ""


# Not slotted either: 0.8 us an ack against 3.3 for the constructor.
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one reservation; `settle` applies it if the token still holds."""

    job_id: UUID
    token: UUID
    kind: OutcomeKind
    version: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: bytes | None = None
    result_expires_at: datetime | None = None
    keep: bool = True
    """ack: False deletes the job, unless something else still needs its row"""
    record: bool = False
    """ack: True leaves an Attempt row"""
    update: FailureUpdate | None = None
    reason: str = ""
    run_at: datetime | None = None
    """release: when it may run again; None keeps its place in line"""
    missed: bool = False
    """release: nobody here knows the task; counts a handler miss"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What a finalizer with `run_on_failure` finds in the place of a result that is missing."""

    job_id: UUID
    state: str
    category: str = ""
    code: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """An outcome that changed nothing, and why."""

    outcome: Outcome
    error: TaskHarborError
    repeated: bool = False
    """the same outcome was applied before: a lost reply, taken as success"""
