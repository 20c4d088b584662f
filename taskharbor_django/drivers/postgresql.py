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

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import DateTimeField, QuerySet

from ..failpoints import reach
from ..lifecycle import Verb
from ..models import Job, Lease
from ..models.expressions import AnyOf
from ..signals import wanted
from ..values import JobRecord, Outcome, Reservation
from ..values import Lease as LeaseValue
from . import claims, inserts, rows, statements
from .arrays import Given, insert_from, kind_of
from .database import DatabaseDriver, OnEnd
from .ground import AnyModel
from .patience import Patience, patience
from .prepared import Prepared

LOCK_TIMEOUT = "5s"
SHORT_TIMEOUT, LEAST_TIMEOUT = "200ms", "10ms"  # 0 would be for ever
IDLE_TIMEOUT = "15s"
# As many acks are worth a kept plan. It may join them by comparing each with each, which tells
# for more of them, and there a plan of their own costs next to nothing: none of 16 ms for 500.
FEW_ACKS = 100


class PostgreSQLDriver(DatabaseDriver):
    """What DatabaseDriver makes when its alias is PostgreSQL."""

    def __init__(self, using: str | None = None, on_end: OnEnd | None = None) -> None:
        super().__init__(using, on_end)
        self._prepared = Prepared()

    @property
    def hurries(self) -> bool:
        return True

    def _begin(self) -> None:
        self._rows(statements.LIMITS, [_lock_timeout(), IDLE_TIMEOUT])

    def _rows(self, sql: str, parameters: Any) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    def _text(self, template: str, **parts: str) -> str:
        return template.format(**_names(self.using), **parts)

    def among(
        self, queryset: QuerySet[AnyModel], ids: Collection[UUID], column: str = "pk"
    ) -> QuerySet[AnyModel]:
        return queryset.filter(AnyOf(column, ids)) if ids else queryset.none()

    # -- enqueue ---------------------------------------------------------------------------------

    def _execute_insert(self, cursor: Any, insert: inserts.Insert) -> None:
        self._prepared.insert(cursor, *insert)

    def _insert_many(self, records: Sequence[JobRecord]) -> None:
        if records:
            with self.connection.cursor() as cursor:
                cursor.execute(*insert_from(records, self.using, self.connection))

    # -- reserve ---------------------------------------------------------------------------------

    def _peek(
        self, queue: str, now: datetime, limit: int, lease: LeaseValue, floor: claims.Floor
    ) -> claims.Peek:
        claimed = self._claim_rows(queue, now, limit, lease, floor, peek=True)
        due, expired = claimed[0][-2:]
        found = [row for row in claimed if row[0] is not None]
        return self._reservations(found, lease), bool(due), bool(expired)

    def _promote(self, now: datetime) -> None:
        sql = self._text(statements.PROMOTE, limit=str(claims.PROMOTE_LIMIT))
        if not wanted(Verb.PROMOTE):
            with self.connection.cursor() as cursor:
                cursor.execute(sql, [now, now])
            return
        moved = self._rows(sql + self._text(statements.MOVED), [now, now])
        claims.tell_promoted(self.using, moved)

    def _claim(
        self, queue: str, now: datetime, limit: int, lease: LeaseValue, floor: claims.Floor
    ) -> list[Reservation]:
        return self._reservations(self._claim_rows(queue, now, limit, lease, floor), lease)

    def _claim_rows(
        self,
        queue: str,
        now: datetime,
        limit: int,
        lease: LeaseValue,
        floor: claims.Floor,
        *,
        peek: bool = False,
    ) -> list[Any]:
        values = {
            "queue": queue,
            "now": now,
            "limit": limit,
            "priority": floor and floor[0],
            "available_at": floor and floor[1],
            "token": lease.token,
            "worker": lease.worker,
            "expires_at": lease.expires_at,
        }
        with self.connection.cursor() as cursor:
            sql = _claim_text(self.using, floor is not None, peek)
            self._prepared.execute(cursor, "claim", sql, values)
            return list(cursor.fetchall())

    def _reservations(self, claimed: list[Any], lease: LeaseValue) -> list[Reservation]:
        reach("claim.done")
        return rows.reservations(claimed, lease.expires_at, lease.worker, lease.token)

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

    def ack_plain(self, outcomes: Sequence[Outcome], now: datetime) -> list[Outcome]:
        only = "" if self.on_end is None else statements.UNFOLLOWED
        kept = [outcome for outcome in outcomes if outcome.keep]
        left = self._ack(statements.ACK, only, kept, now) if kept else []
        if len(kept) < len(outcomes):
            dropped = [outcome for outcome in outcomes if not outcome.keep]
            left += self._ack(statements.ACK_AND_DELETE, statements.UNNEEDED, dropped, now)
        return left

    def _ack(
        self, template: str, only: str, outcomes: Sequence[Outcome], now: datetime
    ) -> list[Outcome]:
        given = Given()
        given.column("id", "uuid", [outcome.job_id for outcome in outcomes], varies=True)
        parts = {"now": given.scalar("now", "timestamptz", now), "only": self._text(only)}
        for name, kind in statements.ACK_FACTS.items():
            values = [getattr(outcome, name) for outcome in outcomes]
            if name in statements.RUN_TIMES:
                parts[f"given_{name}"] = given.instants(name, values, now)
            else:
                parts[f"given_{name}"] = given.column(name, kind, values)
        few = len(outcomes) <= FEW_ACKS
        parts["tokens"] = given.any_of("token") if few else parts["given_token"]
        held = self._text(statements.HELD, given=given.source(), **parts)
        with self.connection.cursor() as cursor:
            execute = partial(self._prepared.execute, cursor, "ack") if few else cursor.execute
            execute(self._text(template, held=held, **parts), given.parameters)
            # Which ones is only asked when it was not all.
            whole = cursor.rowcount == len(outcomes)
            moved = set() if whole else {row[0] for row in cursor.fetchall()}
        reach("settle.acked")
        return [] if whole else [outcome for outcome in outcomes if outcome.job_id not in moved]

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
        sql = f"UPDATE {table} SET {', '.join(places)} FROM {given.source()}"  # noqa: S608  names from the model, values as parameters
        with self.connection.cursor() as cursor:
            cursor.execute(f"{sql} WHERE {table}.{quoted['id']} = g.id", given.parameters)


def _lock_timeout() -> str:
    timeouts = {Patience.USUAL: LOCK_TIMEOUT, Patience.SHORT: SHORT_TIMEOUT}
    return timeouts.get(patience(), LEAST_TIMEOUT)


@cache
def _names(using: str) -> dict[str, str]:
    """Quoted tables and columns for the statements, from the models' own meta."""
    quote = connections[using].ops.quote_name
    table, quoted = rows.quoted(using)
    lease = {f"lease_{f.name}": quote(str(f.column)) for f in Lease._meta.concrete_fields}
    run = ", ".join(f"{table}.{quoted[name]}" for name in rows.RUN_FIELDS)
    read = ", ".join(_read(name, quoted) for name in rows.RUN_FIELDS)
    tables = {"job": table, "leases": quote(Lease._meta.db_table)}
    return quoted | lease | tables | {"run": run, "read": read}


def _read(name: str, quoted: dict[str, str]) -> str:
    """What a claim returns of a column, in the form that costs the worker least."""
    if isinstance(rows.field(name), DateTimeField):
        # As text: Django's own loader took 11 % of what a worker with short jobs spent.
        return f"{quoted[name]}::text"
    if name == "lease":
        # The call's own token need not come back with each job.
        return f"CASE WHEN {quoted['lease_losses']} > 0 THEN {quoted[name]} END"
    return quoted[name]


_ANY_LIMIT = "1234567890"  # stands for the limit where a claim is compiled


@lru_cache(maxsize=1024)
def _claim_text(
    using: str,
    floored: bool,  # noqa: FBT001  cached
    peek: bool,  # noqa: FBT001  cached
) -> str:
    """
    The claim, with named places for its values.

    The picking part is Django's own queryset, compiled once with stand-ins for the values. Above a
    floor it is one for each range of the index: one range with an OR in it would be read from its
    beginning.
    """
    driver = PostgreSQLDriver(using)
    now, since = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
    stand_ins = {"?": "queue", now: "now", since: "available_at", 101: "priority"}
    ranges = (
        claims.runnable_in_parts(using, "?", now, (101, since))
        if floored
        else [claims.runnable(using, "?", now, None)]
    )
    ids = f"ARRAY({_first([_compile(driver, jobs, stand_ins) for jobs in ranges])})"
    if not peek:
        return driver._text(statements.CLAIM, ids=ids, before="", source="claimed")
    ids = statements.UNLESS_OTHERS.format(ids=ids)
    parts = {"before": driver._text(statements.PEEK), "source": statements.PEEKED, "ids": ids}
    return driver._text(statements.CLAIM.replace("{read}", "{read}, due, expired"), **parts)


def _compile(driver: PostgreSQLDriver, jobs: QuerySet[Job], stand_ins: dict[Any, str]) -> str:
    picked = driver.locked(jobs).values("pk")[: int(_ANY_LIMIT)]
    with transaction.atomic(using=driver.using):  # Django compiles a lock only in a transaction
        sql, parameters = picked.query.get_compiler(driver.using).as_sql()
    # What stands for no value is a constant of Django's, the 1 of an EXISTS.
    names = [f"%({stand_ins[it]})s" if it in stand_ins else str(int(it)) for it in parameters]
    return str(sql % tuple(names)).replace(_ANY_LIMIT, "%(limit)s")


def _first(picks: Sequence[str]) -> str:
    """The picks one after the other; a later one is not begun once there are enough."""
    if len(picks) == 1:
        return picks[0]
    # PostgreSQL takes a lock in a subquery of a union, but not in its branch.
    parts = [f"SELECT * FROM ({pick}) AS part_{n}" for n, pick in enumerate(picks)]  # noqa: S608  names from the model, values as parameters
    return f"{' UNION ALL '.join(parts)} LIMIT %(limit)s"
