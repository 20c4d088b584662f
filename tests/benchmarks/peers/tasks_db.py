"""
django-tasks-db: one thread, one job at a time, five statements each.

Best settings: connections that stay open, no delay at the start, and a look each 10 ms where
the queue is empty. It has nothing else to choose.
"""

from django.db import transaction

from .command import main, watcher
from .on_django import DjangoQueue


class Driver(DjangoQueue):
    app = "django_tasks_db"
    backend = "django_tasks_db.DatabaseBackend"

    def enqueue(self, jobs):
        # It has no call in bulk; one transaction around all of them is what there is.
        with transaction.atomic(), self.sender("noop") as send:
            for number in range(jobs):
                send(number)

    def count_open(self):
        from django_tasks_db.models import DBTaskResult

        return DBTaskResult.objects.filter(status__in=("READY", "RUNNING")).count()

    def drain(self, batch):
        new_worker(batch=True).run()

    def serve(self, batch, until):
        worker = new_worker(batch=False)
        with watcher(until, lambda: setattr(worker, "running", False)):
            worker.run()


def new_worker(*, batch):
    from django_tasks_db.management.commands.db_worker import Worker

    return Worker(
        queue_names=["default"],
        excluded_queue_names=[],
        interval=0.01,
        batch=batch,
        backend_name="default",
        startup_delay=False,
        max_tasks=None,
        worker_id="benchmark",
    )


if __name__ == "__main__":
    main(__spec__.name)
