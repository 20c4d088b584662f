"""One run of the demo: what its steps leave for each other."""

import time
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Q

from example_project.shop import tasks
from example_project.shop.models import Order
from taskharbor_django.models import Job

from .screen import Screen
from .worker_process import WorkerProcess


@dataclass
class Run:
    screen: Screen
    started: float = field(default_factory=time.monotonic)
    since: datetime | None = None
    """when the newest job of before was stored"""
    order: Order | None = None
    samples: dict = field(default_factory=dict)
    """by the ids of their jobs"""
    expected: dict = field(default_factory=dict)
    """how each job has to end, by its id"""
    before: dict = field(default_factory=dict)
    """the products before the worker came, by their SKU"""
    worker: WorkerProcess = field(default_factory=WorkerProcess)

    @property
    def jobs(self):
        """The jobs that this run stored, and those that they stored."""
        if self.expected:
            return Job.objects.filter(Q(pk__in=self.expected) | Q(parent__in=self.expected))
        return Job.objects.filter(created_at__gt=self.since) if self.since else Job.objects.all()

    def of(self, task):
        return self.jobs.filter(task=f"{tasks.__name__}.{task}")
