"""Users, who may be kept in another database than what is said of them here."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.models import SET_NULL


def forget(collector: Any, field: Any, rows: Any, using: str) -> None:
    """SET_NULL, unless the database that the user is deleted from has no such table."""
    if router.allow_migrate_model(using, field.model):
        SET_NULL(collector, field, rows, using)


forget.lazy_sub_objs = True  # type: ignore[attr-defined]  # else Django looks into the table first
