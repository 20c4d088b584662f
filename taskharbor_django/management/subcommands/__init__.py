"""The subcommands of `manage.py taskharbor`, one function each: options and output -> exit code."""

from __future__ import annotations

from . import health, jobs, letters, queues, schedules, upkeep, workflows

GROUPS = (jobs, letters, queues, schedules, workflows, upkeep, health)
