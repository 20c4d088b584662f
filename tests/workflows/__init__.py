"""Workflows on a real database. What several of these tests need stands here."""

from collections import Counter, defaultdict
from datetime import timedelta

from taskharbor_django.lifecycle import FailureCategory, JobState, OutcomeKind
from taskharbor_django.models import DeadLetter, Dependency, Job, Workflow
from taskharbor_django.operations import decide
from taskharbor_django.operations.inputs import attach
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.values import Outcome
from taskharbor_django.worker import executor

LEASE = timedelta(seconds=30)


def driver():
    return driver_for("default")


def take(limit=1, queue="default"):
    """Reserve as a worker does, with the results that the jobs take."""
    held = driver().reserve(queue, now=driver().now(), lease_for=LEASE, limit=limit)
    return attach(driver(), held)


def run(reservation):
    """Run a reserved job here and now; return its outcome, not yet settled."""
    now = driver().now()
    prepared = executor.prepare(reservation, now)
    if isinstance(prepared, Outcome):
        return prepared
    try:
        value = executor.call(prepared, None)
    except Exception as error:  # noqa: BLE001  as in a worker
        return executor.failed(prepared, reservation, error, driver().now())
    return executor.finished(prepared, reservation, value, driver().now())


def finish(outcomes):
    assert driver().settle(outcomes, now=driver().now()) == []


def work(limit=100):
    """Run all that can be run, batch by batch; return how many jobs were run."""
    count = 0
    while held := take(limit):
        finish([run(each) for each in held])
        count += len(held)
    return count


def hold(*handles):
    """Reserve exactly these jobs, each of which must be ready."""
    held = {each.job.id: each for each in take(1_000)}
    wanted = [held.pop(handle.id) for handle in handles]
    finish([decide.outcome(OutcomeKind.RELEASE, each) for each in held.values()])
    return wanted


def end(handle, state="done"):
    """End a ready job in this way."""
    if state == "cancelled":
        return handle.cancel()
    (held,) = hold(handle)
    if state == "done":
        return finish([decide.outcome(OutcomeKind.ACK, held)])
    error = RuntimeError("it broke")
    outcome = decide.outcome_of(
        error, held, None, now=driver().now(), category=FailureCategory.PERMANENT
    )
    return finish([outcome])


def states(*handles):
    return [handle.refresh().state for handle in handles]


def letter(handle):
    """The open dead letter of a job."""
    return DeadLetter.objects.get(open_for=handle.id)


def counts_add_up():
    """What is stored as a count is what can be counted; once 0, what is left stays 0."""
    jobs = {job.pk: job for job in Job.objects.all()}
    edges, open_jobs = defaultdict(list), Counter()
    for edge in Dependency.objects.all():
        edges[edge.job_id].append(edge)
    for job in jobs.values():
        open_jobs[job.workflow_id] += job.state not in ("done", "dead", "cancelled")
        if job.dependencies_left:
            assert job.dependencies_left == conditions(edges[job.pk], jobs), job
        if job.state == JobState.BLOCKED:
            assert may_still_run(edges[job.pk], jobs), f"{job} waits for what will never come"
    for workflow in Workflow.objects.all():
        assert workflow.open_jobs == open_jobs[workflow.pk]
        assert (workflow.finished_at is None) == bool(open_jobs[workflow.pk])


def conditions(edges, jobs):
    ended = ("done", "dead", "cancelled")
    firsts = [jobs[edge.depends_on_id].state in ended for edge in edges if edge.kind == "after_any"]
    return (
        sum(jobs[e.depends_on_id].state != "done" for e in edges if e.kind == "after")
        + sum(jobs[e.depends_on_id].state not in ended for e in edges if e.kind == "after_end")
        + bool(firsts and not any(firsts))
    )


def may_still_run(edges, jobs):
    """No AFTER has failed, and something that is waited for has not ended."""
    ended = ("dead", "cancelled")
    if any(jobs[e.depends_on_id].state in ended for e in edges if e.kind == "after"):
        return False
    return conditions(edges, jobs) > 0
