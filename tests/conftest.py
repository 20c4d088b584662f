"""Fixtures that every group of tests may use; the database itself comes from `tests.servers`."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import hypothesis
import pytest
from django.db import connection, connections

# Examples that talk to a database take as long as the machine makes them take.
hypothesis.settings.register_profile("taskharbor", deadline=None, print_blob=True)
hypothesis.settings.load_profile("taskharbor")


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
