"""The app of the benchmarks' tasks."""

import os

from django.apps import AppConfig

from .meter import BATCH


class BenchmarksConfig(AppConfig):
    name = "tests.benchmarks"

    def ready(self):
        if most := int(os.environ.get(BATCH, "0")):
            from taskharbor_django.worker import appetite, completer

            appetite.LARGEST_BATCH = completer.LARGEST_BATCH = most
