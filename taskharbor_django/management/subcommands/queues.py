"""queues, workers, stats."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum

from ...models import Job, QueueMinute, Worker
from ...operations import pause, resume
from ...operations.figures import QueueFigures, queue_figures, workers_of
from ...operations.storage import alias_of, default_alias, driver_for
from ..filters import UsageError, count, moment, seconds
from ..output import Name, Output
from .parsing import Adding, Options

QUEUES = (
    "name",
    "ready",
    "inflight",
    "scheduled",
    "blocked",
    "dead",
    "workers",
    "oldest",
    "paused",
)
WORKERS = ("id", "name", "host", "pid", "queues", "slots", "busy", "started_at", "beat", "state")
SPARE_QUEUES = ("blocked", "scheduled", "inflight", "workers")
SPARE_WORKERS = ("id", "started_at", "slots", "host")
STATS = ("queue", "done", "failed", "dead", "per_minute")


def add(adding: Adding) -> None:
    below = adding.group("queues", list_queues, "Queues as they stand.", "pause|resume")
    parser = below.command("pause", pause_queue, "Let nobody reserve from a queue.")
    parser.add_argument("name")
    parser.add_argument("--until", metavar="TIME", type=moment, help="Until then.")
    parser.add_argument("--for", dest="span", metavar="SECONDS", type=seconds, help="So long.")
    parser.add_argument("--note", default="", help="Why.")
    parser = below.command("resume", resume_queue, "Let jobs be reserved again.")
    parser.add_argument("name")
    adding.command("workers", list_workers, "Worker processes, those heard of last first.")
    parser = adding.command("stats", stats, "What became of jobs, by queue.")
    parser.add_argument("--minutes", metavar="N", type=count, default=60, help="The last N.")


def list_queues(options: Options, out: Output) -> int:
    using = options["database"] or default_alias()
    now = driver_for(using).now()
    figures = queue_figures(using, now, workers_of(using, now))
    out.rows(QUEUES, [_queue(it, now) for it in figures], spare=SPARE_QUEUES)
    return 0


def _queue(it: QueueFigures, now: datetime) -> list[Any]:
    counts = (it.ready, it.inflight, it.scheduled, it.blocked, it.dead)
    return [
        *(it.name, *(count.number for count in counts), it.workers),
        it.oldest_at and now - it.oldest_at,
        (it.paused.paused_until or True) if it.paused else None,
    ]


def pause_queue(options: Options, out: Output) -> int:
    if options["until"] and options["span"] is not None:
        raise UsageError("Give --until or --for, not both.")
    until, using = options["until"], options["database"]
    if options["span"] is not None:
        until = driver_for(using or alias_of(options["name"])).now() + options["span"]
    paused = pause(options["name"], until=until, note=options["note"], using=using)
    used = _is_used(paused.name, str(paused._state.db))
    out.facts({"paused": options["name"], "until": until, "used": used})
    if not used:
        out.say("No job and no worker has used this queue so far: is that its name?")
    return 0


def _is_used(name: str, using: str) -> bool:
    """Whether a worker, the statistics or a job knows the queue; the dearest question last."""
    named = Worker.objects.using(using).values_list("queues", flat=True)
    return (
        any(name in queues.split(",") for queues in named)
        or QueueMinute.objects.using(using).filter(queue=name).exists()
        or Job.objects.using(using).filter(queue=name).exists()
    )


def resume_queue(options: Options, out: Output) -> int:
    resumed = resume(options["name"], using=options["database"])
    out.facts({"resumed": options["name"], "was_paused": resumed})
    return 0 if resumed else 1


def list_workers(options: Options, out: Output) -> int:
    using = options["database"] or default_alias()
    now = driver_for(using).now()
    workers = Worker.objects.using(using).order_by("stopped_at", "-last_beat_at")[:500]
    out.rows(WORKERS, [_worker(worker, now) for worker in workers], spare=SPARE_WORKERS)
    return 0


def _worker(it: Worker, now: datetime) -> list[Any]:
    asked_for = "silent" if it.is_silent(now) else (it.request or "running")
    state = "stopped" if it.stopped_at else asked_for
    beat = now - it.last_beat_at
    return [
        it.pk,
        it.name,
        it.host,
        Name(it.pid),
        it.queues,
        it.slots,
        it.busy,
        it.started_at,
        beat,
        state,
    ]


def stats(options: Options, out: Output) -> int:
    using = options["database"] or default_alias()
    since = driver_for(using).now() - timedelta(minutes=options["minutes"])
    minutes = QueueMinute.objects.using(using).filter(minute__gte=since)
    sums = minutes.values("queue").annotate(
        done_=Sum("done"), failed_=Sum("failed"), dead_=Sum("dead")
    )
    found = sums.order_by("queue").values_list("queue", "done_", "failed_", "dead_")
    span = max(1, options["minutes"])
    out.rows(STATS, [[*row, round(row[1] / span, 1)] for row in found])
    return 0
