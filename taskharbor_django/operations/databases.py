"""The databases that keep queues, side by side: whether each answers, and what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections

from ..lifecycle import JobState
from .figures import Count, living, state_counts, workers_of
from .storage import aliases, driver_for

PATIENCE = 2  # seconds to connect; libpq takes less as two
_WAITING = ("postgresql", "mysql")


@dataclass(frozen=True, kw_only=True, slots=True)
class Database:
    """One of them as it stands; with `away` said, nothing more is known."""

    alias: str
    away: str = ""
    counts: Mapping[JobState, Count] = field(default_factory=dict)
    workers: int = 0


def trouble_with(using: str) -> str:
    """Why a database cannot be asked, in the words of its driver; empty when it answers."""
    connection = connections[using]
    try:
        with _impatient(connection):
            if connection.errors_occurred:  # else it would be closed for its age alone
                connection.close_if_unusable_or_obsolete()
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
    except Error as problem:
        return " ".join(str(problem).split()) or type(problem).__name__
    return ""


def trouble_elsewhere(using: str) -> str:
    """The same, of other databases than Django's own, without which there is no page to show it."""
    return "" if using == DEFAULT_DB_ALIAS else trouble_with(using)


def databases() -> list[Database]:
    """All of them, the default one first."""
    return [_look(alias) for alias in aliases()]


def _look(alias: str) -> Database:
    if away := trouble_elsewhere(alias):
        return Database(alias=alias, away=away)
    now = driver_for(alias).now()
    alive = living(workers_of(alias, now), now)
    return Database(alias=alias, counts=state_counts(alias), workers=len(alive))


@contextmanager
def _impatient(connection: Any) -> Iterator[None]:
    """Let a connection that is opened now give up soon; later ones wait as they are told to."""
    asked = connection.settings_dict
    options = asked["OPTIONS"]
    # A pool keeps what it was first told.
    if connection.vendor in _WAITING and not options.get("pool"):
        limit = min(int(options.get("connect_timeout") or PATIENCE), PATIENCE)
        limited = {**options, "connect_timeout": limit}
        connection.settings_dict = {**asked, "OPTIONS": limited}
    try:
        yield
    finally:
        connection.settings_dict = asked
