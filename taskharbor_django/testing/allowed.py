"""Which databases a test may ask."""

from __future__ import annotations

from django.db import connections
from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]  # stubs

from ..operations.storage import aliases


def allowed_aliases() -> list[str]:
    """Those that keep queues, but for those that a TestCase leaves out of its `databases`."""
    first, *others = aliases()
    return [first, *filter(_is_allowed, others)]


def _is_allowed(alias: str) -> bool:
    try:
        connections[alias].cursor().close()
    except DatabaseOperationForbidden:
        return False
    return True
