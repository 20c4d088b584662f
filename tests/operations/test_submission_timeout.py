"""A database that never answers: an enqueue gives up after SUBMISSION_TIMEOUT, not later."""

import contextlib
import json
import socket
import threading

import pytest
from django.db import connections
from django.db.utils import ConnectionHandler

from taskharbor_django.operations import enqueue as verb
from taskharbor_django.operations.enqueue import bound_waiting
from tests.programs import run_program

# In a process of its own: what is told to a connection stays with it.
PROGRAM = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
import django
from django.conf import settings
from django.db import DatabaseError, connections

engine, port, options, timeout = json.loads(sys.argv[1])
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "taskharbor_django"],
    USE_TZ=True,
    TASKHARBOR={"SUBMISSION_TIMEOUT": timeout},
    DATABASES={"default": {
        "ENGINE": f"django.db.backends.{engine}", "NAME": "x", "USER": "x", "PASSWORD": "x",
        "HOST": "127.0.0.1", "PORT": port, "OPTIONS": options,
    }},
)
django.setup()
from taskharbor_django import task
plain = task(name="plain")(lambda: None)

def answer(ask):
    started = time.monotonic()
    try:
        ask()
    except DatabaseError as error:
        used = connections["default"].settings_dict["OPTIONS"]
        return type(error).__name__, time.monotonic() - started, used

asks = [plain.enqueue, plain.using(idempotency_key="k").enqueue, lambda: plain.enqueue_many([()])]
with ThreadPoolExecutor(len(asks)) as threads:
    answers = list(threads.map(answer, asks))
print(json.dumps([answers, connections.settings["default"]["OPTIONS"]]))
"""


@pytest.fixture
def silence():
    """A port where everyone may connect and nobody ever hears a word."""
    heard, closing = [], threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)

        def accept():
            while not closing.is_set():
                with contextlib.suppress(TimeoutError):
                    heard.append(server.accept()[0])

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield server.getsockname()[1]
        closing.set()
        accepting.join()
    for each in heard:
        each.close()


def enqueue_into(port, engine, options=None, timeout=2):
    question = json.dumps([engine, port, options or {}, timeout])
    return json.loads(run_program(PROGRAM, question))


needs_mysql = pytest.mark.mariadb  # where its client is installed


@pytest.mark.parametrize(
    "engine", ["postgresql", pytest.param("mysql", marks=needs_mysql)], ids=str
)
def test_a_silent_database_is_an_error_within_the_time_and_not_at_once(silence, engine):
    answers, shared = enqueue_into(silence, engine)
    assert [name for name, _, _ in answers] == ["OperationalError"] * 3
    assert all(1 < seconds < 10 for _, seconds, _ in answers)
    # The dict in the settings is every thread's.
    assert shared == {}


def test_the_user_s_own_limit_counts(silence):
    own = {"connect_timeout": 2}
    answers, shared = enqueue_into(silence, "postgresql", own, timeout=600)
    assert shared == own
    assert [used["connect_timeout"] for _, _, used in answers] == [2, 2, 2]
    assert all(seconds < 10 for _, seconds, _ in answers)


# -- what is told to the connection -------------------------------------------------------------


def a_connection(monkeypatch, engine, options=None):
    """A connection of that kind that is not open; return it and the settings it was made from."""
    config = {"ENGINE": f"django.db.backends.{engine}", "NAME": "x", "OPTIONS": options or {}}
    handler = ConnectionHandler({"default": config})
    monkeypatch.setattr(verb, "connections", handler)
    return handler["default"], config


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(30, 30), (2, 2), (2.9, 2), (1, 2), (0.1, 2), (3600, 3600)]
)
def test_libpq_counts_in_whole_seconds_from_two(monkeypatch, settings, timeout, seconds):
    settings.TASKHARBOR = {"SUBMISSION_TIMEOUT": timeout}
    connection, config = a_connection(monkeypatch, "postgresql")
    bound_waiting("default")
    assert connection.settings_dict["OPTIONS"] == {
        "connect_timeout": seconds,
        "tcp_user_timeout": 1000 * seconds,
    }
    assert config["OPTIONS"] == {}


def test_what_the_user_said_of_a_connection_is_kept(monkeypatch):
    options = {"connect_timeout": 5, "sslmode": "require"}
    connection, config = a_connection(monkeypatch, "postgresql", options)
    bound_waiting("default")
    assert connection.settings_dict["OPTIONS"] == options | {"tcp_user_timeout": 30_000}
    assert connection.settings_dict["NAME"] == "x"
    assert config["OPTIONS"] == options


def test_the_limit_reaches_the_driver_of_the_database(monkeypatch):
    connection, _ = a_connection(monkeypatch, "postgresql")
    bound_waiting("default")
    parameters = connection.get_connection_params()
    assert (parameters["connect_timeout"], parameters["tcp_user_timeout"]) == (30, 30_000)


@needs_mysql
def test_mysqlclient_has_a_limit_of_its_own(monkeypatch):
    connection, _ = a_connection(monkeypatch, "mysql")
    bound_waiting("default")
    assert connection.settings_dict["OPTIONS"] == {"connect_timeout": 30}


def test_sqlite_has_nobody_to_wait_for(monkeypatch):
    connection, config = a_connection(monkeypatch, "sqlite3", {"timeout": 5})
    bound_waiting("default")
    assert connection.settings_dict["OPTIONS"] == config["OPTIONS"] == {"timeout": 5}


def test_an_open_connection_is_left_as_it_is(db):
    connection = connections["default"]
    connection.ensure_connection()
    before = connection.settings_dict
    bound_waiting("default")
    assert connection.settings_dict is before
