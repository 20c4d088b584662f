"""What a migration says to one kind of database only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

# Without partial indexes Django makes them over all rows: those that answer a question about one
# state must then begin with the state. (name, columns, columns that Django made it of)
_MYSQL_INDEXES = (
    ("ready", "state, queue, priority, available_at, seq", "queue, priority, available_at, seq"),
    ("scheduled", "state, available_at", "available_at"),
    ("blocked", "state, created_at", "created_at"),
)
# A conditional unique constraint it leaves out; NULLs are distinct, so a plain one does the same.
_MYSQL_UNIQUE = ("slot", "schedule_id, schedule_slot")

# Rows of these tables change several times and soon: room for it in each page, and a vacuum that
# does not wait for a fifth of the table. Fillfactor 70: 14,100 jobs/s against 12,200 at 100.
_POSTGRESQL_SETTINGS = {
    "taskharbor_job": {
        "fillfactor": "70",
        "autovacuum_vacuum_scale_factor": "0.02",
        "autovacuum_vacuum_threshold": "5000",
        "autovacuum_vacuum_insert_scale_factor": "0.1",
        "autovacuum_analyze_scale_factor": "0.05",
        "autovacuum_vacuum_cost_delay": "1",
    },
    "taskharbor_lease": {
        "fillfactor": "50",
        "autovacuum_vacuum_scale_factor": "0",
        "autovacuum_vacuum_threshold": "1000",
        "autovacuum_vacuum_cost_delay": "0",
    },
}


class VendorOperation(Operation):
    """Statements for one vendor; nothing on the others, and nothing in the models' state."""

    vendor = ""
    reversible = True
    reduces_to_sql = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        pass

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._run(app_label, schema_editor, self.forwards)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._run(app_label, schema_editor, self.backwards)

    def _run(self, app_label: str, schema_editor: Any, statements: Any) -> None:
        connection = schema_editor.connection
        if connection.vendor == self.vendor and router.allow_migrate(connection.alias, app_label):
            for statement in statements(connection):
                schema_editor.execute(statement)

    def forwards(self, connection: Any) -> Sequence[str]:
        return ()

    def backwards(self, connection: Any) -> Sequence[str]:
        return ()


class PostgreSQLTableSettings(VendorOperation):
    vendor = "postgresql"

    def describe(self) -> str:
        return "Set fillfactor and autovacuum of the busy tables on PostgreSQL"

    def forwards(self, connection: Any) -> Sequence[str]:
        return [
            f"ALTER TABLE {table} SET ({', '.join(f'{k} = {v}' for k, v in settings.items())})"
            for table, settings in _POSTGRESQL_SETTINGS.items()
        ]

    def backwards(self, connection: Any) -> Sequence[str]:
        return [
            f"ALTER TABLE {table} RESET ({', '.join(settings)})"
            for table, settings in _POSTGRESQL_SETTINGS.items()
        ]


class MySQLExactNames(VendorOperation):
    """
    Compare names and keys byte by byte.

    The usual collation there takes "A" for "a" and ignores trailing spaces, so that one caller's
    idempotency key could swallow another's job.
    """

    vendor = "mysql"
    tables = (
        *("job", "lease", "attempt", "deadletter", "idempotencykey", "schedule", "queue"),
        *("queueminute", "worker", "chore"),
    )

    def describe(self) -> str:
        return "Compare names and keys exactly on MariaDB and MySQL"

    def forwards(self, connection: Any) -> Sequence[str]:
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        return [
            f"ALTER TABLE taskharbor_{table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}"
            for table in self.tables
        ]


class MySQLIndexes(VendorOperation):
    vendor = "mysql"

    def describe(self) -> str:
        return "Fit the indexes to MariaDB and MySQL, which have no partial ones"

    def forwards(self, connection: Any) -> Sequence[str]:
        name, columns = _MYSQL_UNIQUE
        return [
            *(_replaced(name, columns) for name, columns, _made in _MYSQL_INDEXES),
            f"CREATE UNIQUE INDEX taskharbor_job_{name} ON taskharbor_job ({columns})",
        ]

    def backwards(self, connection: Any) -> Sequence[str]:
        return [
            *(_replaced(name, made) for name, _columns, made in _MYSQL_INDEXES),
            f"DROP INDEX taskharbor_job_{_MYSQL_UNIQUE[0]} ON taskharbor_job",
        ]


def _replaced(name: str, columns: str) -> str:
    index = f"taskharbor_job_{name}"
    return f"ALTER TABLE taskharbor_job DROP INDEX {index}, ADD INDEX {index} ({columns})"
