"""Where jobs are stored: the contract, the database, and memory for tests."""

from typing import TYPE_CHECKING, Any

from ..values import FailureUpdate, JobRecord, Lease, Outcome, Rejection, Reservation
from .base import Driver
from .memory import MemoryDriver

if TYPE_CHECKING:
    from .database import DatabaseDriver as DatabaseDriver

__all__ = [
    "DatabaseDriver",
    "Driver",
    "FailureUpdate",
    "JobRecord",
    "Lease",
    "MemoryDriver",
    "Outcome",
    "Rejection",
    "Reservation",
]


def __getattr__(name: str) -> Any:
    # Only this one needs models: the contract and its suite can be imported without a project.
    if name == "DatabaseDriver":
        from .database import DatabaseDriver

        return DatabaseDriver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
