"""The example project: its demo as a user runs it, and its own tests."""

import os
import re
import secrets
import sqlite3
import subprocess
import sys
from io import StringIO
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection

from example_project.shop.screen import Screen

from .pages import ROOT


@pytest.fixture
def database_url(tmp_path, django_db_blocker):
    """The address of a database of the test's own, on the server that the run uses."""
    if connection.vendor == "sqlite":
        yield f"sqlite:///{tmp_path}/example.sqlite3"
        return
    name = f"example_{secrets.token_hex(6)}"
    with django_db_blocker.unblock():
        try:
            administer(f"CREATE DATABASE {name}")
            yield urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))
        finally:
            administer(f"DROP DATABASE IF EXISTS {name}")


def administer(statement):
    with connection._nodb_cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def manage(database_url):
    """Run manage.py as users do; answer with what it said."""

    def run(*arguments, **environment):
        told = {"DATABASE_URL": database_url, **environment}
        kept = {name: os.environ[name] for name in os.environ.keys() - {"DJANGO_SETTINGS_MODULE"}}
        return subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**kept, **told},
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.mark.slow
def test_the_demo_runs_again_and_again(manage):
    first, second = manage("demo"), manage("demo")
    assert (first.returncode, first.stderr) == (0, "")
    assert (second.returncode, second.stderr) == (0, "")
    assert "\x1b" not in first.stdout
    assert first.stdout.isascii()
    assert "3 products, 3 of them new." in first.stdout
    assert "3 products, 0 of them new." in second.stdout
    assert "Cancelled 35 jobs that still waited from earlier runs." in second.stdout
    assert "All jobs: 33 ready, 2 scheduled" in first.stdout
    assert "All jobs: 35 cancelled, 30 ready, 2 scheduled" in second.stdout


def test_the_demo_shows_what_became_of_each_job(manage):
    said = manage("demo", DEMO_PASSWORD="open sesame").stdout
    assert "seen inside the transaction\nleft after the rollback: 0 orders and 0 jobs" in said
    jobs = re.findall(r"job ([0-9a-f-]{36})", said)
    assert len(jobs) == 2
    assert jobs[0] == jobs[1]
    assert "created: False" in said
    assert "InvalidPayload: argument 1 (example_project.shop.models.Order) cannot be stored" in said
    for row in ("default critical ready at once 1 charge_card", "mail bulk ready at once 20"):
        assert row in re.sub(" +", " ", said)
    assert "open sesame" not in said


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stdout", "no_color", "color", "colored"),
    [
        (Terminal, "", None, True),
        (Terminal, "1", None, False),
        (Terminal, "", False, False),
        (StringIO, "", None, False),
        (StringIO, "1", True, True),
    ],
)
def test_the_demo_has_colors_on_a_terminal_only(monkeypatch, stdout, no_color, color, colored):
    monkeypatch.setenv("NO_COLOR", no_color)
    screen = Screen(stdout := stdout(), color=color)
    screen.heading("Jobs")
    screen.table(("queue", "jobs"), [("default", 3)])
    screen.good("Done.")
    assert ("\x1b" in stdout.getvalue()) is colored


@pytest.mark.slow
def test_the_demo_leaves_a_user_alone_that_it_did_not_make(manage):
    manage("migrate", "--verbosity", "0")
    mine = ("--username", "demo", "--email", "me@harbor.example")
    manage("createsuperuser", "--noinput", *mine, DJANGO_SUPERUSER_PASSWORD="mine")
    said = manage("demo")
    assert said.returncode == 0
    assert "a user demo that the demo did not make: left alone" in said.stdout


def test_the_demo_says_that_no_server_answers(manage):
    pytest.importorskip("psycopg")
    failed = manage("demo", DATABASE_URL="postgres://me:sesame@127.0.0.1:1/shop")
    assert failed.returncode == 1
    assert failed.stderr.startswith("CommandError: The database shop on 127.0.0.1 cannot be used")
    assert "sesame" not in failed.stdout + failed.stderr


def test_the_demo_says_that_its_file_is_locked(manage, tmp_path):
    path = tmp_path / "busy.sqlite3"
    busy = sqlite3.connect(path, isolation_level=None)
    busy.execute("PRAGMA journal_mode=WAL")
    busy.execute("BEGIN IMMEDIATE")
    failed = manage("demo", DATABASE_URL=f"sqlite:///{path}?timeout=1")
    busy.close()
    assert failed.returncode == 1
    assert "database is locked\nAnother program is writing to it." in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_example_has_no_warning_and_no_missing_migration(manage):
    checked = manage("check", "--database", "default", "--fail-level", "WARNING")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert manage("makemigrations", "--check", "--dry-run").returncode == 0


@pytest.mark.slow
def test_the_example_passes_its_own_tests(manage):
    tested = manage("test", "example_project")
    assert tested.returncode == 0, tested.stderr
    assert "OK" in tested.stderr


def test_without_debug_the_example_wants_a_secret_key(manage):
    refused = manage("check", DEBUG="off")
    assert "SECRET_KEY" in refused.stderr
    assert manage("check", DEBUG="off", SECRET_KEY=secrets.token_hex()).returncode == 0
