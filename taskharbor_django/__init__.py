"""A durable job queue in the database that a Django project already has."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

# Resolved on first use: settings modules and tasks modules may import this package before the
# app registry is ready.
_PUBLIC = {
    "Call": "tasks",
    "DEFAULT": "task_options",
    "Task": "tasks",
    "enqueue_many": "tasks",
    "registry": "tasks",
    "schedule": "schedules",
    "task": "tasks",
    "Priority": "lifecycle",
    "JobState": "lifecycle",
    "FailureCategory": "lifecycle",
    "DeadReason": "lifecycle",
    "Backoff": "backoff",
    "PermanentError": "exceptions",
    "Snooze": "exceptions",
    "TaskHarborError": "exceptions",
    "TemporaryError": "exceptions",
    "Failure": "values",
    "Signature": "tasks",
    "chain": "workflows",
    "chord": "workflows",
    "graph": "workflows",
    "group": "workflows",
    "JobHandle": "operations",
    "Moved": "operations",
    "Selection": "operations",
    "WorkflowHandle": "operations",
    "bury": "operations",
    "cancel": "operations",
    "discard": "operations",
    "erase": "operations",
    "pause": "operations",
    "replay": "operations",
    "requeue": "operations",
    "resume": "operations",
    "run_now": "operations",
    "update": "operations",
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604  the names are strings


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
