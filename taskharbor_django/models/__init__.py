"""What is stored. Columns, constraints and indexes; the moves are in drivers and operations."""

from .attempt import Attempt
from .chore import Chore
from .dead_letter import DeadLetter
from .idempotency_key import IdempotencyKey
from .job import Job
from .lease import Lease, Notice
from .queue import Queue
from .schedule import Schedule
from .stats import QueueMinute
from .worker import Worker
from .workflow import Dependency, Workflow

__all__ = [
    "Attempt",
    "Chore",
    "DeadLetter",
    "Dependency",
    "IdempotencyKey",
    "Job",
    "Lease",
    "Notice",
    "Queue",
    "QueueMinute",
    "Schedule",
    "Worker",
    "Workflow",
]
