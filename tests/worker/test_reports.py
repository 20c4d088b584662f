"""The runtime behind the contexts of running jobs."""

import threading

from taskharbor_django.clock import LocalClock
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.worker.holdings import Holdings
from taskharbor_django.worker.reports import Reports


def test_no_handler_starts_the_thread_that_writes_checkpoints(transactional_db):
    """An exception sent to a handler that is starting a thread may hit the new thread instead."""
    reports = Reports(driver_for("default"), Holdings(), LocalClock())
    reports.start()
    names = {thread.name for thread in threading.enumerate()}
    reports.close()
    assert "taskharbor-checkpoint_0" in names
