"""
Measure coverage where it can show something: a test that is traced takes two thirds more time.

The run on PostgreSQL is measured whole. The others measure those groups that reach what is theirs
in the core, and what only they run; the rest is the same code once more.
"""

from pathlib import Path

import pytest
from coverage import Coverage
from django.db import connection

TESTS = Path(__file__).parent
MEASURED = {
    "sqlite": {"conformance", "operations", "storage", "unit", "worker"},
    "mysql": {"conformance", "operations", "storage"},
}


def is_measured(item):
    group = item.path.relative_to(TESTS).parts[0]
    return connection.vendor not in MEASURED or group in MEASURED[connection.vendor]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    measuring = Coverage.current()
    if measuring is None or is_measured(item):
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()
