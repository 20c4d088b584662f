"""
Fixtures for pytest, found by its entry point.

Nothing of Django, and no model, is imported before a fixture is asked for: pytest loads this
before there are settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def taskharbor(db: None) -> Any:  # noqa: ARG001  what runs jobs needs the database
    """The testing kit: `taskharbor.drain()`, `taskharbor.assert_enqueued(...)`, ..."""
    from . import testing

    return testing


@pytest.fixture
def taskharbor_inline(taskharbor: Any) -> Iterator[Any]:
    """The same, and every enqueue of the test runs its job before it returns."""
    with taskharbor.run_inline():
        yield taskharbor
