import pytest

from .harness import Processes


@pytest.fixture
def processes(transactional_db):
    """Starts commands as processes; they are gone before the database is emptied."""
    started = Processes()
    yield started
    started.remove()


@pytest.fixture
def files(tmp_path):
    """Two files that tasks know: one that they write to, and one that they wait for."""
    return tmp_path / "said", tmp_path / "go"
