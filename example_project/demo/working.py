"""The demo's main step: a worker runs the jobs, and a display says how far it is."""

import time
from collections import Counter
from datetime import timedelta

from django.utils import timezone

from example_project.shop.models import Product
from taskharbor_django import cancel
from taskharbor_django.lifecycle import JobState

from .watching import Look, news, picture, short
from .worker_process import SHOWN, WorkerTrouble

LIMIT = 180
"""seconds after which the demo gives up; ten are enough, but not on a machine that is busy"""
SILENCE = 60
"""seconds in which a worker has to begin"""
REFRESH = 0.2


def work(run):
    """Let a worker run the jobs, show how far it is, and cancel one of them meanwhile."""
    run.screen.heading("A worker runs them")
    run.screen.say(f"$ {SHOWN}")
    run.expected = {job.pk: _expected_end(run, job) for job in run.jobs}
    run.before = {product.sku: product for product in Product.objects.all()}
    began, horizon = time.monotonic(), timezone.now() + timedelta(minutes=5)
    run.start_worker()
    now = _look(run, began, horizon)
    while not now.finished:
        _require_work(run, now)
        time.sleep(REFRESH)
        before, now = now, _look(run, began, horizon)
        _show(run.screen, before, now)
        _stop_printing(run, now)
    run.screen.say(f"All that could run now has ended, after {now.seconds:.1f} s.")
    if code := run.worker.stop():
        told = f"Told to stop, the worker ended with exit code {code}."
        raise WorkerTrouble(run.worker.blame(told))
    run.screen.say("The worker was told to stop (SIGTERM), and has, with exit code 0.")


def _expected_end(run, job):
    if job.pk in run.samples:
        return run.samples[job.pk].end
    return "later" if job.state == JobState.SCHEDULED else "done"


def _look(run, began, horizon):
    rows = run.jobs.defer("payload", "result", "checkpoint").in_line()
    return Look({job.pk: job for job in rows}, horizon, time.monotonic() - began)


def _show(screen, before, now):
    if screen.redraws:
        screen.draw(list(picture(now)))
    else:
        for line in news(before, now):
            screen.say(line)


def _stop_printing(run, now):
    """Cancel the job that would go on, once it has got somewhere."""
    for job in now.of("running"):
        endless = run.expected.get(job.pk) == "cancelled"
        if endless and job.progress is not None and not job.cancel_requested_at:
            cancel([job.pk])


def _require_work(run, now):
    """Say what is wrong with a worker that has ended, does not begin or does not come to an end."""
    run.worker.require_alive()
    if now.seconds > SILENCE and not now.begun:
        raise WorkerTrouble(run.worker.blame(f"The worker has run nothing for {SILENCE} s."))
    if now.seconds > LIMIT:
        left = Counter(f"{short(job.task)} ({job.state})" for job in now.unfinished)
        told = ", ".join(f"{count} x {kind}" for kind, count in left.items())
        raise WorkerTrouble(run.worker.blame(f"Not finished after {LIMIT} s: {told}."))
