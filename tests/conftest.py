"""Fixtures that every group of tests may use; the database itself comes from `tests.servers`."""

import contextlib
import gc
import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import hypothesis
import pytest
from django.apps import apps
from django.db import connection, connections

from taskharbor_django import clock, pytest_plugin
from tests import emptying, measuring

# Examples that talk to a database take as long as the machine makes them take.
hypothesis.settings.register_profile("taskharbor", deadline=None, print_blob=True)
hypothesis.settings.load_profile("taskharbor")


@pytest.fixture(autouse=True)
def clock_as_in_production(request, monkeypatch):
    """Let only the testing kit's own tests take a frozen clock for that of the database."""
    if "testing" not in request.path.name:
        monkeypatch.setattr(clock, "_pretended", None)


def pytest_configure(config):
    """Load the plugin of the package where its entry point is not installed, as in a checkout."""
    emptying.install()
    config.pluginmanager.register(measuring, "measuring")
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin, "taskharbor")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    """
    Make a report without collecting garbage meanwhile.

    A report parses code, and on Python 3.11 that fails when a finalizer lets another thread parse
    in between (gh-106905): a failed test would end the run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out the tests file by file, unless the command says how."""
    if config.getvalue("dist") != "load":
        return None
    from tests.scheduling import ByFile

    return ByFile(config, log)


@pytest.fixture
def vendor():
    """The kind of the default database in Django's words: postgresql, sqlite or mysql."""
    return connection.vendor


@pytest.fixture
def race(transactional_db):
    """
    Run functions at the same instant, each in a thread with connections of its own.

    `race(f, g)` runs them behind one barrier and returns their results in order; the first
    exception is raised once all have ended.
    """

    def run(*functions):
        barrier = Barrier(len(functions))

        def runner(function):
            try:
                barrier.wait(timeout=30)
                return function()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(len(functions)) as threads:
            futures = [threads.submit(runner, function) for function in functions]
        return [future.result() for future in futures]

    return run


# -- a second database ---------------------------------------------------------------------------

SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
}


@pytest.fixture(scope="session")
def empty_tables(tmp_path_factory, django_db_setup, django_db_blocker):
    """A file of SQLite that has the tables of the app, and nothing in them."""
    path = tmp_path_factory.mktemp("far") / "empty.sqlite3"
    with (
        django_db_blocker.unblock(),
        second_database(path) as alias,
        connections[alias].schema_editor() as editor,
    ):
        for model in apps.get_app_config("taskharbor").get_models():
            editor.create_model(model)
    return path


@contextlib.contextmanager
def second_database(path, alias="far"):
    """Let a file of SQLite be a database of Django's for the length of the block."""
    connections.settings[alias] = {**connections.settings["default"], **SQLITE, "NAME": str(path)}
    connection = connections[alias]

    def ensure_connection():
        if connection.connection is None:
            with connection.wrap_database_errors:
                connection.connect()

    # Its own: that of Django's test case opens no alias that the test case has not set up.
    connection.ensure_connection = ensure_connection
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


@pytest.fixture
def far(db, empty_tables, tmp_path, settings):
    """A second database, which keeps the queue `far`; Django's test case knows nothing of it."""
    path = tmp_path / "far.sqlite3"
    shutil.copyfile(empty_tables, path)
    before = settings.TASKHARBOR
    with second_database(path) as alias:
        settings.TASKHARBOR = {**before, "QUEUE_DATABASES": {"far": alias}}
        yield alias
        settings.TASKHARBOR = before


@pytest.fixture
def far_away(far, tmp_path):
    """The same, and nobody can open it."""
    connection = connections[far]
    connection.close()
    connection.settings_dict = {**connection.settings_dict, "NAME": str(tmp_path / "no" / "file")}
    return far
