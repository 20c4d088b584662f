"""The admin: one module for each screen. Django finds it by itself."""

from . import dead_letters, jobs, leases, queues, schedules, workers, workflows

__all__ = ["dead_letters", "jobs", "leases", "queues", "schedules", "workers", "workflows"]
