"""Rows written past every verb, by plain SQL, as a careless hand would."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from django.db import connection

from taskharbor_django.lifecycle import STATE_RULES, JobState
from taskharbor_django.models import Job

NOW = datetime(2031, 5, 17, 9, 30, 0, 123_457, tzinfo=UTC)
LEASE = timedelta(seconds=30)


def filled(column):
    """Some value for a column that must not be empty."""
    return uuid4() if column == "lease" else NOW


def job_in(state, /, **columns):
    """The columns of a job that keeps the rules of its state, but for those that are given."""
    rule = STATE_RULES[JobState(state)]
    row = {"id": uuid4(), "task": "t", "queue": "default", "payload": b"", "seq": 1}
    row |= {"state": str(state), "priority": 0}
    row |= dict.fromkeys(("created_at", "updated_at", "available_at"), NOW)
    row |= {column: filled(column) for column in rule.filled}
    row |= dict.fromkeys(rule.positive, 1)
    return row | columns


def insert(model, **columns):
    into = ", ".join(quoted(model, columns))
    places = ", ".join(["%s"] * len(columns))
    run(f"INSERT INTO {model._meta.db_table} ({into}) VALUES ({places})", model, columns)
    return columns


def quoted(model, names):
    return [connection.ops.quote_name(model._meta.get_field(name).column) for name in names]


def update_job(pk, **columns):
    places = ", ".join(f"{name} = %s" for name in quoted(Job, columns))
    sql = f"UPDATE {Job._meta.db_table} SET {places} WHERE id = %s"
    return run(sql, Job, columns | {"id": pk})


def run(sql, model, columns):
    values = [
        model._meta.get_field(name).get_db_prep_save(value, connection)
        for name, value in columns.items()
    ]
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.rowcount
