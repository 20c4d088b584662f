"""One run of the demo: what its steps leave for each other."""

import time
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Q

from example_project.shop import tasks
from example_project.shop.models import Order
from taskharbor_django.models import Job
from taskharbor_django.operations.callback import CALLBACK_TASK

from .receiver import Receiver
from .screen import Screen
from .site import Site
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
    receiver: Receiver | None = None
    """who is told by callback, unless CALLBACK_URL names somebody else"""
    site: Site | None = None
    """where the shop is served in the end, if that was asked for"""
    serving: bool = False

    @property
    def jobs(self):
        """The jobs that this run stored, and those that they stored."""
        if self.expected:
            ours = Q(pk__in=self.expected) | Q(parent__in=self.expected)
            if self.receiver is not None:
                ours |= Q(task=CALLBACK_TASK, parent__parent__in=self.expected)
            return Job.objects.filter(ours)
        return Job.objects.filter(created_at__gt=self.since) if self.since else Job.objects.all()

    def of(self, task):
        return self.jobs.filter(task=f"{tasks.__name__}.{task}")

    def start_worker(self):
        """Start a worker that calls back where somebody listens."""
        self.worker.start(self.receiver.environment if self.receiver else {})

    def close(self):
        """End whatever was started."""
        self.worker.stop()
        for started in (self.receiver, self.site):
            if started is not None:
                started.close()
