"""
`settings.TASKHARBOR` read into one frozen value.

The fields of `Settings` are the table: default, accepted values and meaning of each entry stand
there once. Parsing, error texts, the system check and the reference page are made from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import cache, partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections
from django.dispatch import receiver
from django.utils.module_loading import import_string

from . import backoff as backoffs
from .lifecycle import QUEUE_NAME_PATTERN
from .payload import Codec
from .schedules import Declared, declare
from .values import COUNT_MAX, DURATION_MAX, IDEMPOTENCY_TTL

SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
MIB = 1024 * 1024
REFUSED = (TypeError, ValueError)
CODECS = {"json": "taskharbor_django.payload.JSONCodec"}
RETENTION = {"done": 7 * DAY, "cancelled": 7 * DAY, "dead": None, "statistics": 30 * DAY}
MASKED = "password passwd passphrase secret token authorization cookie key credential signature"


@dataclass(frozen=True, slots=True)
class Kind:
    """What an entry accepts: in words, and as a function that raises one of REFUSED."""

    accepts: str
    read: Callable[[Any], Any]


def choice(*options: Any) -> Kind:
    def read(value: Any) -> Any:
        # Types count: 1 == True, but a flag of 1 is more likely a mistake.
        if not any(type(value) is type(option) and value == option for option in options):
            raise ValueError
        return value

    return Kind(" or ".join(map(repr, options)), read)


def either(*kinds: Kind) -> Kind:
    def read(value: Any) -> Any:
        reasons = []
        for kind in kinds:
            try:
                return kind.read(value)
            except REFUSED as error:
                reasons.append(str(error))
        raise ValueError("; ".join(filter(None, reasons)))

    return Kind(", or ".join(kind.accepts for kind in kinds), read)


def whole(least: int, most: int = COUNT_MAX) -> Kind:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError
        return value

    return Kind(f"a whole number from {least}" + f" to {most:,}" * (most < COUNT_MAX), read)


def _duration(value: Any, least: float = 0) -> timedelta:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if type(seconds) not in (int, float) or not least <= seconds <= DURATION_MAX.total_seconds():
        raise ValueError
    return timedelta(seconds=seconds)


def _text(value: Any, pattern: str = r"\s*\S") -> str:
    if not isinstance(value, str) or not re.match(pattern, value):
        raise ValueError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError
    return tuple(_text(item).lower() for item in value)


def _alias(value: Any) -> str:
    if value not in list(connections):
        raise ValueError(f"DATABASES has {', '.join(connections)}")
    return str(value)


def _queue_databases(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError
    return MappingProxyType({QUEUE_NAME.read(name): _alias(value[name]) for name in value})


def _retention(value: Any) -> Mapping[str, timedelta | None]:
    if not isinstance(value, Mapping) or not value.keys() <= RETENTION.keys():
        raise ValueError
    return MappingProxyType(RETENTION | {state: KEPT.read(value[state]) for state in value})


def _callback_hosts(value: Any) -> Mapping[str, IPv4Network | IPv6Network | None]:
    pairs = [item.partition("=") for item in _texts(value)]
    for name, _, _ in pairs:
        # A scheme, a port or a path would never equal the host of a URL: refuse it here.
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
            raise ValueError(f"{name!r} is no host name")
    return MappingProxyType({name: ip_network(net) if eq else None for name, eq, net in pairs})


def _schedules(value: Any) -> Mapping[str, Declared]:
    if not isinstance(value, Mapping) or not all(isinstance(it, Mapping) for it in value.values()):
        raise TypeError
    options = {name: {str(key): it for key, it in value[name].items()} for name in value}
    return MappingProxyType(
        {name: declare(name, given.pop("task", None), **given) for name, given in options.items()}
    )


def _codec(value: Any) -> Codec:
    try:
        found = import_string(CODECS.get(value, value)) if isinstance(value, str) else value
        codec: Codec = found() if isinstance(found, type) else found
    except Exception as error:  # whatever the class or its module raises belongs to this entry
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not all(callable(getattr(codec, verb, None)) for verb in ("encode", "decode")):
        raise ValueError("it lacks encode or decode")
    return codec


NONE, FLAG, AUTO = choice(None), choice(True, False), choice("auto")
COUNT, BYTES = whole(1), whole(1, 16 * MIB)
POSITIVE = Kind("a timedelta or seconds above 0", partial(_duration, least=1e-6))
DURATION = Kind("a timedelta or seconds", _duration)
KEPT, LIMIT = either(DURATION, NONE), either(POSITIVE, NONE)
ALIAS = Kind("an alias of DATABASES", _alias)
QUEUE_NAME = Kind("1 to 128 of A-Z a-z 0-9 _ . : -", partial(_text, pattern=QUEUE_NAME_PATTERN))
QUEUE_DATABASES = Kind("a dict of queue names to aliases of DATABASES", _queue_databases)
TEXT = Kind("a string that is not empty", _text)
TEXTS = Kind("a list of strings that are not empty", _texts)
STATES = Kind(
    "a dict of done, cancelled, dead or statistics to a timedelta, seconds or None", _retention
)
SCHEDULES = Kind("a dict of names to dicts of a task and the options of a schedule", _schedules)
HOSTS = Kind("a list of 'host' or 'host=network'", _callback_hosts)
CODEC = Kind("'json', or a class or its dotted path, with encode and decode", _codec)
BACKOFF = Kind("a strategy's name, a dict of its numbers, or a function", backoffs.parse)


def entry(default: Any, kind: Kind, meaning: str, *, shown: str = "", secret: bool = False) -> Any:
    """Describe one entry; a callable default takes the values of the entries above it."""
    facts = {"default": default, "kind": kind, "meaning": meaning, "shown": shown, "secret": secret}
    return field(repr=not secret, metadata=facts)


# One or two lines an entry, five screens from the formatter; what `entry` returns is a field.
# fmt: off
# ruff: noqa: RUF009
@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Every entry of TASKHARBOR under its lower-case name; made by `parse` alone."""

    database: str | None = entry(None, either(ALIAS, NONE), "Where jobs are; None: ask the router")
    queue_databases: Mapping[str, str] = entry({}, QUEUE_DATABASES, "Queues kept somewhere else")
    queue: str = entry("default", QUEUE_NAME, "Queue of tasks that name none")
    lease: timedelta = entry(30 * SECOND, POSITIVE, "How long a job stays held without a heartbeat")
    heartbeat: timedelta = entry(lambda above: above["lease"] / 3, POSITIVE,
        "Time between two renewals of the leases of a process", shown="LEASE / 3")
    max_attempts: int = entry(3, COUNT, "Attempts that may fail before a job is buried")
    max_lease_losses: int | None = entry(3, either(COUNT, NONE),
        "Lost leases before a job is buried; None: no limit")
    backoff: backoffs.Backoff = entry(backoffs.Backoff(), BACKOFF, "Delay before the next attempt")
    timeout: timedelta | None = entry(30 * MINUTE, LIMIT, "Longest run; None: no limit")
    max_timeout: timedelta | None = entry(lambda above: above["timeout"], LIMIT,
        "Longest timeout that a task or call may ask for; None: no ceiling", shown="TIMEOUT")
    lifetime: timedelta | None = entry(7 * DAY, LIMIT, "Age at which an open job is buried")
    submission_timeout: timedelta = entry(30 * SECOND, POSITIVE, "Longest wait of an enqueue")
    idempotency_ttl: timedelta = entry(IDEMPOTENCY_TTL, POSITIVE, "How long a key is remembered")
    idempotency_strict: bool = entry(False, FLAG, "Refuse a known key with another payload")
    payload_max_bytes: int = entry(MIB, BYTES, "Largest encoded payload")
    result_max_bytes: int = entry(MIB, BYTES, "Largest encoded result; a larger one is not stored")
    error_max_chars: int = entry(32_768, COUNT, "Error texts are cut to this length")
    payload_codec: Codec = entry("json", CODEC, "Makes payloads bytes; the hook for encryption")
    masked_keys: tuple[str, ...] = entry(tuple(MASKED.split()), TEXTS,
        "Values under keys that contain one of these are never shown")
    record_attempts: str = entry("failures", choice("failures", "all"), "Attempts that leave a row")
    retention: Mapping[str, timedelta | None] = entry(RETENTION, STATES,
        "How long ended jobs stay; None: for good, 0 for done deletes a job as it is acked")
    schedules: Mapping[str, Declared] = entry({}, SCHEDULES, "Recurring work, beside @schedule")
    result_ttl: timedelta | None = entry(DAY, KEPT, "How long results stay; None: like the job")
    workflow_max_jobs: int = entry(10_000, COUNT, "Jobs in one workflow")
    max_dependencies: int = entry(1_000, COUNT, "Jobs that one after= or after_any= may name")
    max_depth: int = entry(100, COUNT, "Longest path of dependencies")
    shutdown_grace: timedelta = entry(30 * SECOND, DURATION, "Time to finish after SIGTERM")
    poll: timedelta = entry(SECOND, POSITIVE, "Longest time between two looks into an empty queue")
    notify: bool | str = entry("auto", either(AUTO, FLAG), "Wake workers by LISTEN and NOTIFY")
    prefetch: int | str = entry("auto", either(AUTO, whole(0)), "Jobs reserved beyond free slots")
    callback_hosts: Mapping[str, IPv4Network | IPv6Network | None] = entry((), HOSTS,
        "Hosts that callbacks may go to; a network of its own admits private addresses")
    callback_secret: str | None = entry(None, either(TEXT, NONE), "Key of signatures", secret=True)
    clock: str = entry("database", choice("database", "local"), "Whose time decides about leases")
    clock_skew: timedelta | None = entry(None, KEPT, "With a local clock: how far two may differ")
# fmt: on

ENTRIES = {described.name.upper(): described for described in fields(Settings)}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with one entry, or with several together, and what to do about it."""

    names: tuple[str, ...]
    message: str
    hint: str


def parse(given: Any) -> tuple[Settings | None, list[Problem]]:
    """Read a TASKHARBOR dict: the settings, or None and everything that is wrong with it."""
    if not isinstance(given, Mapping):
        message = f"TASKHARBOR must be a dict, not {type(given).__name__}."
        return None, [Problem((), message, "Leave it out, or write TASKHARBOR = {}.")]
    problems = [_unknown(name) for name in given if name not in ENTRIES]
    values: dict[str, Any] = {}
    for name in ENTRIES:
        problems += _read_into(values, name, given)
    parsed = Settings(**values)
    refused = {name for problem in problems for name in problem.names}
    problems += [clash for clash in _clashes(parsed) if refused.isdisjoint(clash.names)]
    return (None if problems else parsed), problems


def _unknown(name: Any) -> Problem:
    close = get_close_matches(str(name).upper(), ENTRIES, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(ENTRIES)}."
    return Problem((str(name),), f"TASKHARBOR has no entry {name!r:.200}.", hint)


def _read_into(values: dict[str, Any], name: str, given: Mapping[str, Any]) -> list[Problem]:
    facts = ENTRIES[name].metadata
    default = facts["default"](values) if callable(facts["default"]) else facts["default"]
    value = given.get(name, default)
    try:
        values[ENTRIES[name].name] = facts["kind"].read(value)
    except REFUSED as error:
        # The default stands in, so that combinations of the other entries can still be judged.
        values[ENTRIES[name].name] = default
        shown = type(value).__name__ if facts["secret"] else f"{value!r:.200}"
        reason = f" ({error})" if str(error) else ""
        message = f"TASKHARBOR[{name!r}] must be {facts['kind'].accepts}, not {shown}{reason}."
        return [Problem((name,), message, f"{facts['meaning']}. Left out, it has its default.")]
    return []


def _clashes(it: Settings) -> Iterator[Problem]:
    """Yield what is fine alone and wrong together."""
    if 2 * it.heartbeat > it.lease:
        yield Problem(
            ("LEASE", "HEARTBEAT"),
            f"LEASE ({it.lease}) is shorter than two heartbeats (HEARTBEAT is {it.heartbeat}).",
            "One late heartbeat would lose the lease: make LEASE longer or HEARTBEAT shorter.",
        )
    if it.max_timeout and (it.timeout is None or it.timeout > it.max_timeout):
        yield Problem(
            ("TIMEOUT", "MAX_TIMEOUT"),
            f"TIMEOUT ({it.timeout}) is more than MAX_TIMEOUT ({it.max_timeout}) allows.",
            "Raise MAX_TIMEOUT, or set it to None for no ceiling.",
        )
    if it.clock == "local" and (it.clock_skew is None or it.lease <= 2 * it.clock_skew):
        yield Problem(
            ("CLOCK", "CLOCK_SKEW", "LEASE"),
            f"CLOCK is 'local' with CLOCK_SKEW {it.clock_skew} and LEASE {it.lease}.",
            "Set CLOCK_SKEW to the most that two clocks differ, and LEASE to more than twice that.",
        )
    if it.callback_hosts and not it.callback_secret:
        yield Problem(
            ("CALLBACK_SECRET", "CALLBACK_HOSTS"),
            "CALLBACK_HOSTS is set but CALLBACK_SECRET is not.",
            "A receiver could not tell callbacks from forgeries: set a long random string.",
        )


@cache
def get_settings() -> Settings:
    """Return the settings in force; raise ImproperlyConfigured naming all that is wrong."""
    parsed, problems = parse(getattr(settings, "TASKHARBOR", {}))
    if parsed is None:
        raise ImproperlyConfigured("\n".join(f"{p.message} {p.hint}" for p in problems))
    return parsed


@receiver(setting_changed)
def _forget(*, setting: str, **_: Any) -> None:
    if setting in {"TASKHARBOR", "DATABASES"}:
        get_settings.cache_clear()
