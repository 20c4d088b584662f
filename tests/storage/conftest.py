"""Sessions and drivers for the tests of storage."""

import pytest

from taskharbor_django.drivers import DatabaseDriver

from .sessions import Session


@pytest.fixture
def session(transactional_db):
    """Open another session at the database; each call makes one more."""
    opened = []

    def make():
        opened.append(Session())
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def driver(transactional_db):
    return DatabaseDriver()
