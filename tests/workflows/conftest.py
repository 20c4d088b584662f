import pytest

from tests.storage.sessions import Session


@pytest.fixture
def session(transactional_db):
    """Another session at the same database, one for each call."""
    made = []

    def make():
        made.append(Session())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def callbacks(settings):
    """A URL that jobs may call back."""
    allowed = {"CALLBACK_HOSTS": ["hooks.example"], "CALLBACK_SECRET": "x" * 40}
    settings.TASKHARBOR = {**settings.TASKHARBOR, **allowed}
    return "https://hooks.example/done"
