"""
The same verbs on PostgreSQL, set-based: one statement to claim, one to settle plain acks, one to
renew all leases of a process.

Locks:  as in the portable form. A single statement needs no transaction around it and holds its
        locks only while it runs; longer transactions begin with time limits, so that a stopped
        process cannot hold rows for ever.
Fence:  as in the portable form. A row that changed since the statement began is looked at again
        when its lock is taken, but what it was joined with is not: so an expiry is decided on the
        lease's own row, and a token on the job's.
Repeat: as in the portable form.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import DateTimeField

from ..failpoints import reach
from ..models import Lease
from ..values import JobRecord, Outcome, Reservation
from ..values import Lease as LeaseValue
from . import claims, rows, statements
from .arrays import Given, insert_from, kind_of
from .database import DatabaseDriver

LOCK_TIMEOUT = "5s"
IDLE_TIMEOUT = "15s"


class PostgreSQLDriver(DatabaseDriver):
    """What DatabaseDriver makes when its alias is PostgreSQL."""

    def _begin(self) -> None:
        self._rows(statements.LIMITS, [LOCK_TIMEOUT, IDLE_TIMEOUT])

    def _rows(self, sql: str, parameters: Any) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    def _text(self, template: str, **parts: str) -> str:
        return template.format(**_names(self.using), **parts)

    # -- enqueue ---------------------------------------------------------------------------------

    def _insert_many(self, records: Sequence[JobRecord]) -> None:
        if records:
            with self.connection.cursor() as cursor:
                cursor.execute(*insert_from(records, self.using, self.connection))

    # -- reserve ---------------------------------------------------------------------------------

    def _peek(self, now: datetime) -> tuple[bool, bool]:
        due, expired = self._rows(self._text(statements.PEEK), [now, now])[0]
        return bool(due), bool(expired)

    def _promote(self, now: datetime) -> None:
        sql = self._text(statements.PROMOTE, limit=str(claims.PROMOTE_LIMIT))
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [now, now])

    def _claim(
        self, queue: str, now: datetime, limit: int, lease: LeaseValue, floor: claims.Floor
    ) -> list[Reservation]:
        sql, places = _claim_text(self.using, limit, floor is not None)
        values = {
            "queue": queue,
            "now": now,
            "priority": floor and floor[0],
            "available_at": floor and floor[1],
            "token": lease.token,
            "worker": lease.worker,
            "expires_at": lease.expires_at,
        }
        claimed = self._rows(sql, [values.get(place, place) for place in places])
        reach("claim.done")
        return rows.reservations(map(_with_times, claimed), lease.expires_at, lease.worker)

    def ready_queues(self) -> list[str]:
        self._check()
        return [row[0] for row in self._rows(self._text(statements.READY_QUEUES), None)]

    # -- leases ----------------------------------------------------------------------------------

    def _renew(
        self, tokens: list[UUID], now: datetime, expires_at: datetime
    ) -> dict[UUID, LeaseValue]:
        values = {"tokens": tokens, "now": now, "expires_at": expires_at}
        renewed = self._rows(self._text(statements.RENEW), values)
        return {row[0]: LeaseValue(row[0], row[1], worker=row[2]) for row in renewed}

    # -- settle ----------------------------------------------------------------------------------

    def ack_plain(self, outcomes: Sequence[Outcome], now: datetime) -> set[UUID]:
        only = "" if self.on_end is None else statements.UNFOLLOWED
        kept = [outcome for outcome in outcomes if outcome.keep]
        moved = self._ack(statements.ACK, only, kept, now) if kept else set()
        if len(kept) < len(outcomes):
            dropped = [outcome for outcome in outcomes if not outcome.keep]
            moved |= self._ack(statements.ACK_AND_DELETE, statements.UNNEEDED, dropped, now)
        return moved

    def _ack(
        self, template: str, only: str, outcomes: Sequence[Outcome], now: datetime
    ) -> set[UUID]:
        given = Given()
        given.column("id", "uuid", [outcome.job_id for outcome in outcomes], varies=True)
        parts = {"now": given.scalar("now", "timestamptz", now), "only": self._text(only)}
        for name, kind in statements.ACK_FACTS.items():
            values = [getattr(outcome, name) for outcome in outcomes]
            parts[f"given_{name}"] = given.column(name, kind, values)
        held = self._text(statements.HELD, given=given.source(), **parts)
        moved = self._rows(self._text(template, held=held, **parts), given.parameters)
        reach("settle.acked")
        return {row[0] for row in moved}

    def write(self, changes: dict[UUID, dict[str, Any]]) -> None:
        shapes: dict[tuple[str, ...], list[UUID]] = {}
        for job_id, made in changes.items():
            shapes.setdefault(tuple(made), []).append(job_id)
        for names, ids in shapes.items():
            self._write_arrays(names, ids, changes)

    def _write_arrays(
        self, names: Sequence[str], ids: list[UUID], changes: dict[UUID, dict[str, Any]]
    ) -> None:
        given = Given()
        table, quoted = rows.quoted(self.using)
        given.column("id", "uuid", ids, varies=True)
        places = []
        for name in names:
            values = [rows.prepare(name, changes[pk][name], self.connection) for pk in ids]
            sql = given.column(name, kind_of(name, self.connection), values)
            places.append(f"{quoted[name]} = {sql}")
        sql = f"UPDATE {table} SET {', '.join(places)} FROM {given.source()}"  # noqa: S608
        with self.connection.cursor() as cursor:
            cursor.execute(f"{sql} WHERE {table}.{quoted['id']} = g.id", given.parameters)


@cache
def _names(using: str) -> dict[str, str]:
    """Quoted tables and columns for the statements, from the models' own meta."""
    quote = connections[using].ops.quote_name
    table, quoted = rows.quoted(using)
    lease = {f"lease_{f.name}": quote(str(f.column)) for f in Lease._meta.concrete_fields}
    run = ", ".join(f"{table}.{quoted[name]}" for name in rows.RUN_FIELDS)
    read = ", ".join(quoted[name] + "::text" * _is_time(name) for name in rows.RUN_FIELDS)
    tables = {"job": table, "leases": quote(Lease._meta.db_table)}
    return quoted | lease | tables | {"run": run, "read": read}


def _is_time(name: str) -> bool:
    return isinstance(rows.field(name), DateTimeField)


# Times travel as text: Django's own loader took 11 % of what a worker with short jobs spent.
_TIMES = [place for place, name in enumerate(rows.RUN_FIELDS) if _is_time(name)]


def _with_times(row: Sequence[Any]) -> list[Any]:
    read = list(row)
    for place in _TIMES:
        if read[place] is not None:
            read[place] = datetime.fromisoformat(read[place])
    return read


@lru_cache(maxsize=1024)
def _claim_text(using: str, limit: int, floored: bool) -> tuple[str, list[Any]]:  # noqa: FBT001  cached
    """
    The claim for one limit, and for each of its places the value's name or a constant.

    The picking part is Django's own queryset, compiled once with stand-ins for the values; LIMIT
    is written out because the planner does 12-19 % better with a literal.
    """
    driver = PostgreSQLDriver(using)
    now, since = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
    stand_ins = {"?": "queue", now: "now", since: "available_at", 101: "priority"}
    runnable = claims.runnable(using, "?", now, (101, since) if floored else None)
    picked = driver.locked(runnable).values("pk")[:limit]
    with transaction.atomic(using=using):  # Django compiles a lock only inside a transaction
        pick, parameters = picked.query.get_compiler(using).as_sql()
    places = [stand_ins.get(parameter, parameter) for parameter in parameters]
    sql = driver._text(statements.CLAIM, pick=pick)
    head, tail = statements.CLAIM_BEFORE_PICK, statements.CLAIM_AFTER_PICK
    return sql, [*head, *places, *tail]
