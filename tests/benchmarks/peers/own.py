"""
Ours, asked the same as the peers: `manage.py runworker` with its defaults, in one process.

The size of a batch is no option of it: where it is to be that of a peer, the worker is told so
before it starts (`tests.benchmarks.apps`), for what it claims and for what it settles at once.
"""

import contextlib
import os
import subprocess
import sys

from ..meter import BATCH
from .command import Queue, main

SETTINGS = "tests.benchmarks.settings"


class Driver(Queue):
    batch = 500

    def __init__(self, url):
        super().__init__(url)
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": SETTINGS}
        import django

        django.setup()

    def prepare(self):
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def clear(self):
        from django.core.management import call_command

        call_command("flush", interactive=False, verbosity=0)

    def enqueue(self, jobs):
        from ..tasks import noop

        noop.enqueue_many((number,) for number in range(jobs))

    def count_open(self):
        from taskharbor_django.models import Job

        return Job.objects.exclude(state="done").count()

    @contextlib.contextmanager
    def sender(self, handler):
        from .. import tasks

        yield getattr(tasks, handler).enqueue

    def drain(self, batch):
        self.serve(batch, None)

    def serve(self, batch, until):
        command = [sys.executable, "-m", "django", "runworker", "--burst", "--verbosity", "0"]
        subprocess.run(command, check=True, env=os.environ | {BATCH: str(batch)})


if __name__ == "__main__":
    main(__spec__.name)
