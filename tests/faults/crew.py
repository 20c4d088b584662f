"""The worker processes of one test, and the history of what they did."""

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time

from django.db import connection
from django.db.models import Min

from taskharbor_django.models import Attempt, DeadLetter, Dependency, Job
from tests.process.harness import PATIENCE, kill, processes, wait_until
from tests.testapp.models import Move
from tests.workflows import counts_add_up

from .history import History

LEASE, POLL = 2.0, 0.2
MAX_LEASE_LOSSES = 3  # the default
# What may pass beside a lease and a poll before another has the job; on a busy machine more.
MARGIN = float(os.environ.get("TASKHARBOR_FAULTS_MARGIN") or 2)
WELL, KILLED = 0, -signal.SIGKILL

# Whom this process has killed, by whatever call: nobody else may end that way.
killed_here = set()


def _note_kill(event, facts):
    if event == "os.kill" and facts[1] == signal.SIGKILL:
        killed_here.add(facts[0])


sys.addaudithook(_note_kill)


class Crew:
    """Starts workers with a short lease, and ends with a check of all that happened."""

    def __init__(self, started, path):
        self._started = started
        self._workers = []
        self._ends = {}  # worker -> the exit codes that it may have
        self._most_losses = set()  # of leases of a job, by what its workers are told
        self.history = History(path / "trail")
        self.go = path / "go"

    def start(
        self,
        *arguments,
        queue="*",
        failpoints="",
        settings=None,
        lease=LEASE,
        threads=4,
        ends=None,
        **options,
    ):
        """Start a worker; `ends` are its exit codes if it is neither told to stop nor killed."""
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
            "TASKHARBOR_SETTINGS": json.dumps(settings or {}),
            "TASKHARBOR_FAILPOINTS": failpoints,
            **self.history.environment,
        }
        short = ("--lease", str(lease), "--poll", str(POLL), "--threads", str(threads))
        self._most_losses.add((settings or {}).get("MAX_LEASE_LOSSES", MAX_LEASE_LOSSES))
        worker = self._started.start("--queues", queue, *short, *arguments, **environment | options)
        self._workers.append(worker)
        self._ends[worker] = ends or {KILLED if failpoints.endswith("=kill") else WELL}
        return worker

    def enqueue(self, task, *args, queue="default", **kwargs):
        return self.history.enqueue(task.using(queue=queue), *args, **kwargs)

    def open(self):
        """Let go what holds."""
        self.go.touch()

    # -- waiting ---------------------------------------------------------------------------------

    def signed(self, mark, *, job=None, times=1):
        """Wait until so many lines were signed; return the last of them."""
        job_id = job and job.id

        def found():
            lines = self.history.lines(mark, job_id)
            return lines if len(lines) >= times else None

        return wait_until(found, what=f"{times} {mark}")[times - 1]

    def ended(self, *handles, timeout=PATIENCE):
        """Wait until the jobs have ended; return them."""

        def all_have():
            jobs = [handle.refresh() for handle in handles]
            ended = all(job.state in {"done", "dead", "cancelled"} for job in jobs)
            return jobs if ended else None

        return wait_until(all_have, timeout=timeout, what="the end of the jobs")

    def inflight(self, handle, fence):
        def held():
            job = handle.refresh()
            return (job.state, job.lease_version) == ("inflight", fence)

        wait_until(held, what=f"lease {fence}")

    def taken_over(self, *handles, since, lease=LEASE):
        """
        Wait until others have reserved what was lost once; return how long after `since` (I6).

        What comes then is not looked at: a job that has lost a lease waits for a new process.
        """
        ids = [handle.id for handle in handles]
        reserved = Move.objects.filter(job__in=ids, fences=1, fence=2).values_list("job")

        def all_are():
            found = dict(reserved.annotate(Min("at")))
            return found.values() if len(found) == len(ids) else None

        return in_time(wait_until(all_are, timeout=120, what="a second lease"), since, lease)

    def works_again(self, *workers, since, lease=LEASE):
        """
        Wait until each has brought a job to its end, and see that it has in time (I6).

        By a process of its own: one that does nothing any more hides behind another that does.
        """

        def all_have():
            sessions = {pid: session for pid, (_, session) in processes().items()}
            ends = [line for line in self.history.lines("END") if line.at > since]
            first = {sessions.get(line.pid): line.at for line in reversed(ends)}
            found = [first.get(worker.pid) for worker in workers]
            return found if all(found) else None

        return in_time(wait_until(all_have, timeout=120, what="a job of each"), since, lease)

    # -- the end ---------------------------------------------------------------------------------

    def dismiss(self, *workers):
        """Stop workers as an operator would."""
        for worker in workers:
            worker.send(signal.SIGTERM)
        for worker in workers:
            kill(worker.pid, signal.SIGCONT)
            assert worker.exit_code() == 0, worker.output

    def remove(self):
        """
        Leave nobody behind, and nothing that anybody has begun.

        A worker may start a child while it is being killed; and a server may take a while to see
        that a client is gone, which would lock it against the tables being emptied.
        """
        wait_until(self._kill_all, what="the end of all processes")
        self._started.remove()
        wait_until(lambda: not someone_writes(), what="the end of all transactions")

    def _kill_all(self):
        found = self.history.processes()
        for pid in found:
            kill(pid)
        return not found

    @property
    def working(self):
        """The workers that are alive."""
        return [worker for worker in self._workers if worker.alive]

    def finish(self, **options):
        """Stop whoever is left, and check how each ended, and the history of it all."""
        self.dismiss(*self.working)
        for worker in self._workers:
            self._check_end(worker)
        wait_until(lambda: not self.history.processes(), what="the end of all processes")
        if len(self._most_losses) == 1:
            options.setdefault("most_losses", *self._most_losses)
        self.history.check(**options)
        if Dependency.objects.exists():  # I9
            counts_add_up()

    def _check_end(self, worker):
        """I8: it lived until it was told to stop, or ended in a way that the test knows of."""
        may = self._ends[worker] | ({KILLED} if worker.pid in killed_here else set())
        assert worker.exit_code() in may, f"{worker.exit_code()}, not {may}:\n{worker.output}"


def in_time(times, since, lease=LEASE):
    """How long after `since` the last of them was, which has to be soon (I6)."""
    took = round(max(times) - since, 2)
    assert took <= lease + POLL + MARGIN, f"{took} s, with a lease of {lease} s"
    return took


def is_stopped(process):
    return processes().get(process.pid, ("", 0))[0] == "T"


def stopped(process):
    """Wait until a process is stopped, or has died before it could be."""
    wait_until(lambda: is_stopped(process) or not process.alive, what="the stop")
    return process


def gone(process):
    """Wait until a process has died by itself."""
    assert process.exit_code() == -signal.SIGKILL, process.output


# Sessions of others that are in the midst of a transaction.
OPEN_TRANSACTIONS = {
    "postgresql": """
        SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'
    """,
    "mysql": """
        SELECT count(*) FROM information_schema.innodb_trx
        JOIN information_schema.processlist ON id = trx_mysql_thread_id
        WHERE db = DATABASE() AND id <> CONNECTION_ID()
    """,
}


def freeze(process):
    """Stop a process where it holds no lock; on SQLite that would stop everybody else, too."""

    def frozen():
        kill(process.pid, signal.SIGSTOP)
        stopped(process)
        if not (process.alive and someone_writes()):
            return True
        kill(process.pid, signal.SIGCONT)
        return False

    wait_until(frozen, what="a good instant to stop")


def someone_writes():
    """Say whether another session is in a transaction."""
    if connection.vendor == "sqlite":
        return _sqlite_is_locked(connection.settings_dict["NAME"])
    if connection.vendor == "mysql":
        time.sleep(0.12)  # who looks more often than each 100 ms is shown the same picture again
    with connection.cursor() as cursor:
        cursor.execute(OPEN_TRANSACTIONS[connection.vendor])
        return cursor.fetchone()[0] > 0


def _sqlite_is_locked(name):
    with contextlib.closing(sqlite3.connect(name, timeout=0.1, isolation_level=None)) as raw:
        try:
            raw.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        raw.execute("ROLLBACK")
        return False


def freeze_for(process, seconds):
    """Stop a process for a while; what matters is that it does nothing meanwhile."""
    freeze(process)
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until, what="the time")
    kill(process.pid, signal.SIGCONT)


def everything(handle):
    """All that is stored of a job."""
    job = Job.objects.filter(pk=handle.id).values().get()
    attempts = list(Attempt.objects.filter(job=handle.id).order_by("pk").values())
    letters = list(DeadLetter.objects.filter(job=handle.id).order_by("pk").values())
    return job, attempts, letters


def counts(handle):
    job = handle.refresh()
    return job.state, job.executions, job.attempts, job.lease_losses
