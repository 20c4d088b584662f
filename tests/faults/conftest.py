from pathlib import Path

import pytest

from tests.process.harness import Processes, kill

from .crew import Crew
from .history import noted


def pytest_collection_modifyitems(items):
    """These have a tox environment of their own."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("faults")


@pytest.fixture
def crew(transactional_db, tmp_path):
    """Starts workers; they are gone before the triggers are, and both before the database is."""
    with noted():
        started = Processes()
        crew = Crew(started, tmp_path)
        yield crew
        for pid in crew.history.processes():
            kill(pid)
        started.remove()
