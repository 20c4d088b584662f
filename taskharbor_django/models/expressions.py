"""Expressions that Django has no portable form for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.core.checks import CheckMessage
from django.db.models import BooleanField, CharField, DateTimeField, F, Func, Q, Value

from ..lifecycle import STATE_RULES, JobState


class StateLiteral(Value):
    """
    A state written into the SQL as a literal.

    A planner that sees a parameter (server-side binding, a generic plan) cannot prove that a
    partial index on that state covers the query.
    """

    def __init__(self, state: JobState) -> None:
        super().__init__(JobState(state).value, output_field=CharField())

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return f"'{self.value}'", []


class DatabaseNow(Func):
    """
    The server's wall clock at the start of the statement, in UTC with microseconds.

    Django's `Now` gives milliseconds on SQLite and the session's zone on MariaDB. SQLite has no
    server: the local clock is its clock.
    """

    output_field = DateTimeField()

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        return Value(datetime.now(UTC), output_field=self.output_field).as_sql(compiler, connection)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return "STATEMENT_TIMESTAMP()", []

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return "UTC_TIMESTAMP(6)", []


class HasTag(Func):
    """
    Whether a column with a map of strings has this key with this value, on SQLite.

    Its JSON paths know no quotation mark inside a key, so Django's own lookup misses such a tag.
    """

    output_field = BooleanField()

    def __init__(self, column: str, key: str, value: str) -> None:
        super().__init__(F(column), Value(key), Value(value))

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        parts = [compiler.compile(part) for part in self.get_source_expressions()]
        column, key, value = (sql for sql, _ in parts)
        found = f"SELECT 1 FROM json_each({column}) AS tag"  # noqa: S608  placeholders and a column
        parameters = [it for _, given in parts for it in given]
        return f"EXISTS ({found} WHERE tag.key = {key} AND tag.value = {value})", parameters


class AnyOf(Func):
    """
    Whether a column is one of these ids, which are one parameter, on PostgreSQL.

    Apart from the statement no more than 65,535 parameters can be sent.
    """

    arg_joiner = " = ANY("
    template = "%(expressions)s)"
    output_field = BooleanField()

    def __init__(self, column: str, ids: Iterable[Any]) -> None:
        super().__init__(F(column), Value(list(ids)))


def without_partial_index_warnings(messages: Iterable[CheckMessage]) -> list[CheckMessage]:
    """Drop what Django says of MariaDB's missing conditions: the migration has made up for them."""
    return [message for message in messages if message.id not in {"models.W036", "models.W037"}]


def state_condition(state: JobState) -> Q:
    """Turn one entry of STATE_RULES into the condition of a check constraint."""
    rule = STATE_RULES[state]
    holds = Q()
    for column in rule.empty:
        holds &= Q(**{f"{column}__isnull": True})
    for column in rule.filled:
        holds &= Q(**{f"{column}__isnull": False})
    for column in rule.zero:
        holds &= Q(**{column: 0})
    for column in rule.positive:
        holds &= Q(**{f"{column}__gt": 0})
    return ~Q(state=state.value) | holds
