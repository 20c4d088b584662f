"""Where the machine tries its verbs: the same words for the driver in memory and for a database."""

from taskharbor_django import operations
from taskharbor_django.drivers import MemoryDriver
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Notice, Queue
from taskharbor_django.operations.storage import driver_for

FIELDS = (
    "state",
    "queue",
    "run_at",
    "available_at",
    "expires_at",
    "attempts",
    "executions",
    "lease_losses",
    "lease_version",
    "lease",
    "finished_at",
)


class InMemory:
    """The driver for tests; it has no operations beyond cancel and pause."""

    has_operations = False

    def __init__(self):
        self.driver = MemoryDriver()

    def clear(self):
        self.driver = MemoryDriver()

    def set_time(self, _now):
        """Each call brings its own."""

    def rows(self, ids):
        found = {job_id: self.driver.read(job_id) for job_id in ids}
        return {job_id: self._facts(job) for job_id, job in found.items() if job is not None}

    def _facts(self, job):
        facts = {name: getattr(job, name) for name in FIELDS if name != "queue"}
        asked = job.cancel_requested_at is not None
        return {**facts, "queue": job.record.queue, "cancel_asked": asked}

    def leases(self, tokens):
        found = {token: self.driver.read_lease(token) for token in tokens}
        return {token: lease.expires_at for token, lease in found.items() if lease}

    def letters(self):
        return None

    def attempts(self, ids):
        jobs = {job_id: self.driver.read(job_id) for job_id in ids}
        return {
            (job_id, version): end.value
            for job_id, job in jobs.items()
            for version, end in job.attempt_ends.items()
        }

    def cancel(self, job_id, now, *, force):
        self.driver.cancel(job_id, now=now, force=force)

    def pause(self, queue, until):
        self.driver.pause(queue, until)

    def resume(self, queue):
        self.driver.resume(queue)

    def drop_lease(self, token):
        self.driver.drop_lease(token)


class InDatabase:
    """The driver of the app on the test's database, and its operations."""

    has_operations = True

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.driver = driver_for("default")

    def clear(self):
        for model in (Attempt, DeadLetter, Notice, Lease, Queue, Job):
            model.objects.all().delete()

    def set_time(self, now):
        self._monkeypatch.setattr(type(self.driver), "now", lambda _: now)

    def rows(self, _ids):
        rows = Job.objects.values("pk", "cancel_requested_at", *FIELDS)
        return {row.pop("pk"): self._facts(row) for row in rows}

    def _facts(self, row):
        asked = row.pop("cancel_requested_at") is not None
        return {**row, "cancel_asked": asked}

    def leases(self, tokens):
        found = Lease.objects.filter(token__in=tokens)
        return dict(found.values_list("token", "expires_at"))

    def letters(self):
        found = DeadLetter.objects.exclude(open_for=None)
        return {row[0]: row[1:] for row in found.values_list("open_for", "reason", "category")}

    def attempts(self, ids):
        found = Attempt.objects.filter(job__in=list(ids))
        return {row[:2]: row[2] for row in found.values_list("job", "lease_version", "end")}

    def cancel(self, job_id, _now, *, force):
        operations.cancel([job_id], force=force)

    def pause(self, queue, until):
        operations.pause(queue, until=until)

    def resume(self, queue):
        operations.resume(queue)

    def move_to_now(self, job_id, now, lifetime):
        """Let a job that was stored by the server's own clock have come at the machine's time."""
        job = Job.objects.get(pk=job_id)
        assert (job.expires_at and job.expires_at - job.created_at) == lifetime
        expires_at = lifetime and now + lifetime
        rows = Job.objects.filter(pk=job_id)
        rows.update(created_at=now, available_at=now, expires_at=expires_at)

    def drop_lease(self, token):
        Lease.objects.filter(token=token).delete()
