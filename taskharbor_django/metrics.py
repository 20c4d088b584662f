"""
Prometheus: what the database shows of queues, and what this project's processes have counted.

`install()` lets processes count; `view` answers a scrape. Gauges come from indexed, capped queries,
never from a scan of jobs. Needs the extra `metrics`, and costs nothing until it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse

from . import signals
from .lifecycle import TRANSITIONS, JobState, Verb
from .signals import Move

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, multiprocess
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.metrics_core import GaugeMetricFamily
except ImportError:
    raise ImproperlyConfigured(
        'Metrics need prometheus-client: pip install "taskharbor-django[metrics]"'
    ) from None

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800, 3600)

# -- what processes count ----------------------------------------------------------------------

enqueued = Counter("taskharbor_jobs_enqueued", "Jobs stored", ["queue", "task"])
ended = Counter(
    "taskharbor_runs_ended",
    "Runs by their outcome: ack, retry, fail, release, cancel",
    ["queue", "task", "outcome"],
)
duration = Histogram(
    "taskharbor_run_duration_seconds", "How long handlers ran", ["queue", "task"], buckets=BUCKETS
)
lost = Counter("taskharbor_lease_losses", "Leases that were lost", ["queue", "task"])
late = Counter(
    "taskharbor_outcomes_too_late",
    "Outcomes that came when the job was no longer the worker's: they change nothing",
    ["queue", "task", "outcome"],
)
died = Counter("taskharbor_jobs_died", "Jobs that became dead letters", ["queue", "task", "reason"])


def install() -> None:
    """Count from now on in this process; call it in `AppConfig.ready`."""
    from .worker.completer import too_late

    receivers: dict[Callable[..., None], Sequence[Signal]] = {
        _count_enqueued: [signals.enqueued],
        _count_run: [
            signals.acked,
            signals.retried,
            signals.failed,
            signals.released,
            signals.cancelled,
        ],
        _count_loss: [signals.reclaimed],
        _count_too_late: [too_late],
        _count_death: [signals.SIGNALS[verb] for verb in TRANSITIONS if _may_kill(verb)],
    }
    for receiver, heard in receivers.items():
        for signal in heard:
            signal.connect(receiver, dispatch_uid=f"taskharbor.metrics.{receiver.__name__}")


def _count_enqueued(*, move: Move, **_: Any) -> None:
    enqueued.labels(move.queue, move.task).inc()


def _count_run(*, move: Move, **_: Any) -> None:
    if not move.attempt:
        return  # cancelled while it waited: no run
    ended.labels(move.queue, move.task, move.verb).inc()
    if move.started_at is not None and move.finished_at is not None:
        seconds = (move.finished_at - move.started_at).total_seconds()
        duration.labels(move.queue, move.task).observe(seconds)


def _count_loss(*, move: Move, **_: Any) -> None:
    lost.labels(move.queue, move.task).inc()


def _count_too_late(*, running: Any, outcome: Any, **_: Any) -> None:
    job = running.reservation.job
    late.labels(job.queue, job.task, outcome.kind).inc()


def _may_kill(verb: Verb) -> bool:
    return any(JobState.DEAD in after for after in TRANSITIONS[verb].values())


def _count_death(*, move: Move, **_: Any) -> None:
    if move.state == JobState.DEAD:
        died.labels(move.queue, move.task, move.reason).inc()


# -- what the database shows -------------------------------------------------------------------


class DatabaseCollector:
    """Gauges read at each scrape, for every database that keeps jobs."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from .operations.databases import trouble_with
        from .operations.storage import aliases

        families = _Families()
        for using in aliases():
            # One that is away must not take the figures of the others with it.
            up = not trouble_with(using)
            families.tell(using, up=up)
            if up:
                families.read(using)
        yield from families.all()


class _Families:
    def __init__(self) -> None:
        self._made = {name: _family(name, text, labels) for name, text, labels in _GAUGES}

    def all(self) -> Iterable[GaugeMetricFamily]:
        return self._made.values()

    def tell(self, using: str, *, up: bool) -> None:
        self._add("database_up", int(up), using)

    def read(self, using: str) -> None:
        from .operations.figures import living, queue_figures, workers_of
        from .operations.storage import driver_for

        now = driver_for(using).now()
        workers = workers_of(using, now)
        alive = living(workers, now)
        self._add("workers", len(alive), using)
        self._add("worker_slots", sum(it.slots for it in alive), using)
        self._add("worker_slots_busy", sum(it.busy for it in alive), using)
        for figures in queue_figures(using, now, workers):
            self._read_queue(figures, using, now)
        self._read_rest(using, now)

    def _read_queue(self, it: Any, using: str, now: datetime) -> None:
        for state in ("ready", "inflight", "scheduled", "blocked", "dead"):
            self._add("queue_jobs", getattr(it, state).number, using, it.name, state)
        age = 0.0 if it.oldest_at is None else max(0.0, (now - it.oldest_at).total_seconds())
        self._add("queue_oldest_ready_seconds", age, using, it.name)
        self._add("queue_paused", int(it.paused is not None), using, it.name)
        self._add("queue_workers", it.workers, using, it.name)
        for end, number in it.minutes[-2]._asdict().items():
            self._add("queue_jobs_last_minute", number, using, it.name, end)

    def _read_rest(self, using: str, now: datetime) -> None:
        from .operations.figures import late_schedules, overdue_leases

        self._add("leases_overdue", overdue_leases(using, now), using)
        for name, lateness in late_schedules(using, now):
            self._add("schedule_lateness_seconds", lateness.total_seconds(), using, name)

    def _add(self, name: str, value: float, *labels: str) -> None:
        self._made[name].add_metric(labels, value)


_GAUGES: list[tuple[str, str, list[str]]] = [
    ("queue_jobs", "Jobs by state, counted up to 10,000", ["database", "queue", "state"]),
    (
        "queue_oldest_ready_seconds",
        "How long the oldest ready job could have run",
        ["database", "queue"],
    ),
    ("queue_paused", "1 while the queue is paused", ["database", "queue"]),
    ("queue_workers", "Living workers that serve the queue", ["database", "queue"]),
    (
        "queue_jobs_last_minute",
        "Jobs of the last full minute: done, failed and to be tried again, dead",
        ["database", "queue", "end"],
    ),
    ("database_up", "1 while the database answers", ["database"]),
    ("workers", "Living workers", ["database"]),
    ("worker_slots", "Threads of living workers", ["database"]),
    ("worker_slots_busy", "Threads that run a job; coroutines need none", ["database"]),
    ("leases_overdue", "Leases that have expired and were not taken back yet", ["database"]),
    (
        "schedule_lateness_seconds",
        "How long the next slot of an active schedule is overdue",
        ["database", "schedule"],
    ),
]


def _family(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"taskharbor_{name}", text, labels=labels)


# -- the view ----------------------------------------------------------------------------------


def view(_request: HttpRequest) -> HttpResponse:
    """Answer a scrape in Prometheus' text format; let nobody but Prometheus reach it."""
    return HttpResponse(exposition(), content_type=CONTENT_TYPE_LATEST)


def exposition() -> bytes:
    """The text of a scrape."""
    shown = CollectorRegistry(auto_describe=False)
    shown.register(DatabaseCollector())
    return generate_latest(shown) + generate_latest(_counted())


def _counted() -> CollectorRegistry:
    """What processes counted: all that share a directory, or else this one."""
    if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        return REGISTRY
    together = CollectorRegistry()
    multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
    return together
