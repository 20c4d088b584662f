"""The one migration: forth, back and forth again, and what it says to each kind of database."""

import io

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from taskharbor_django.migrations import _vendor
from taskharbor_django.models import Job

from .drivers import acks, hold
from .raw import NOW
from .sessions import execute

pytestmark = pytest.mark.django_db

JOB = Job._meta.db_table


def tables():
    names = connection.introspection.table_names()
    return sorted(name for name in names if name.startswith("taskharbor_"))


def constraints(table):
    with connection.cursor() as cursor:
        return connection.introspection.get_constraints(cursor, table)


def schema():
    """Every table with its columns, indexes and constraints, as the database tells it."""
    found = {}
    for table in tables():
        with connection.cursor() as cursor:
            columns = connection.introspection.get_table_description(cursor, table)
        found[table] = [tuple(column) for column in columns], constraints(table)
    return found


def migrate(*target):
    call_command("migrate", "taskharbor", *target, verbosity=0)


class TestForthAndBack:
    @pytest.mark.django_db(transaction=True)
    def test_back_and_forth_leaves_the_same_schema(self, driver):
        before = schema()
        assert JOB in before
        hold(driver, 3)
        try:
            migrate("zero")
            assert tables() == []
        finally:
            migrate()
        assert schema() == before
        assert driver.settle(acks(hold(driver, 2)), now=NOW) == []

    def test_the_models_say_what_the_migration_says(self):
        out = io.StringIO()
        call_command("makemigrations", "taskharbor", check=True, dry_run=True, stdout=out)
        assert "No changes detected" in out.getvalue()

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("backwards", [False, True])
    def test_its_sql_can_be_read(self, backwards):
        out = io.StringIO()
        call_command("sqlmigrate", "taskharbor", "0001", backwards=backwards, stdout=out)
        sql = out.getvalue()
        assert ("DROP TABLE" if backwards else "CREATE TABLE") in sql
        settings = "RESET (fillfactor" if backwards else "SET (fillfactor = 70"
        assert (settings in sql) is (connection.vendor == "postgresql")
        slot = f"DROP INDEX taskharbor_job_slot ON {JOB}" if backwards else "CREATE UNIQUE INDEX"
        if connection.vendor == "mysql":
            assert slot in sql

    def test_each_vendor_gets_only_its_own(self):
        said = []

        class Editor(BaseDatabaseSchemaEditor):
            def execute(self, sql, params=()):
                said.append(sql)

        operations = {
            "postgresql": [_vendor.PostgreSQLTableSettings()],
            "mysql": [_vendor.MySQLExactNames(), _vendor.MySQLIndexes()],
        }
        for vendor, own in operations.items():
            for operation in own:
                said.clear()
                operation.database_forwards("taskharbor", Editor(connection), None, None)
                assert bool(said) is (connection.vendor == vendor)
                assert operation.describe()

    def test_a_database_that_the_router_keeps_free_stays_free(self, settings):
        settings.DATABASE_ROUTERS = ["tests.storage.test_migration.Nowhere"]
        said = []

        class Editor(BaseDatabaseSchemaEditor):
            def execute(self, sql, params=()):
                said.append(sql)

        for kind in (
            _vendor.PostgreSQLTableSettings,
            _vendor.MySQLExactNames,
            _vendor.MySQLIndexes,
        ):
            kind().database_forwards("taskharbor", Editor(connection), None, None)
            kind().database_backwards("taskharbor", Editor(connection), None, None)
        assert said == []


class Nowhere:
    def allow_migrate(self, db, app_label, **hints):
        return False


class TestLinks:
    def test_nothing_guards_the_links_of_a_job(self):
        for table in tables():
            foreign = [each["foreign_key"] for each in constraints(table).values()]
            assert not [key for key in foreign if key], table

    @pytest.mark.postgresql
    def test_no_trigger_fires_for_a_job(self):
        fired = "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass"
        assert execute(fired, [JOB]) == []
        pointing = (
            "SELECT conname FROM pg_constraint WHERE contype = 'f' AND confrelid = %s::regclass"
        )
        assert execute(pointing, [JOB]) == []


# The budget of indexes: a new one needs a measurement, and a line here.
ON_POSTGRESQL = {
    "taskharbor_job_pkey": "UNIQUE (id)",
    "taskharbor_job_ready": "(queue, priority, available_at, seq) WHERE state = 'ready'",
    "taskharbor_job_scheduled": "(available_at) WHERE state = 'scheduled'",
    "taskharbor_job_inflight": "(lease) WHERE state = 'inflight'",
    "taskharbor_job_blocked": "(created_at) WHERE state = 'blocked'",
    "taskharbor_job_ended": "(state, finished_at)"
    " WHERE state = ANY ((ARRAY['cancelled', 'dead', 'done']))",
    "taskharbor_job_workflow": "(workflow_id) WHERE workflow_id IS NOT NULL",
    "taskharbor_job_parent": "(parent_id) WHERE parent_id IS NOT NULL",
    "taskharbor_job_correlation_id": "(correlation_id) WHERE correlation_id IS NOT NULL",
    "taskharbor_job_replay_of": "(replay_of_id) WHERE replay_of_id IS NOT NULL",
    "taskharbor_job_slot": "UNIQUE (schedule_id, schedule_slot) WHERE schedule_id IS NOT NULL",
}

ON_MARIADB = {
    "PRIMARY": (True, ["id"]),
    "taskharbor_job_ready": (False, ["state", "queue", "priority", "available_at", "seq"]),
    "taskharbor_job_scheduled": (False, ["state", "available_at"]),
    "taskharbor_job_inflight": (False, ["lease"]),
    "taskharbor_job_blocked": (False, ["state", "created_at"]),
    "taskharbor_job_ended": (False, ["state", "finished_at"]),
    "taskharbor_job_workflow": (False, ["workflow_id"]),
    "taskharbor_job_parent": (False, ["parent_id"]),
    "taskharbor_job_correlation_id": (False, ["correlation_id"]),
    "taskharbor_job_replay_of": (False, ["replay_of_id"]),
    "taskharbor_job_slot": (True, ["schedule_id", "schedule_slot"]),
}


def plain(definition):
    """An index as PostgreSQL tells it, without casts and doubled parentheses."""
    unique = "UNIQUE " if definition.startswith("CREATE UNIQUE") else ""
    definition = definition.partition(" USING btree ")[2]
    for noise in ("::text[]", "::text", "::character varying[]", "::character varying"):
        definition = definition.replace(noise, "")
    columns, where, condition = definition.partition(" WHERE ")
    condition = condition.replace("(state)", "state")
    while condition.startswith("(") and condition.endswith(")"):
        condition = condition[1:-1]
    return unique + columns + where + condition


class TestIndexes:
    @pytest.mark.postgresql
    def test_the_job_table_has_these_indexes_and_no_others(self):
        found = execute("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s", [JOB])
        assert {name: plain(definition) for name, definition in found} == ON_POSTGRESQL

    @pytest.mark.mariadb
    def test_the_job_table_has_indexes_that_begin_with_the_state(self):
        found = {}
        for row in execute(f"SHOW INDEX FROM {JOB}"):
            _, is_not_unique, name, _, column = row[:5]
            found.setdefault(name, (not is_not_unique, []))[1].append(column)
        assert found == ON_MARIADB

    @pytest.mark.sqlite
    def test_the_job_table_has_partial_indexes_on_sqlite_too(self):
        found = execute(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = %s", [JOB]
        )
        assert {name for (name,) in found} == {
            *(ON_POSTGRESQL.keys() - {"taskharbor_job_pkey"}),
            "sqlite_autoindex_taskharbor_job_1",
        }

    def test_leases_are_found_by_token_and_by_expiry(self):
        found = constraints("taskharbor_lease").values()
        assert sorted(
            each["columns"] for each in found if each["index"] or each["primary_key"]
        ) == [
            ["expires_at"],
            ["token"],
        ]


class TestTables:
    @pytest.mark.postgresql
    def test_busy_tables_have_room_and_are_vacuumed_soon(self):
        found = dict(
            execute("SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL")
        )
        assert sorted(found["taskharbor_job"]) == [
            "autovacuum_analyze_scale_factor=0.05",
            "autovacuum_vacuum_cost_delay=1",
            "autovacuum_vacuum_insert_scale_factor=0.1",
            "autovacuum_vacuum_scale_factor=0.02",
            "autovacuum_vacuum_threshold=5000",
            "fillfactor=70",
        ]
        assert sorted(found["taskharbor_lease"]) == [
            "autovacuum_vacuum_cost_delay=0",
            "autovacuum_vacuum_scale_factor=0",
            "autovacuum_vacuum_threshold=1000",
            "fillfactor=50",
        ]

    @pytest.mark.mariadb
    def test_names_and_keys_are_compared_byte_by_byte(self):
        asked = [f"taskharbor_{name}" for name in _vendor.MySQLExactNames.tables]
        found = execute(
            "SELECT table_name, column_name, collation_name FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND collation_name IS NOT NULL"
            " AND table_name IN %s AND column_type NOT LIKE 'longtext'",
            [tuple(asked)],
        )
        assert {table for table, _, _ in found} == set(asked)
        assert {collation for _, _, collation in found} == {"utf8mb4_nopad_bin"}


COLUMNS = """
SELECT attname, attlen > 0 AND attnotnull FROM pg_attribute
WHERE attrelid = 'taskharbor_job'::regclass AND attnum > 0 ORDER BY attnum
"""
LOOKED_AT = """
SELECT DISTINCT attname FROM pg_attribute JOIN (
    SELECT conrelid AS relid, unnest(conkey) AS attnum FROM pg_constraint WHERE contype = 'c'
    UNION SELECT indrelid, unnest(indkey::int2[]) FROM pg_index
) AS used ON attrelid = relid AND pg_attribute.attnum = used.attnum
WHERE attrelid = 'taskharbor_job'::regclass
"""


@pytest.mark.postgresql
class TestOrderOfColumns:
    """Each write looks at what indexes and constraints use: 8 % of the server's CPU in a drain."""

    def test_those_of_a_fixed_width_that_are_always_there_come_first(self):
        fixed = [is_fixed for _, is_fixed in execute(COLUMNS)]
        assert any(fixed)
        assert fixed == sorted(fixed, reverse=True)

    def test_what_each_write_looks_at_lies_before_the_payload(self):
        columns = [name for name, _ in execute(COLUMNS)]
        behind = columns[columns.index("payload") :]
        assert {name for (name,) in execute(LOOKED_AT)}.isdisjoint(behind)
