"""What became of the jobs of a run, read from the rows that they left."""

from collections import defaultdict
from datetime import timedelta

from django.conf import settings

from example_project.shop.models import Product
from taskharbor_django import JobHandle, WorkflowHandle, registry
from taskharbor_django.lifecycle import WAITING, JobState
from taskharbor_django.models import Attempt, DeadLetter

from .watching import brief, short

ORDER = [JobState.DONE, JobState.CANCELLED, JobState.DEAD]
EFFECTS = {"lantern": +5, "rope": -3}
"""what receive_goods and book_stock do to the shelves, exactly once"""


class Unexpected(Exception):
    """A job did not end as it had to."""


# -- the tables ------------------------------------------------------------------------------------


def show_ends(run):
    """A line for all jobs of one task that ended alike."""
    run.screen.heading("What happened")
    letters, alike = _letters(run), defaultdict(list)
    for job in run.jobs.ended().in_line():
        alike[ORDER.index(job.state), short(job.task), job.executions, job.attempts].append(job)
    rows = (
        (len(jobs), task, end_of(jobs[0], letters), executions, failed, _became(jobs))
        for (_, task, executions, failed), jobs in sorted(alike.items(), key=lambda it: it[0])
    )
    run.screen.table(("jobs", "task", "end", "runs", "failed", "result, or why"), rows)


def _letters(run):
    """Why each dead job is dead."""
    letters = DeadLetter.objects.filter(open_for__in=run.jobs.values("pk"))
    return dict(letters.values_list("job", "reason"))


def end_of(job, letters):
    return f"dead: {letters.get(job.pk)}" if job.state == JobState.DEAD else str(job.state)


def _became(jobs):
    """The result of a job, or why there is none; of several, the first and that there are more."""
    job, *others = jobs
    if job.state == JobState.DEAD:
        told = brief(job.last_error)
    elif job.state == JobState.CANCELLED:
        told = f"stopped at {job.progress_message}"
    else:
        told = "" if (result := result_of(job)) is None else str(result)
    return f"{told}, ..." if told and others else told


def result_of(job):
    return JobHandle(id=job.pk, using="default").result


def show_attempts(run):
    run.screen.heading("Each attempt that failed has left a row")
    attempts = Attempt.objects.filter(job__in=run.jobs.values("pk")).select_related("job")
    rows = (
        (short(it.job.task), it.number, it.category, it.code, _seconds(it), brief(it.error))
        for it in attempts.order_by("job__task", "job_id", "number")
    )
    run.screen.table(("task", "attempt", "category", "code", "took", "error"), rows)


def _seconds(attempt):
    started_at = attempt.started_at or attempt.finished_at
    return f"{(attempt.finished_at - started_at).total_seconds():.1f} s"


def show_rest(run):
    run.screen.heading("What remains for later, and why")
    rows = (
        (short(job.task), job.queue, f"{job.available_at:%Y-%m-%d %H:%M} UTC", _why(run, job))
        for job in run.jobs.filter(state__in=WAITING).in_line()
    )
    run.screen.table(("task", "queue", "not before", "why"), rows)


def _why(run, job):
    sample = run.samples.get(job.pk)
    return sample.shows if sample else registry.get(job.task).description


# -- some of them, looked at more closely ----------------------------------------------------------


def show_details(run):
    run.screen.heading("Looked at more closely")
    details = {
        "async": _side_by_side,
        "isolated": _isolated,
        "poison": _poison,
        "atomic": _atomic,
        "snooze": _snoozed,
        "callback": _called_back,
        "checkpoint": _resumed,
        "cancel": _cancelled,
        "workflow": _added_up,
        "not kept": _gone,
    }
    for name, tell in details.items():
        run.screen.item(name, tell(run))


def _side_by_side(run):
    jobs = list(run.of("convert"))
    alone = sum((job.finished_at - job.started_at for job in jobs), timedelta())
    whole = max(job.finished_at for job in jobs) - min(job.started_at for job in jobs)
    return (
        f"{len(jobs)} conversions waited {alone.total_seconds():.1f} s for their rates, side by "
        f"side on one event loop, which took {whole.total_seconds():.1f} s."
    )


def _isolated(run):
    result = result_of(run.of("pack").get())
    return (
        f"pack found {len(result['boxes'])} boxes in process {result['pid']}, a child of the "
        f"worker, which was process {run.worker.pid}."
    )


def _poison(run):
    bomb, good = run.of("open_upload").order_by("-attempts")
    return (
        f"bomb.zip killed {bomb.attempts} processes and was buried. Its neighbour "
        f"({result_of(good)}) and pack, from the same pool, finished."
    )


def _atomic(run):
    runs = run.of("receive_goods").get().executions
    before, after = run.before["lantern"].stock, Product.objects.get(sku="lantern").stock
    return (
        f"receive_goods wrote {runs} times; the first time, its process was killed before the "
        f"commit. Lanterns on the shelf: {before} before, {after} now: 5 more, once."
    )


def _snoozed(run):
    job, parent = run.of("ship").get(), run.of("pick").get()
    return (
        f"ship ran {job.executions} times, and {job.attempts} attempts were counted as failed. "
        f"It was enqueued by pick, whose correlation id it has: {parent.correlation_id}."
    )


def _called_back(run):
    if settings.SHOP_CALLBACK_URL:
        return "CALLBACK_URL is set: whoever is there is told that the parcel has gone."
    if run.receiver is None:
        return "None this time: no openssl is here to make a certificate with."
    ((facts, signed),) = run.receiver.told
    return (
        f"The receiver was told that ship is {facts['state']}, by a job of its own after ship's "
        f"end; the signature {'was right' if signed else 'was wrong'}."
    )


def _resumed(run):
    job = run.of("count_shelves").get()
    return f"count_shelves, in run {job.executions}: {result_of(job)}, from its checkpoint."


def _cancelled(run):
    job = run.of("print_catalogue").get()
    waited = (job.finished_at - job.cancel_requested_at).total_seconds()
    return (
        "print_catalogue was asked to stop. It heard that with the worker's next heartbeat and "
        f"stopped {waited:.1f} s after the question."
    )


def _added_up(run):
    job = run.of("report_stock").get()
    workflow = WorkflowHandle.of(job.workflow_id)
    return (
        f"report_stock ran once the {job.dependencies.count()} others of its workflow were "
        f"done, and added up what they returned: {workflow.results[0]} EUR."
    )


def _gone(run):
    before, after = run.before["lantern"].visits, Product.objects.get(sku="lantern").visits
    return f"count_visit left no row, and {after - before} visit to the lantern: {after} by now."


# -- whether it is what it has to be ---------------------------------------------------------------


def require_expected_ends(run):
    """Fail loudly: a demo that says "done" whatever happened would show nothing."""
    wrong = [*_wrong_ends(run), *_wrong_effects(run)]
    if wrong:
        raise Unexpected("\n    ".join(["This is not as it has to be:", *wrong]))


def _wrong_ends(run):
    letters, jobs = _letters(run), {job.pk: job for job in run.jobs}
    for key in run.expected.keys() | jobs.keys():
        job, wanted = jobs.get(key), run.expected.get(key, "done")
        end = "gone" if job is None else "later" if job.state in WAITING else end_of(job, letters)
        if end != wanted:
            yield f"{job or key} is {end}, not {wanted}"


def _wrong_effects(run):
    for product in Product.objects.filter(sku__in=EFFECTS):
        wanted = run.before[product.sku].stock + EFFECTS[product.sku]
        if product.stock != wanted:
            yield f"stock of {product} is {product.stock}, not {wanted}"
    told = [(facts["state"], signed) for facts, signed in run.receiver.told] if run.receiver else []
    if run.receiver and told != [("done", True)]:
        yield f"the receiver was told {told}, not once that the parcel has gone"
