import os
from pathlib import Path

import pytest

from tests.process.harness import Processes
from tests.servers import PostgreSQL

from .crew import Crew
from .harbor import moored
from .history import noted

NOT_ALONE = "it measures rates, which others on the machine spoil: run it with -n 0"


def pytest_collection_modifyitems(items):
    """These have a tox environment of their own."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("faults")
            if item.get_closest_marker("alone") and "PYTEST_XDIST_WORKER" in os.environ:
                item.add_marker(pytest.mark.skip(reason=NOT_ALONE))


def pytest_sessionfinish(session, exitstatus):
    """Of the files that `tox -e faults -- FILE` names, few have tests that run alone."""
    none = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if none and session.config.option.markexpr == "alone":
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter):
    """What tests have measured: one line for each."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call" and report.user_properties and "tests/faults/" in report.nodeid:
            told = ", ".join(f"{name}: {value}" for name, value in report.user_properties)
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {told}")


@pytest.fixture
def crew(transactional_db, tmp_path):
    """Starts workers; they are gone before the triggers are, and both before the database is."""
    with noted():
        crew = Crew(Processes(), tmp_path)
        yield crew
        crew.remove()


@pytest.fixture(scope="module")
def server():
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def harbor(server, tmp_path, django_db_blocker):
    """The server of the module, for this process too, with empty tables."""
    with django_db_blocker.unblock(), moored(server, tmp_path) as harbor:
        yield harbor
