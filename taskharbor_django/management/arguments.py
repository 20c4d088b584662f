"""
The options of `runworker`: what each means, and what is wrong with a value.

Values are read here and not by the parser, so that `call_command` with Python values and a command
line are refused with the same words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from .. import conf
from ..conf import ALIAS, MIB, QUEUE_NAME, REFUSED, Kind, Settings, choice
from ..operations.storage import alias_of, default_alias
from ..values import COUNT_MAX
from ..worker.options import ALL_QUEUES, DEFAULT_THREADS, WorkerOptions
from ..worker.supervisor import Supervised

RELOAD_GRACE = timedelta(seconds=1)
NAME_MAX_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a command line asks for."""

    processes: int
    autoreload: bool
    worker: WorkerOptions

    @property
    def is_supervised(self) -> bool:
        return self.processes > 1 or self.autoreload

    @property
    def grace(self) -> float:
        return self.worker.grace.total_seconds()


# -- what values may be --------------------------------------------------------------------------


def _whole(most: int = COUNT_MAX) -> Kind:
    kind = conf.whole(1, most)
    return Kind(kind.accepts, lambda value: kind.read(int(value)))


def _seconds(kind: Kind, accepts: str) -> Kind:
    def read(value: Any) -> Any:
        return kind.read(value if isinstance(value, timedelta) else float(value))

    return Kind(accepts, read)


def _queues(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    names = tuple(dict.fromkeys(str(name).strip() for name in names))
    if ALL_QUEUES in names and len(names) > 1:
        raise ValueError("'*' has them all: leave out the names, or the '*'")
    return names if names == (ALL_QUEUES,) else tuple(map(_queue, names))


def _queue(name: str) -> str:
    try:
        return str(QUEUE_NAME.read(name))
    except REFUSED as error:
        raise ValueError(f"{name!r} is no queue name: use {QUEUE_NAME.accepts}") from error


def _name(value: Any) -> str:
    name = str(value)
    if not name.strip() or len(name) > NAME_MAX_CHARS or not name.isprintable():
        raise ValueError
    return name


def _health_file(value: Any) -> str:
    path = Path(value).absolute()  # handlers may change the working directory
    if not path.parent.is_dir() or path.is_dir():
        raise ValueError("there is no such directory" if not path.is_dir() else "a directory")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path.parent} is not writable")
    return str(path)


SECONDS = _seconds(conf.POSITIVE, "a number of seconds above 0")
SECONDS_OR_NONE = _seconds(conf.DURATION, "a number of seconds, 0 or more")
QUEUES = Kind("'*', or names of queues with commas between", _queues)
POOL = choice("thread", "process")
NAME = Kind(f"1 to {NAME_MAX_CHARS} printable characters", _name)
FILE = Kind("a file in a directory that can be written to", _health_file)

# option -> placeholder, help, what it may be
VALUES = {
    "queues": ("NAMES", "Queues, looked into in this order; '*' (default): all in turn.", QUEUES),
    "threads": ("N", f"Jobs side by side per process (default: {DEFAULT_THREADS}).", _whole(1_000)),
    "processes": ("N", "Worker processes; above 1 with a supervisor (default: 1).", _whole(1_000)),
    "pool": ("KIND", "'thread' (default), or 'process': every job in a child process.", POOL),
    "lease": ("SECONDS", "How long jobs stay held without a heartbeat (default: LEASE).", SECONDS),
    "poll": ("SECONDS", "Longest time between looks into empty queues (default: POLL).", SECONDS),
    "grace": (
        "SECONDS",
        "Time for running jobs to finish at a stop (default: SHUTDOWN_GRACE).",
        SECONDS_OR_NONE,
    ),
    "max-jobs": ("N", "Go on in a new process after this many jobs.", _whole()),
    "max-memory": ("MB", "Go on in a new process when this one occupies so much.", _whole()),
    "database": ("ALIAS", "Where the jobs are (default: the database of the queues).", ALIAS),
    "name": ("NAME", "Shown in log lines and in the admin; need not be unique.", NAME),
    "health-file": ("PATH", "Rewritten with each heartbeat, removed at the end: for probes.", FILE),
}
FLAGS = {
    "no-scheduler": "Take no part in schedules.",
    "burst": "Run what is runnable, then exit.",
    "autoreload": "For development: go on in a new process when code changes.",
}


# -- reading them --------------------------------------------------------------------------------


def add(parser: CommandParser) -> None:
    for name, (placeholder, text, _) in VALUES.items():
        parser.add_argument(f"--{name}", metavar=placeholder, help=text)
    for name, text in FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)


def read(given: Mapping[str, Any], supervised: Supervised | None) -> Plan:
    """Check everything that can be wrong before anything starts."""
    try:
        settings = conf.get_settings()
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    values = {name.replace("-", "_"): _value(given, name) for name in VALUES}
    values |= {name.replace("-", "_"): bool(given.get(name.replace("-", "_"))) for name in FLAGS}
    processes = values["processes"] or 1
    if values["autoreload"] and processes > 1:
        raise CommandError("--autoreload works with one process: leave out --processes.")
    if values["autoreload"] and values["burst"]:
        raise CommandError("--autoreload has no end and --burst has one: leave out one of them.")
    options = _options(values, settings, supervised)
    return Plan(processes=processes, autoreload=values["autoreload"], worker=options)


def _value(given: Mapping[str, Any], name: str) -> Any:
    _, meaning, kind = VALUES[name]
    value = given.get(name.replace("-", "_"))
    if value is None:
        return None
    try:
        return kind.read(value)
    except (*REFUSED, OverflowError) as error:
        # What int() and float() say of a value is no help; what this module and conf say is.
        reason = f" ({error})" if str(error) and kind in {QUEUES, FILE, ALIAS} else ""
        text = f"--{name} must be {kind.accepts}, not {value!r}{reason}. {meaning}"
        raise CommandError(text) from error


def _options(
    values: dict[str, Any], settings: Settings, supervised: Supervised | None
) -> WorkerOptions:
    lease, grace = values["lease"], values["grace"]
    if grace is None:
        most = RELOAD_GRACE if values["autoreload"] else settings.shutdown_grace
        grace = min(settings.shutdown_grace, most)
    queues = values["queues"] or (ALL_QUEUES,)
    return WorkerOptions(
        queues=queues,
        using=values["database"] or _home(queues),
        threads=values["threads"] or DEFAULT_THREADS,
        lease=lease or settings.lease,
        heartbeat=lease / 3 if lease else settings.heartbeat,
        poll=values["poll"] or settings.poll,
        grace=grace,
        listen=settings.notify is not False,
        prefetch=None if isinstance(settings.prefetch, str) else settings.prefetch,
        max_lease_losses=settings.max_lease_losses,
        isolate_all=values["pool"] == "process",
        burst=values["burst"],
        scheduler=not values["no_scheduler"],
        max_jobs=values["max_jobs"],
        max_memory=values["max_memory"] and values["max_memory"] * MIB,
        **_identity(values, supervised),
    )


def _home(queues: Iterable[str]) -> str:
    """The one database that all these queues live in."""
    homes = {name: default_alias() if name == ALL_QUEUES else alias_of(name) for name in queues}
    if len(set(homes.values())) > 1:
        listed = ", ".join(f"{name} in {alias}" for name, alias in homes.items())
        raise CommandError(f"--queues: one worker serves one database; there is {listed}.")
    return next(iter(homes.values()))


def _identity(values: dict[str, Any], supervised: Supervised | None) -> dict[str, Any]:
    """Who the process is; children of one supervisor share a name but for their number."""
    name, health_file = values["name"] or "worker", values["health_file"]
    if supervised is None:
        return {"name": name, "health_file": health_file}
    number = supervised.number
    return {
        "id": supervised.worker,
        "name": f"{name}-{number}",
        "health_file": health_file and f"{health_file}.{number}",
        "farewell": supervised.farewell,
    }
