import pytest

from tests.process.harness import Processes, kill

from .crew import Crew
from .history import noted


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
