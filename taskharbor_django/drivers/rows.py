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
    "run_at",
    "created_at",
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
    "trace",
    "lease",
    "lease_version",
)
_RECORD_FIELDS = RUN_FIELDS[:-2]
_TRACE, _LEASE = RUN_FIELDS.index("trace"), RUN_FIELDS.index("lease")


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
    rows: Iterable[Sequence[Any]], expiries: dict[UUID, datetime] | datetime, worker: str
) -> list[Reservation]:
    """Make reservations from rows that begin with RUN_FIELDS."""
    made = []
    for row in rows:
        token, version = row[_LEASE : _LEASE + 2]
        expires_at = expiries if isinstance(expiries, datetime) else expiries[token]
        lease = Lease(token, expires_at, version, worker)
        made.append(Reservation(_record(row), lease))
    return made


def _record(row: Sequence[Any]) -> JobRecord:
    record = object.__new__(JobRecord)
    fields = record.__dict__
    fields.update(zip(_RECORD_FIELDS, row, strict=False))
    if isinstance(row[_TRACE], str):
        fields["trace"] = json.loads(row[_TRACE])
    return record
