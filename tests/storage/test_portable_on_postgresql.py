"""
The portable form of the driver keeps the contract on PostgreSQL too.

There its locks are real and its readers do not wait, unlike on SQLite: a slip in it shows here.
"""

import pytest

from tests.conformance import test_database

from .drivers import PortableDriver


@pytest.mark.postgresql
class TestPortableDriver(test_database.TestDatabaseDriver):
    def make_driver(self):
        return PortableDriver()
