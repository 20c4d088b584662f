"""Whether migrate was run, said in one line where it was not."""

from __future__ import annotations

from django.apps import apps
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections
from django.db import Error as DatabaseTrouble


def require_tables(using: str, *, returncode: int = 1) -> None:
    """Refuse a database where migrate was not run; one that is away may have the tables later."""
    try:
        there = set(connections[using].introspection.table_names())
    except DatabaseTrouble:
        return
    models = apps.get_app_config("taskharbor").get_models(include_auto_created=True)
    missing = sorted(model._meta.db_table for model in models if model._meta.managed)
    missing = [name for name in missing if name not in there]
    if missing:
        target = "" if using == DEFAULT_DB_ALIAS else f" --database {using}"
        raise CommandError(
            f"The database {using!r} has no table {missing[0]}"
            + (f" (nor {len(missing) - 1} others)" if missing[1:] else "")
            + f". Run 'manage.py migrate{target}' first.",
            returncode=returncode,
        )
