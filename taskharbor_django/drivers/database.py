"""
Jobs in a Django database: the contract in portable form.

Locks:  jobs by SELECT ... FOR UPDATE SKIP LOCKED in id order, then what hangs on them. Lease rows
        are locked by heartbeat, reclaim and removal only; settle reads them.
Fence:  state, token and version of the locked row, and the lease's expiry read after that lock.
Repeat: deadlock, lock timeout and a busy SQLite repeat the whole verb, unless the transaction is
        the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import IntegrityError, OperationalError, connections, router, transaction

from ..clock import steady
from ..exceptions import DuplicateJob, JobLocked, LeaseExpired, StaleLease
from ..failpoints import reach
from ..lifecycle import OutcomeKind, Verb
from ..models import Job
from ..signals import as_asked, tell_on_commit
from ..values import JobRecord, Outcome, Rejection, Reservation
from ..values import Lease as LeaseValue
from . import claims, inserts, keys, leases, rows, settling
from .base import Driver
from .ends import Stored
from .ground import Ground
from .reclaim import reclaim_expired, sweep_orphans
from .transient import is_transient, repeat

ROWS_PER_INSERT = 500
# How much of a lease may have passed when it is taken out: its end counts from the caller's `now`.
LATEST_CLAIM, QUICK_CLAIM = 0.25, 0.25  # as a part of it; and in seconds, which always may

OnEnd = Callable[[Sequence[UUID]], object]


def claim_within(lease_for: timedelta) -> float:
    """For how many seconds a reserve may promote and reclaim before it claims, if it does then."""
    return max(lease_for.total_seconds() * LATEST_CLAIM, QUICK_CLAIM)


class DatabaseDriver(Ground, Driver):
    """Jobs in the database of one alias; on PostgreSQL this makes the set-based form."""

    def __new__(cls, using: str | None = None, *_: Any, **__: Any) -> DatabaseDriver:
        if cls is DatabaseDriver and connections[_alias(using)].vendor == "postgresql":
            from .postgresql import PostgreSQLDriver

            return super().__new__(PostgreSQLDriver)
        return super().__new__(cls)

    def __init__(self, using: str | None = None, on_end: OnEnd | None = None) -> None:
        self.using = _alias(using)
        self.on_end = on_end
        self.on_reclaim: Callable[[int], None] | None = None  # told how many, after the commit

    # -- enqueue ---------------------------------------------------------------------------------

    def enqueue(self, record: JobRecord) -> UUID:
        """One INSERT in the caller's transaction, and nothing else, unless there is a key."""
        self._check()
        record.validate()
        if record.idempotency_key is not None:
            return repeat(self.using, lambda: self._store([record]))[0]
        repeat(self.using, lambda: self._insert_one(record))
        return record.id

    def enqueue_many(self, records: Sequence[JobRecord]) -> list[UUID]:
        self._check()
        for record in records:
            record.validate()
        return repeat(self.using, lambda: self._store(records))

    def _store(self, records: Sequence[JobRecord]) -> list[UUID]:
        try:
            return self._store_new(records)
        except IntegrityError:
            known = self._known(records)
            if not known:
                raise
            repeats = known & keys.repeated(records, self.using)
            if repeats != known:
                raise DuplicateJob from None
        others = iter(self._store([record for record in records if record.id not in repeats]))
        return [record.id if record.id in repeats else next(others) for record in records]

    def _store_new(self, records: Sequence[JobRecord]) -> list[UUID]:
        with transaction.atomic(using=self.using):
            ids, fresh = keys.resolved(records, self.using)
            reach("enqueue.keys_taken")
            self._insert_many(fresh)
            tell_on_commit(Verb.ENQUEUE, self.using, fresh, as_asked)
        return ids

    def _insert_one(self, record: JobRecord) -> None:
        connection = self.connection
        insert = inserts.statement(record, self.using, connection)
        with connection.cursor() as cursor:
            try:
                self._execute_insert(cursor, insert)
            except IntegrityError:
                if connection.vendor == "mysql" and self._known([record]):
                    raise DuplicateJob from None
                raise
            if cursor.rowcount == 0:
                raise DuplicateJob
        tell_on_commit(Verb.ENQUEUE, self.using, [record], as_asked)

    def _execute_insert(self, cursor: Any, insert: inserts.Insert) -> None:
        cursor.execute(insert.sql, [*insert.own, *insert.alike])

    def _known(self, records: Sequence[JobRecord]) -> set[UUID]:
        """The ids of those that are stored already."""
        ids = [record.id for record in records]
        return set(Job.objects.using(self.using).filter(pk__in=ids).values_list("pk", flat=True))

    def _insert_many(self, records: Sequence[JobRecord]) -> None:
        for start in range(0, len(records), ROWS_PER_INSERT):
            batch = records[start : start + ROWS_PER_INSERT]
            with self.connection.cursor() as cursor:
                for sql, parameters in inserts.many(batch, self.using, self.connection):
                    cursor.execute(sql, parameters)

    # -- reserve ---------------------------------------------------------------------------------

    def reserve(
        self,
        queue: str,
        *,
        now: datetime,
        lease_for: timedelta,
        limit: int = 1,
        worker: str = "",
        token: UUID | None = None,
        max_lease_losses: int | None = None,
        floor: tuple[int, datetime] | None = None,
    ) -> list[Reservation]:
        self._check(now, lease_for)
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        latest = steady() + claim_within(lease_for)
        lease = LeaseValue(token or uuid4(), now + lease_for, worker=worker)
        claimed, due, expired = repeat(
            self.using, lambda: self._peek(queue, now, limit, lease, floor)
        )
        reach("reserve.peeked")
        if due:
            repeat(self.using, lambda: self._promote(now))
        if expired:
            taken = reclaim_expired(self, now, max_lease_losses)
            if taken and self.on_reclaim is not None:
                self.on_reclaim(taken)
        if claimed is not None and not (due or expired):
            return claimed
        if (due or expired) and steady() > latest:
            return []  # a lease from `now` on would be old, or expired, when it begins
        return repeat(self.using, lambda: self._claim(queue, now, limit, lease, floor))

    def _peek(
        self,
        _queue: str,
        now: datetime,
        _limit: int,
        _lease: LeaseValue,
        _floor: claims.Floor,
    ) -> claims.Peek:
        return None, *claims.peek(self.using, now)

    def _promote(self, now: datetime) -> None:
        claims.promote(self, now)

    def _claim(
        self, queue: str, now: datetime, limit: int, lease: LeaseValue, floor: claims.Floor
    ) -> list[Reservation]:
        runnable = claims.runnable(self.using, queue, now, floor)
        return claims.claim(self, runnable, now, limit, lease)

    # -- leases ----------------------------------------------------------------------------------

    def ready_queues(self) -> list[str]:
        """The names of queues with ready jobs, in order."""
        self._check()
        jobs = Job.objects.using(self.using).ready().order_by("queue")
        return list(jobs.values_list("queue", flat=True).distinct())

    def held(self, token: UUID, *, now: datetime) -> list[Reservation]:
        self._check(now)
        return repeat(self.using, lambda: leases.held(self.using, token, now))

    def expire_leases(self, worker: str, *, now: datetime) -> int:
        self._check(now)
        return repeat(self.using, lambda: leases.expire(self.using, worker, now))

    def extend_leases(
        self, tokens: Iterable[UUID], *, now: datetime, lease_for: timedelta
    ) -> dict[UUID, LeaseValue]:
        self._check(now, lease_for)
        tokens = list(tokens)
        return repeat(self.using, lambda: self._renew(tokens, now, now + lease_for))

    def _renew(
        self, tokens: list[UUID], now: datetime, expires_at: datetime
    ) -> dict[UUID, LeaseValue]:
        return leases.renew(self.using, tokens, now, expires_at)

    def extend_lease(
        self, job_id: UUID, token: UUID, *, now: datetime, lease_for: timedelta
    ) -> LeaseValue:
        self._check(now, lease_for)
        shown = Outcome(job_id=job_id, token=token, kind=OutcomeKind.RELEASE)
        job = repeat(self.using, lambda: settling.fenced(self, shown, now))
        lease = self.extend_leases([token], now=now, lease_for=lease_for).get(token)
        if lease is None:
            raise LeaseExpired
        return LeaseValue(token, lease.expires_at, job.lease_version, lease.worker)

    # -- settle ----------------------------------------------------------------------------------

    def settle(self, outcomes: Sequence[Outcome], *, now: datetime) -> list[Rejection]:
        self._check(now)
        return settling.settle(self, outcomes, now)

    def settle_waiting(
        self, outcome: Outcome, *, now: datetime, also: Callable[[], object] = lambda: None
    ) -> list[Rejection]:
        """
        Settle one outcome inside the caller's transaction; wait, not for long, for the job's row.

        For atomic tasks: whoever holds the row just now must not undo the handler's work. `also`
        is what the task wants done under that lock.
        """
        self._check(now)
        try:
            self._begin()
            rows = Job.objects.using(self.using).filter(pk=outcome.job_id)
            with self.short_waits():
                list(self.waiting_for(rows).values_list("pk"))
            also()
            # In here too: a lock on who waits for the job is no fault of the handler.
            return self.settle([outcome], now=now)
        except StaleLease as error:
            return [Rejection(outcome, error)]
        except OperationalError as error:
            if not is_transient(error):
                raise
            return [Rejection(outcome, JobLocked())]

    def ack_plain(self, outcomes: Sequence[Outcome], now: datetime) -> list[Outcome]:  # noqa: ARG002  for those who have a way
        """Settle plain acks in one statement where there is a way; return those that it did not."""
        return list(outcomes)

    def write(self, changes: dict[UUID, dict[str, Any]]) -> None:
        """Write changed columns of locked jobs, one prepared statement for each set of columns."""
        shapes: dict[tuple[str, ...], list[list[Any]]] = {}
        for job_id, made in changes.items():
            values = [rows.prepare(name, value, self.connection) for name, value in made.items()]
            key = rows.prepare("id", job_id, self.connection)
            shapes.setdefault(tuple(made), []).append([*values, key])
        for names, parameters in shapes.items():
            with self.connection.cursor() as cursor:
                cursor.executemany(self._update(names), parameters)

    def _update(self, names: Sequence[str]) -> str:
        table, quoted = rows.quoted(self.using)
        places = ", ".join(f"{quoted[name]} = %s" for name in names)
        return f"UPDATE {table} SET {places} WHERE {quoted['id']} = %s"  # noqa: S608  names from the model, values as parameters

    # -- chores ----------------------------------------------------------------------------------

    def sweep(self, *, now: datetime, max_lease_losses: int | None = None) -> int:
        self._check(now)
        return sweep_orphans(self, now, max_lease_losses)

    def report_ends(self, ended: Sequence[Stored]) -> None:
        """Tell the app, in this transaction, which jobs that somebody follows have ended."""
        followed = [job.id for job in ended if job.followed]
        if self.on_end is not None and followed:
            self.on_end(followed)


def _alias(using: str | None) -> str:
    return using or router.db_for_write(Job)
