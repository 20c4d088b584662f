"""Each system check says its sentence when something is wrong, and nothing otherwise."""

import copy
import importlib.util
from pathlib import Path
from string import Formatter
from types import SimpleNamespace

import pytest
from django.core.checks import ERROR, WARNING, Tags, run_checks
from django.core.checks.registry import registry
from django.core.management import BaseCommand
from django.db import connections as real_connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler

from taskharbor_django import checks, conf
from taskharbor_django.checks import (
    check_commands,
    check_databases,
    check_routers,
    check_servers,
    check_settings,
    check_time_zones,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "checks.md"
ALL = (
    *(check_settings, check_time_zones, check_databases),
    *(check_routers, check_commands, check_servers),
)
PACKET = "SELECT @@max_allowed_packet"


def found(check, **arguments):
    """Run one check as Django does and return the ids without their prefix."""
    messages = list(check(app_configs=None, **{"databases": None} | arguments))
    return [message.id.removeprefix("taskharbor.") for message in messages]


def only(check, **arguments):
    """Return the one message of a check."""
    (message,) = check(app_configs=None, **{"databases": None} | arguments)
    return message


class Connection(SimpleNamespace):
    """What the checks look at, for databases that the tests do not have."""

    def __init__(
        self,
        vendor,
        *,
        answer="",
        packet=2**24,
        skip_locked=True,
        zone=None,
        version=(3, 45, 1),
        **options,
    ):
        super().__init__(
            alias="default",
            vendor=vendor,
            settings_dict={"OPTIONS": options, "TIME_ZONE": zone},
            features=SimpleNamespace(
                supports_timezones=vendor == "postgresql",
                has_select_for_update_skip_locked=skip_locked,
            ),
            Database=SimpleNamespace(sqlite_version_info=version),
            asked=[],
            answer=answer,
            packet=packet,
        )

    def is_in_memory_db(self):
        return False

    def cursor(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def execute(self, question):
        self.asked.append(question)

    def fetchone(self):
        return ("a name", self.packet if self.asked[-1] == PACKET else self.answer)


@pytest.fixture
def use(monkeypatch):
    """Let DATABASES be what is given: connections by alias, or one that is the default."""

    def replace(given):
        handler = given if hasattr(given, "__getitem__") else {"default": given}
        monkeypatch.setattr(checks, "connections", handler)
        monkeypatch.setattr(conf, "connections", handler)
        conf.get_settings.cache_clear()
        return given

    yield replace
    conf.get_settings.cache_clear()


@pytest.fixture
def connect(use):
    """Let the default database be a real one with these settings."""
    handlers = []

    def replace(**config):
        handlers.append(ConnectionHandler({"default": config}))
        return use(handlers[-1])["default"]

    yield replace
    for handler in handlers:
        # Past the override that keeps an SQLite database in memory open.
        BaseDatabaseWrapper.close(handler["default"])


@pytest.fixture
def sqlite(connect, tmp_path):
    def replace(name=None, **options):
        return connect(
            ENGINE="django.db.backends.sqlite3", NAME=name or tmp_path / "jobs", OPTIONS=options
        )

    return replace


class Router:
    """Send TaskHarbor's models, or those named, to an alias."""

    def __init__(self, *, write=None, read=None, migrate=None, only=()):
        self.write, self.read, self.migrate, self.only = write, read, migrate, only

    def db_for_write(self, model, **hints):
        return self.write if not self.only or model.__name__ in self.only else None

    def db_for_read(self, model, **hints):
        return self.read

    def allow_migrate(self, db, app_label, **hints):
        return self.migrate


# -- all of them ---------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_settings_of_the_tests_are_well():
    assert run_checks(tags=["taskharbor"], databases=["default"]) == []


def test_every_check_is_registered():
    registered = registry.get_checks()
    for check in ALL:
        assert check in registered
        assert "taskharbor" in check.tags
    assert Tags.database in check_servers.tags


def test_registering_twice_runs_nothing_twice():
    before = len(registry.get_checks())
    checks.register()
    assert len(registry.get_checks()) == before


def test_wrong_settings_silence_what_depends_on_them(settings):
    settings.TASKHARBOR = {"LEESE": 5}
    assert [code for check in ALL for code in found(check, databases=["default"])] == ["E001"]


@pytest.mark.parametrize("code", checks.CATALOGUE)
def test_the_first_letter_of_an_id_is_its_level(code):
    text = checks.CATALOGUE[code]
    blanks = [blank for _, blank, _, _ in Formatter().parse(text.message + text.hint) if blank]
    message = checks._issue(code, **dict.fromkeys(blanks, "x"))
    assert message.level == {"E": ERROR, "W": WARNING}[code[0]]
    assert message.id == f"taskharbor.{code}"
    assert message.msg
    assert message.hint


def test_the_table_on_the_page_is_made_from_the_code():
    spec = importlib.util.spec_from_file_location("docs_generate", PAGE.parents[1] / "_generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert "<!-- generated: checks -->" in PAGE.read_text("utf-8")
    assert generate.stale([PAGE]) == [], "run: python docs/_generate.py"


# -- settings ------------------------------------------------------------------------------------


def test_each_problem_of_the_settings_is_an_error_with_its_hint(settings):
    settings.TASKHARBOR = {"LEESE": 5, "HEARTBEAT": 20}
    unknown, short = check_settings()
    assert (unknown.id, unknown.hint) == ("taskharbor.E001", "Did you mean LEASE?")
    assert "shorter than two heartbeats" in short.msg
    assert short.level == ERROR


def test_braces_in_a_wrong_value_are_shown_as_they_are(settings):
    settings.TASKHARBOR = {"QUEUE": "{problem}{0}"}
    assert "'{problem}{0}'" in only(check_settings).msg


@pytest.mark.parametrize("given", [{}, {"LEASE": 60}])
def test_right_settings_are_passed_over(settings, given):
    settings.TASKHARBOR = given
    assert found(check_settings) == []


def test_time_zones_must_be_in_use(settings):
    settings.USE_TZ = True
    assert found(check_time_zones) == []
    settings.USE_TZ = False
    assert found(check_time_zones) == ["E002"]


# -- what DATABASES says -------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", ["sqlite", "mysql"])
def test_times_must_not_be_kept_in_a_local_zone(use, vendor):
    options = {"transaction_mode": "IMMEDIATE"}
    use(Connection(vendor, zone="Europe/Berlin", **options))
    assert found(check_databases) == ["E003"]
    for zone in ("UTC", None):
        use(Connection(vendor, zone=zone, **options))
        assert found(check_databases) == []


def test_the_zone_does_not_matter_where_columns_have_one(use):
    use(Connection("postgresql", zone="Europe/Berlin"))
    assert found(check_databases) == []


def test_sqlite_must_be_new_enough(use):
    use(Connection("sqlite", version=(3, 34, 1), transaction_mode="IMMEDIATE"))
    assert found(check_databases) == ["E004"]
    assert "3.34.1" in only(check_databases).msg
    use(Connection("sqlite", version=(3, 35, 0), transaction_mode="IMMEDIATE"))
    assert found(check_databases) == []


@pytest.mark.parametrize("mode", ["IMMEDIATE", "immediate"])
def test_sqlite_with_immediate_transactions_is_passed_over(sqlite, mode):
    sqlite(transaction_mode=mode)
    assert found(check_databases) == []


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "DEFERRED"),
        ({"transaction_mode": None}, "DEFERRED"),
        ({"transaction_mode": "EXCLUSIVE"}, "EXCLUSIVE"),
    ],
)
def test_sqlite_with_other_transactions_is_warned_about(sqlite, options, mode):
    sqlite(**options)
    warning = only(check_databases)
    assert warning.id == "taskharbor.W001"
    assert f"begins transactions {mode}" in warning.msg
    assert "database is locked" in warning.hint


@pytest.mark.django_db
@pytest.mark.parametrize("name", [":memory:", "file:jobs?mode=memory&cache=shared"])
def test_sqlite_in_memory_is_not_asked_about_locks(sqlite, name):
    sqlite(name)
    assert found(check_databases) == []
    assert found(check_servers, databases=["default"]) == []


def test_another_isolation_level_in_the_options_of_postgresql_is_an_error(use):
    levels = pytest.importorskip("psycopg").IsolationLevel
    use(Connection("postgresql", isolation_level=levels.SERIALIZABLE))
    assert "SERIALIZABLE" in only(check_databases).msg
    use(Connection("postgresql", isolation_level=levels.REPEATABLE_READ.value))
    assert found(check_databases) == ["E005"]


def test_read_committed_or_nothing_in_the_options_of_postgresql_is_passed_over(use):
    levels = pytest.importorskip("psycopg").IsolationLevel
    for options in ({}, {"isolation_level": None}, {"isolation_level": levels.READ_COMMITTED}):
        use(Connection("postgresql", **options))
        assert found(check_databases) == []


def test_a_level_that_postgresql_does_not_have_is_left_to_django(use):
    pytest.importorskip("psycopg")
    use(Connection("postgresql", isolation_level=99))
    assert found(check_databases) == []


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({}, []),
        ({"isolation_level": "read committed"}, []),
        ({"isolation_level": "READ COMMITTED"}, []),
        ({"isolation_level": None}, []),
        ({"isolation_level": "repeatable read"}, ["E005"]),
        ({"isolation_level": "serializable"}, ["E005"]),
    ],
)
def test_the_isolation_level_in_the_options_of_mysql_must_be_read_committed(use, options, codes):
    use(Connection("mysql", **options))
    assert found(check_databases) == codes


def test_a_database_of_another_kind_is_left_alone(use):
    use(Connection("oracle"))
    assert found(check_databases) == found(check_servers, databases=["default"]) == []


def test_a_database_without_its_driver_is_left_to_django(use):
    use(ConnectionHandler({"default": {"ENGINE": "no.such.engine"}}))
    assert found(check_databases) == []


def test_only_databases_that_hold_jobs_are_looked_at(use, settings):
    good, bad = (Connection("mysql"), Connection("mysql", isolation_level="serializable"))
    use({"default": good, "archive": bad})
    assert found(check_databases) == []
    settings.TASKHARBOR = {"QUEUE_DATABASES": {"telemetry": "archive"}}
    assert found(check_databases) == ["E005"]
    settings.TASKHARBOR = {"DATABASE": "archive"}
    assert found(check_databases) == ["E005"]


# -- what the servers say ------------------------------------------------------------------------


@pytest.mark.parametrize("databases", [None, [], ["other"]])
def test_no_server_is_asked_unless_django_names_its_database(use, databases):
    connection = use(Connection("mysql", skip_locked=False, isolation_level=None))
    assert found(check_servers, databases=databases) == []
    assert connection.asked == []


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_a_server_that_cannot_skip_locked_rows_is_an_error(use, vendor):
    use(Connection(vendor, skip_locked=False, answer="read committed"))
    assert found(check_servers, databases=["default"]) == ["E006"]
    use(Connection(vendor, answer="read committed"))
    assert found(check_servers, databases=["default"]) == []


@pytest.mark.parametrize(
    ("vendor", "options"), [("postgresql", {}), ("mysql", {"isolation_level": None})]
)
def test_the_default_level_of_a_server_must_be_read_committed(use, vendor, options):
    use(Connection(vendor, answer="REPEATABLE-READ", **options))
    assert found(check_servers, databases=["default"]) == ["E005"]
    use(Connection(vendor, answer="READ-COMMITTED", **options))
    assert found(check_servers, databases=["default"]) == []


def test_postgresql_is_asked_even_when_the_options_name_a_level(use):
    level = pytest.importorskip("psycopg").IsolationLevel.READ_COMMITTED
    use(Connection("postgresql", answer="serializable", isolation_level=level))
    assert found(check_servers, databases=["default"]) == ["E005"]


def test_mysql_is_not_asked_for_a_level_that_django_sets(use):
    connection = use(Connection("mysql", answer="REPEATABLE-READ"))
    assert found(check_servers, databases=["default"]) == []
    assert connection.asked == [PACKET]


@pytest.mark.parametrize("name", ["PAYLOAD_MAX_BYTES", "RESULT_MAX_BYTES"])
def test_a_packet_of_mysql_must_have_room_for_what_may_be_stored(use, settings, name):
    settings.TASKHARBOR = {name: 2**23}
    use(Connection("mysql", packet=2**24))
    warning = only(check_servers, databases=["default"])
    assert warning.id == "taskharbor.W007"
    assert "16,777,216" in warning.msg
    use(Connection("mysql", packet=2**24 + 1))
    assert found(check_servers, databases=["default"]) == []


@pytest.mark.django_db
def test_sqlite_in_wal_mode_is_passed_over(sqlite):
    sqlite(init_command="PRAGMA journal_mode=WAL;")
    assert found(check_servers, databases=["default"]) == []


@pytest.mark.django_db
@pytest.mark.parametrize("command", ["", "PRAGMA journal_mode=MEMORY;"])
def test_sqlite_in_another_journal_mode_is_warned_about(sqlite, command):
    sqlite(init_command=command)
    assert found(check_servers, databases=["default"]) == ["W002"]


@pytest.mark.django_db
@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({}, []),
        ({"options": "-c default_transaction_isolation=serializable"}, ["E005"]),
        ({"options": "-c default_transaction_isolation=repeatable\\ read"}, ["E005"]),
    ],
)
def test_postgresql_itself_is_asked_for_its_level(connect, options, codes):
    connect(**changed(OPTIONS=options))
    assert found(check_servers, databases=["default"]) == codes


@pytest.mark.django_db
@pytest.mark.postgresql
def test_the_level_in_the_options_of_postgresql_does_not_hold_for_a_statement_alone(connect):
    options = {"options": "-c default_transaction_isolation=serializable"}
    level = pytest.importorskip("psycopg").IsolationLevel.READ_COMMITTED
    connection = connect(**changed(OPTIONS=options | {"isolation_level": level}))
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("serializable",)
    assert found(check_servers, databases=["default"]) == ["E005"]


@pytest.mark.django_db
@pytest.mark.mariadb
def test_mariadb_itself_is_asked_for_its_level(connect):
    connect(**changed(OPTIONS={"isolation_level": None}))
    assert found(check_servers, databases=["default"]) == ["E005"]
    connect(**changed(OPTIONS={"isolation_level": "read committed"}))
    assert found(check_servers, databases=["default"]) == []


def changed(**facts):
    """Return the settings of the database of the tests with some facts replaced."""
    return copy.deepcopy(real_connections["default"].settings_dict) | facts


@pytest.mark.django_db
def test_a_database_that_is_down_gives_a_warning_and_no_exception(connect):
    pytest.importorskip("psycopg")
    connect(ENGINE="django.db.backends.postgresql", HOST="127.0.0.1", PORT="1", NAME="jobs")
    assert found(check_databases) == []
    warning = only(check_servers, databases=["default"])
    assert warning.id == "taskharbor.W006"
    assert "OperationalError" in warning.msg


@pytest.mark.django_db
def test_a_database_that_cannot_be_opened_gives_a_warning_and_no_exception(sqlite, tmp_path):
    sqlite(tmp_path / "no such directory" / "jobs")
    assert found(check_servers, databases=["default"]) == ["W006"]


@pytest.mark.django_db
def test_options_that_django_refuses_give_a_warning_and_no_exception(sqlite):
    sqlite(transaction_mode="SOMETIMES")
    assert found(check_servers, databases=["default"]) == ["W006"]


# -- routers -------------------------------------------------------------------------------------


@pytest.fixture
def route(use, settings):
    """Let there be three databases, and these routers."""
    good = {"transaction_mode": "IMMEDIATE"}
    use({alias: Connection("sqlite", **good) for alias in ("default", "queue", "replica")})

    def replace(*routers, **entries):
        settings.DATABASE_ROUTERS = list(routers)
        settings.TASKHARBOR = entries

    return replace


@pytest.mark.parametrize("entries", [{}, {"DATABASE": "queue"}, {"DATABASE": "default"}])
def test_without_routers_nothing_disagrees(route, entries):
    route(**entries)
    assert found(check_routers) == []


def test_a_router_that_agrees_with_the_settings_is_passed_over(route):
    route(Router(write="queue", read="queue"), DATABASE="queue")
    assert found(check_routers) == []


def test_a_router_that_writes_elsewhere_is_an_error(route):
    route(Router(write="default"), DATABASE="queue")
    error = only(check_routers)
    assert error.id == "taskharbor.E007"
    assert "Job" in error.msg
    assert "'default'" in error.msg
    assert "'queue'" in error.msg


def test_a_router_that_tears_the_models_apart_is_an_error(route):
    route(Router(write="queue", only=("Lease", "Attempt")))
    error = only(check_routers)
    assert error.id == "taskharbor.E007"
    assert "Attempt, Lease" in error.msg
    assert "Job" not in error.msg


def test_a_router_that_reads_elsewhere_is_warned_about_when_the_settings_name_a_database(route):
    route(Router(write="default", read="replica"), DATABASE="default")
    assert found(check_routers) == ["W003"]


def test_a_router_that_reads_from_a_replica_is_passed_over_otherwise(route):
    route(Router(write="default", read="replica"))
    assert found(check_routers) == []


def test_the_first_router_with_an_opinion_decides(route):
    route(Router(), Router(write="queue"), Router(write="default"), DATABASE="queue")
    assert found(check_routers) == []


def test_a_router_without_the_methods_has_no_say(route):
    route(object(), DATABASE="queue")
    assert found(check_routers) == []


def test_a_database_that_may_not_be_migrated_is_warned_about(route):
    route(Router(write="queue", read="replica", migrate=False))
    warning = only(check_routers)
    assert warning.id == "taskharbor.W004"
    assert "'queue'" in warning.msg


def test_each_database_of_a_queue_may_have_to_be_migrated(route):
    route(Router(migrate=False), QUEUE_DATABASES={"telemetry": "queue"})
    assert found(check_routers) == ["W004", "W004"]


def test_a_router_that_raises_has_no_say(route):
    class Sharded:
        def db_for_write(self, model, **hints):
            return hints["instance"].shard

        db_for_read = db_for_write

        def allow_migrate(self, db, app_label, **hints):
            raise RuntimeError

    route(Sharded(), DATABASE="queue")
    assert [code for check in ALL for code in found(check)] == []


def test_an_alias_that_only_a_router_knows_is_left_to_django(connect, settings):
    connect(ENGINE="django.db.backends.sqlite3", OPTIONS={"transaction_mode": "IMMEDIATE"})
    settings.DATABASE_ROUTERS = [Router(write="nowhere")]
    assert found(check_databases) == []


# -- commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("commands", [{}, {"runworker": "taskharbor_django"}])
def test_our_own_command_or_none_is_passed_over(monkeypatch, commands):
    monkeypatch.setattr(checks, "get_commands", lambda: commands)
    assert found(check_commands) == []


def test_the_command_of_another_app_is_warned_about_by_name(monkeypatch):
    monkeypatch.setattr(checks, "get_commands", lambda: {"runworker": "channels"})
    warning = only(check_commands)
    assert warning.id == "taskharbor.W005"
    assert "channels" in warning.msg
    assert "taskharbor_worker" in warning.hint


def test_a_command_given_as_an_object_is_named_by_its_module(monkeypatch):
    monkeypatch.setattr(checks, "get_commands", lambda: {"runworker": BaseCommand()})
    assert "django.core.management.base" in only(check_commands).msg
