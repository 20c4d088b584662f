"""Between rows and values: column names, from the models' own meta, and what fills them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Field

from ..models import Job
from ..values import JobRecord, Lease, Reservation

# What a run needs, in the order a claim returns it; the last two belong to the lease.
RUN_FIELDS = (
    "id",
    "task",
    "queue",
    "payload",
    "priority",
    "available_at",
    "timeout",
    "attempts",
    "max_attempts",
    "executions",
    "lease_losses",
    "handler_misses",
    "checkpoint",
    "correlation_id",
    "idempotency_key",
    "expires_at",
    "workflow",
    "input",
    "trace",
    "lease",
    "lease_version",
)
_RECORD_FIELDS = RUN_FIELDS[:-2]
_LEASE = RUN_FIELDS.index("lease")
_TIMES = ("available_at", "expires_at")


def field(name: str) -> Field[Any, Any]:
    return Job._meta.get_field(name)  # type: ignore[return-value]


@cache
def quoted(using: str) -> tuple[str, dict[str, str]]:
    """The quoted table, and quoted column by field name."""
    quote = connections[using].ops.quote_name
    names = {f.name: quote(str(f.column)) for f in Job._meta.concrete_fields}
    return quote(Job._meta.db_table), names


def prepare(name: str, value: Any, connection: Any) -> Any:
    """Turn a value into what this database's cursor takes for that column."""
    if value is None:
        return None
    if connection.vendor == "postgresql" and not isinstance(value, dict):
        return value  # psycopg adapts everything but maps by itself
    return field(name).get_db_prep_save(value, connection)


def reservations(
    rows: Iterable[Sequence[Any]],
    expiries: dict[UUID, datetime] | datetime,
    worker: str,
    call: UUID | None = None,
) -> list[Reservation]:
    """Make reservations from rows that begin with RUN_FIELDS; without a token it is the call's."""
    made = []
    leases: dict[tuple[int, int], Lease] = {}
    for row in rows:
        token: Any = row[_LEASE] or call
        version = row[_LEASE + 1]
        lease = leases.get((token.int, version))  # a UUID is hashed in Python
        if lease is None:
            expires_at = expiries if isinstance(expiries, datetime) else expiries[token]
            lease = leases[token.int, version] = Lease(token, expires_at, version, worker)
        made.append(Reservation(_record(row), lease))
    return made


def _record(row: Sequence[Any]) -> JobRecord:
    record, fields = object.__new__(JobRecord), dict(zip(_RECORD_FIELDS, row, strict=False))
    object.__setattr__(record, "__dict__", fields)
    for name in _TIMES:
        if isinstance(fields[name], str):
            fields[name] = datetime.fromisoformat(fields[name])
    if isinstance(fields["trace"], str):
        fields["trace"] = json.loads(fields["trace"])
    return record
