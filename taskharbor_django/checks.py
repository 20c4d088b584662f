"""System checks: what would go wrong later, said before the first job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands
from django.db import DEFAULT_DB_ALIAS, Error, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.utils.connection import ConnectionDoesNotExist

from .conf import Settings, get_settings, parse
from .exceptions import TaskHarborError
from .operations import schedules

SQLITE_MINIMUM = (3, 35)
LEVELS = {"E": checks.ERROR, "W": checks.WARNING}


@dataclass(frozen=True, slots=True)
class Text:
    message: str
    hint: str


CATALOGUE = {
    "E001": Text("{problem}", "{advice}"),
    "E002": Text(
        "USE_TZ is False.",
        "Set USE_TZ = True. Times of jobs are aware; without time zones SQLite and MySQL refuse "
        "them, and PostgreSQL answers with local times, of which one hour comes twice a year.",
    ),
    "E003": Text(
        "The database {alias!r} keeps times in the time zone {zone}.",
        "Remove TIME_ZONE from DATABASES[{alias!r}], or keep jobs in a database without it. Times "
        "of jobs are compared with the server's UTC clock, and of local times one hour comes twice "
        "a year.",
    ),
    "E004": Text(
        "The database {alias!r} runs on SQLite {version}; 3.35 or later is needed.",
        "Use a Python that is built with a newer SQLite.",
    ),
    "E005": Text(
        "Transactions of the database {alias!r} run at the isolation level {level}.",
        "Set it to READ COMMITTED, or keep jobs in an alias that has it. At other levels a "
        "transaction does not see what others committed before it got its locks, and a dependent "
        "job could wait for ever.",
    ),
    "E006": Text(
        "The database {alias!r} cannot skip locked rows.",
        "Upgrade to MariaDB 10.6, MySQL 8.0.1, PostgreSQL 15 or later: without SKIP LOCKED "
        "workers would wait for each other.",
    ),
    "E007": Text(
        "A database router writes {models} to {alias!r}, but jobs are kept in {home!r}.",
        "Let db_for_write() answer {home!r} for every model of the app label 'taskharbor', or "
        "change TASKHARBOR['DATABASE'].",
    ),
    "E008": Text(
        "The schedule {name!r} cannot be enqueued: {problem}",
        "Correct it where it is declared, by @schedule or in TASKHARBOR['SCHEDULES']; its row is "
        "left as it is meanwhile.",
    ),
    "W001": Text(
        "The SQLite database {alias!r} begins transactions {mode}, not IMMEDIATE.",
        "Add 'transaction_mode': 'IMMEDIATE' to 'OPTIONS' of DATABASES[{alias!r}]. In a DEFERRED "
        "transaction a view that reads first and enqueues later fails at once with 'database is "
        "locked' when another connection wrote in between, whatever the timeout.",
    ),
    "W002": Text(
        "The SQLite database {alias!r} has the journal mode {mode}, not WAL.",
        "Add 'init_command': 'PRAGMA journal_mode=WAL;' to 'OPTIONS' of DATABASES[{alias!r}]. "
        "Otherwise every reader stops the workers from writing, and they stop the readers.",
    ),
    "W003": Text(
        "A database router reads {models} from {alias!r}, but TASKHARBOR['DATABASE'] is {home!r}.",
        "TaskHarbor itself always uses {home!r}; a query of your own would not. Let db_for_read() "
        "answer {home!r}. If {alias!r} is a replica, leave DATABASE out: jobs are then kept where "
        "db_for_write() says.",
    ),
    "W004": Text(
        "No database router lets migrations of the app 'taskharbor' run on {alias!r}.",
        "Jobs are kept there: let allow_migrate() answer True or None for it, or create the "
        "tables in another way and silence this.",
    ),
    "W005": Text(
        "'manage.py runworker' runs the command of {winner}, not TaskHarbor's.",
        "Use 'manage.py taskharbor_worker', which is the same command, or put "
        "'taskharbor_django' before {winner} in INSTALLED_APPS.",
    ),
    "W006": Text(
        "The database {alias!r} could not be asked about itself: {error}.",
        "Run 'manage.py check --database {alias}' again when it is up.",
    ),
    "W007": Text(
        "The server of the database {alias!r} takes packets of {limit} bytes, and a payload or "
        "result may need {needed}.",
        "Raise max_allowed_packet in its configuration, or lower PAYLOAD_MAX_BYTES and "
        "RESULT_MAX_BYTES in TASKHARBOR. What is larger than a packet cannot be stored, and a "
        "statement has up to two bytes for each one of a value.",
    ),
}


def register() -> None:
    """Register every check; the one that talks to a server runs where Django names databases."""
    for check in (
        check_settings,
        check_time_zones,
        check_schedules,
        check_databases,
        check_routers,
        check_commands,
    ):
        checks.register(check, "taskharbor")
    checks.register(check_servers, "taskharbor", checks.Tags.database)


def check_settings(**_: Any) -> Iterator[checks.CheckMessage]:
    for problem in parse(getattr(settings, "TASKHARBOR", {}))[1]:
        yield _issue("E001", problem=problem.message, advice=problem.hint)


def check_time_zones(**_: Any) -> Iterator[checks.CheckMessage]:
    if not settings.USE_TZ:
        yield _issue("E002")


def check_schedules(**_: Any) -> Iterator[checks.CheckMessage]:
    """Look at what schedules call: their timing was read when they were declared."""
    with suppress(ImproperlyConfigured):  # said by check_settings
        for declared in schedules.declared_schedules():
            try:
                schedules.checked(declared)
            except TaskHarborError as problem:
                yield _issue("E008", name=declared.name, problem=problem)


def check_databases(**_: Any) -> Iterator[checks.CheckMessage]:
    """Look at what DATABASES says; no server is asked."""
    for connection in _connections(_aliases()):
        # Where the column type has no time zone, Django converts to the one that is set here.
        zone = connection.settings_dict.get("TIME_ZONE")
        if not connection.features.supports_timezones and zone not in (None, "UTC"):
            yield _issue("E003", alias=connection.alias, zone=zone)
        if look := LOOKS.get(connection.vendor):
            yield from look(connection)


def check_servers(
    *, databases: Collection[str] | None = None, **_: Any
) -> Iterator[checks.CheckMessage]:
    """Ask the servers of the named databases."""
    for connection in _connections(alias for alias in _aliases() if alias in (databases or ())):
        try:
            if ask := QUESTIONS.get(connection.vendor):
                yield from ask(connection)
        except (Error, ImproperlyConfigured, OSError) as error:
            yield _issue("W006", alias=connection.alias, error=type(error).__name__)


def check_routers(**_: Any) -> Iterator[checks.CheckMessage]:
    found = _settings()
    if found is None:
        return
    home = found.database or _written_alias()
    yield from _astray("E007", "db_for_write", home)
    # Without DATABASE reads may well go to a replica: TaskHarbor only uses the write alias.
    if found.database is not None:
        yield from _astray("W003", "db_for_read", home)
    for alias in _aliases():
        if not _consulted(partial(router.allow_migrate_model, alias, _job()), otherwise=True):
            yield _issue("W004", alias=alias)


def check_commands(**_: Any) -> Iterator[checks.CheckMessage]:
    winner: Any = get_commands().get("runworker", __package__)
    name = winner if isinstance(winner, str) else type(winner).__module__
    if name.partition(".")[0] != __package__:
        yield _issue("W005", winner=name)


def _issue(code: str, **facts: Any) -> checks.CheckMessage:
    message = CATALOGUE[code].message.format(**facts)
    hint = CATALOGUE[code].hint.format(**facts)
    return checks.CheckMessage(LEVELS[code[0]], message, hint=hint, id=f"taskharbor.{code}")


def _settings() -> Settings | None:
    try:
        return get_settings()
    except ImproperlyConfigured:
        return None  # E001 says why; what depends on the settings waits until they are right


def _job() -> type[Model]:
    return apps.get_model("taskharbor", "Job")


def _aliases() -> list[str]:
    """Every database that holds jobs."""
    found = _settings()
    if found is None:
        return []
    return sorted({found.database or _written_alias(), *found.queue_databases.values()})


def _connections(aliases: Iterable[str]) -> Iterator[BaseDatabaseWrapper]:
    for alias in aliases:
        # A missing database driver, or an alias that only a router knows, is Django's to report.
        with suppress(ImproperlyConfigured, ConnectionDoesNotExist):
            yield connections[alias]


def _sqlite(connection: Any) -> Iterator[checks.CheckMessage]:
    version = connection.Database.sqlite_version_info
    if version < SQLITE_MINIMUM:
        yield _issue("E004", alias=connection.alias, version=".".join(map(str, version)))
    mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or "DEFERRED"
    # One in memory has no second process that could lock it.
    if mode.upper() != "IMMEDIATE" and not connection.is_in_memory_db():
        yield _issue("W001", alias=connection.alias, mode=mode.upper())


def _ask_sqlite(connection: Any) -> Iterator[checks.CheckMessage]:
    mode = _answer(connection, "PRAGMA journal_mode")
    if mode.upper() != "WAL" and not connection.is_in_memory_db():
        yield _issue("W002", alias=connection.alias, mode=mode.upper())


def _look_at_options(connection: Any) -> Iterator[checks.CheckMessage]:
    yield from _isolation(connection, _level_in_options(connection))


def _ask_server(connection: Any) -> Iterator[checks.CheckMessage]:
    if not connection.features.has_select_for_update_skip_locked:
        yield _issue("E006", alias=connection.alias)
    # psycopg names the level of OPTIONS in BEGIN only: a statement alone has the server's default.
    if connection.vendor == "postgresql" or _level_in_options(connection) is None:
        yield from _isolation(connection, _answer(connection, LEVEL_QUERIES[connection.vendor]))


def _ask_mysql(connection: Any) -> Iterator[checks.CheckMessage]:
    yield from _ask_server(connection)
    found, limit = get_settings(), int(_answer(connection, "SELECT @@max_allowed_packet"))
    needed = 2 * max(found.payload_max_bytes, found.result_max_bytes)
    if limit <= needed:
        yield _issue("W007", alias=connection.alias, limit=f"{limit:,}", needed=f"{needed:,}")


def _isolation(connection: Any, level: str | None) -> Iterator[checks.CheckMessage]:
    if level is not None and level.lower().replace("-", " ") != "read committed":
        yield _issue("E005", alias=connection.alias, level=level.upper())


def _level_in_options(connection: Any) -> str | None:
    options = connection.settings_dict["OPTIONS"]
    if connection.vendor == "mysql":
        # Django sets READ COMMITTED on MySQL unless told otherwise; None leaves it to the server.
        return options.get("isolation_level", "read committed") or None
    if options.get("isolation_level") is None:
        return None
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    with suppress(ValueError):  # Django refuses the value when it connects
        return IsolationLevel(options["isolation_level"]).name.replace("_", " ")
    return None


def _answer(connection: Any, question: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return str(cursor.fetchone()[-1])


def _astray(code: str, action: str, home: str) -> Iterator[checks.CheckMessage]:
    """Report models that the project's routers send elsewhere; no say is no disagreement."""
    found = defaultdict(list)
    for model in apps.get_app_config("taskharbor").get_models():
        found[_routed(model, action) or home].append(model.__name__)
    for alias, models in found.items():
        if alias != home:
            yield _issue(code, alias=alias, home=home, models=", ".join(models))


def _written_alias() -> str:
    return _routed(_job(), "db_for_write") or DEFAULT_DB_ALIAS


def _routed(model: type[Model], action: str) -> str | None:
    """Return what the first router with an opinion answers."""
    methods = (getattr(each, action, None) for each in router.routers)
    answers = (_consulted(partial(method, model), otherwise=None) for method in methods if method)
    return next(filter(None, answers), None)


def _consulted(question: Callable[[], Any], *, otherwise: Any) -> Any:
    """Ask a router of the project; one that fails without an instance at hand has no say."""
    try:
        return question()
    except Exception:  # noqa: BLE001  a check reports, whatever a router does
        return otherwise


LOOKS = {"sqlite": _sqlite, "postgresql": _look_at_options, "mysql": _look_at_options}
QUESTIONS = {"sqlite": _ask_sqlite, "postgresql": _ask_server, "mysql": _ask_mysql}
LEVEL_QUERIES = {
    "postgresql": "SHOW default_transaction_isolation",
    # MariaDB learned the name transaction_isolation in 11.1, MySQL 8 forgot tx_isolation.
    "mysql": "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')",
}
