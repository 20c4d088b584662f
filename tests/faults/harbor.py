"""A crew whose workers reach a PostgreSQL of the test's own, over a line that can be cut."""

import contextlib
import sys
import threading
import time

from django.core.management import call_command
from django.db import InterfaceError, InternalError, OperationalError, connection, connections

from taskharbor_django.models import Job
from tests.process.harbor import here
from tests.process.harness import Processes, wait_until
from tests.servers import Proxy
from tests.testapp import fault_tasks as tasks
from tests.testapp.models import Move

from .crew import LEASE, Crew
from .history import ENDED, noted

# A worker that is told nothing waits for half a second at least, and each part counts for itself.
MOST_PER_SECOND = 50
# What a job costs that runs meanwhile: eight messages for the handler's connection and lines, a
# reserve, a settle. A disk that is nearly full still has room for some.
PER_RUN = 10
SESSIONS = "application_name=worker"
# What a caller is told while the server is away, read-only or full.
PASSING = (OperationalError, InterfaceError, InternalError)
# Handlers write to the same database: while it is away they fail, which is no fault of theirs.
patient = tasks.touch.using(max_attempts=100)


class Harbor(Crew):
    """Starts workers behind the line; the test itself is past it."""

    def __init__(self, server, proxy, started, path):
        super().__init__(started, path)
        self.server = server
        self.proxy = proxy
        self._own = {}  # worker -> the queue that it alone serves

    def start(self, *arguments, **options):
        options.setdefault("DATABASE_URL", f"{self.proxy.url(self.server.url)}?{SESSIONS}")
        return super().start(*arguments, **options)

    def start_several(self, number, **options):
        """Start so many; each has a queue of its own beside the one of all."""
        queues = [f"own-{len(self._workers) + turn}" for turn in range(number)]
        workers = [self.start(queue=f"{queue},default", **options) for queue in queues]
        self._own.update(zip(workers, queues, strict=True))
        return workers

    def ready(self, number, **options):
        """Start so many, and wait until what happens next happens to each of them."""
        return [worker.ready() for worker in self.start_several(number, **options)]

    def restart(self, mode):
        connection.close()  # this process's own session would not survive it either
        self.server.restart(mode)

    def show(self):
        """Write down what the workers have said; pytest shows it when the test fails."""
        for worker in self._workers:
            sys.stdout.write(f"-- worker {worker.pid}:\n{worker.output}\n")

    def load(self, pace=20, **options):
        return Load(self.history, pace=pace, **options)

    def goes_on(self):
        """Wait until a job comes to its end, whoever does it; return how many seconds that took."""
        since = time.time()

        def first():
            return next((line.at for line in self.history.lines("END") if line.at > since), None)

        return round(wait_until(first, what="the end of a job") - since, 2)

    def recovers(self, since, *jobs, lease=LEASE, task=patient):
        """
        See that work goes on in time after the fault was over; return after how many seconds.

        Jobs that are known to be lost are reserved by others. Without any, each worker that is
        alive ends one: of its own queue, or one of them could do the work of all.
        """
        if jobs:
            return self.taken_over(*jobs, since=since, lease=lease)
        workers = self.working
        queues = [self._own[worker] for worker in workers] if len(workers) > 1 else ["default"]
        for queue in queues:
            self._insist(task, queue)
        return self.works_again(*workers, since=since, lease=lease)

    def _insist(self, task, queue):
        """Enqueue; a session that still is as the fault has left it may be refused."""

        def enqueued():
            try:
                return self.enqueue(task, queue=queue)
            except PASSING:
                connection.close()
                return None

        return wait_until(enqueued, what="an enqueue")

    def forget(self, jobs):
        """Leave out of the history what has ended well and signs nothing: it would be missed."""
        ids = {job.id for job in jobs}
        Job.objects.filter(pk__in=ids).delete()
        Move.objects.filter(job__in=ids).delete()
        self.history.enqueued -= ids

    def drained(self, *, timeout=180):
        """Wait until no job waits or runs, and see that all came to a good end."""
        open_jobs = Job.objects.exclude(state__in=ENDED)
        wait_until(lambda: not open_jobs.exists(), timeout=timeout, what="the end of all jobs")
        assert set(Job.objects.values_list("state", flat=True)) == {"done"}

    @contextlib.contextmanager
    def counted(self, workers=1, *, what=None):
        """See that workers ask seldom while the database is away; yield what was counted."""
        what = what or self._asked_in_vain
        began, before, counted = time.monotonic(), what(), {}
        yield counted
        asked = what() - before
        counted["per second"] = round(asked / (time.monotonic() - began), 1)
        assert counted["per second"] < MOST_PER_SECOND * workers, counted

    def _asked_in_vain(self):
        runs = len(self.history.lines("START"))
        return self.proxy.accepted + self.proxy.sent - PER_RUN * runs


@contextlib.contextmanager
def moored(server, path, *, witnessed=True):
    """A harbor at this server, which is this process's database, too; its tables are empty."""
    with here(server), Proxy(server.port) as proxy:
        call_command("migrate", run_syncdb=True, verbosity=0)
        call_command("flush", interactive=False, verbosity=0)
        with noted() if witnessed else contextlib.nullcontext():
            harbor = Harbor(server, proxy, Processes(), path)
            try:
                yield harbor
            finally:
                harbor.show()
            harbor.remove()


class Load:
    """Enqueues at a steady pace, by a thread with a connection of its own, whatever happens."""

    def __init__(self, history, *, pace, task=patient):
        self._history = history
        self._pause = 1 / pace
        self._task = task
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.accepted = 0
        self.refused = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "an enqueue does not come back"

    def _run(self):
        while not self._over.wait(self._pause):
            try:
                handle = self._task.enqueue()
            except PASSING:  # what the caller then does is its own affair
                self.refused += 1
                connections["default"].close()
            else:
                self._history.enqueued.add(handle.id)
                self.accepted += 1
        connections.close_all()


def pass_by(seconds):
    """Let time pass: what matters is that the fault lasts so long."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until, timeout=seconds + 60, what="the time")


def tell(record_property, **facts):
    """Let the end of the run print what was measured."""
    for name, value in facts.items():
        record_property(name.replace("_", " "), value)
