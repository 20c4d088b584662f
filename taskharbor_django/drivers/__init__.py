"""Where jobs are stored: the contract, the database, and memory for tests."""

from ..values import FailureUpdate, JobRecord, Lease, Outcome, Rejection, Reservation
from .base import Driver
from .database import DatabaseDriver
from .memory import MemoryDriver

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
