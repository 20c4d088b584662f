"""
What happens to jobs, as signals: one for each arrow of the lifecycle, and two around a run.

A receiver of an arrow is called with `move`, once that move is committed; what it raises is logged
and changes nothing. `sender` is the registered task, None when nobody here knows it. The two around
a run are sent in the thread, and the context, that runs the handler.

Nothing is made for a signal that nobody listens to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction
from django.dispatch import Signal

from .lifecycle import JobState, Verb
from .tasks import Task, registry


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One move of one job; what a verb knows nothing of is empty."""

    verb: Verb
    job_id: UUID
    task: str
    queue: str
    using: str
    state: str
    """the state it moved to"""
    attempt: int = 0
    """1 for the first execution"""
    worker: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    run_at: datetime | None = None
    reason: str = ""
    """why it is dead"""
    category: str = ""
    code: str = ""
    error: str = ""
    exception: BaseException | None = None
    """what the handler raised, when that was in this process"""


class JobSignal(Signal):
    """A signal about jobs; its receivers are plain functions."""

    def __init__(self, meaning: str, *facts: str) -> None:
        super().__init__()
        self.meaning = meaning
        self.facts = facts

    def connect(self, receiver: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call the receiver from now on."""
        if iscoroutinefunction(receiver):
            raise TypeError("a receiver of job signals is a plain function; enqueue a task in it")
        super().connect(receiver, *args, **kwargs)

    @property
    def wanted(self) -> bool:
        return bool(self.receivers)


# Around a run, in the thread and context of the handler; these two are no arrows.
started = JobSignal("A handler is about to be called.", "context")
stopped = JobSignal(
    "A handler has returned or raised; its outcome is not stored yet.",
    "context",
    "outcome",
    "exception",
)

_RUN = ("attempt", "worker", "started_at", "finished_at")
_FAILURE = ("category", "code", "error", "exception")

# Arrows: each is sent with `move`; named are the facts that it has beside those of every move.
enqueued = JobSignal("A job was stored, in the state that was asked for.")
advanced = JobSignal("What the job waited for has ended: it may run, or ends too.", "reason")
promoted = JobSignal("The time of a scheduled job has come.")
rescheduled = JobSignal("A waiting job was changed by `update` or `run_now`.")
reserved = JobSignal("A worker has leased the job.", "attempt", "worker")
acked = JobSignal("The handler has returned.", *_RUN)
retried = JobSignal("An attempt has failed, and there will be another.", *_RUN, "run_at", *_FAILURE)
failed = JobSignal("An attempt has failed, and the job is dead.", *_RUN, "reason", *_FAILURE)
released = JobSignal("The worker gave the job back unharmed.", "attempt", "worker", "run_at")
reclaimed = JobSignal("The lease of a running job was lost.", "reason", "error")
cancelled = JobSignal("The job was cancelled; while it ran, if there is an attempt.", *_RUN)
expired = JobSignal("The lifetime of an open job is over.", "reason")
buried = JobSignal("An open job was buried by hand.", "reason")
requeued = JobSignal("A dead job lives again.")
discarded = JobSignal("A dead job was given up.")

SIGNALS: dict[Verb, JobSignal] = {
    Verb.ENQUEUE: enqueued,
    Verb.ADVANCE: advanced,
    Verb.PROMOTE: promoted,
    Verb.RESCHEDULE: rescheduled,
    Verb.RESERVE: reserved,
    Verb.ACK: acked,
    Verb.RETRY: retried,
    Verb.FAIL: failed,
    Verb.RELEASE: released,
    Verb.RECLAIM: reclaimed,
    Verb.CANCEL: cancelled,
    Verb.EXPIRE: expired,
    Verb.BURY: buried,
    Verb.REQUEUE: requeued,
    Verb.DISCARD: discarded,
}


class Moved(Protocol):
    """What a verb knows of a job that it moves."""

    @property
    def id(self) -> UUID: ...
    @property
    def task(self) -> str: ...
    @property
    def queue(self) -> str: ...


def wanted(verb: Verb) -> bool:
    return SIGNALS[verb].wanted


def tell_on_commit(
    verb: Verb,
    using: str,
    jobs: Iterable[Moved],
    state: str | Callable[[Any], str],
    **facts: Any,
) -> None:
    """Tell of moves that are being made in this transaction, once it is committed."""
    if not wanted(verb):
        return
    moves = [
        Move(
            verb=verb,
            job_id=job.id,
            task=job.task,
            queue=job.queue,
            using=using,
            state=state if isinstance(state, str) else state(job),
            **facts,
        )
        for job in jobs
    ]
    if moves:
        on_commit(using, lambda: deliver(moves))


def on_commit(using: str, function: Callable[[], object]) -> None:
    """Call it after the transaction; who manages those by hand gets no call, as from Django."""
    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        transaction.on_commit(function, using=using, robust=True)


def as_asked(record: Any) -> str:
    """The state that a new job was asked to be in."""
    if record.dependencies_left:
        return JobState.BLOCKED.value
    later = record.run_at is not None or record.delay is not None
    return (JobState.SCHEDULED if later else JobState.READY).value


# -- sending -----------------------------------------------------------------------------------

_thread = threading.local()


def deliver_through(put: Callable[[Sequence[Move]], object]) -> None:
    """Hand what this thread has to tell to another one: receivers must not hold it up."""
    _thread.put = put


def deliver(moves: Sequence[Move]) -> None:
    getattr(_thread, "put", tell)(moves)


def tell(moves: Iterable[Move]) -> None:
    """Call the receivers; Django logs what they raise."""
    for move in moves:
        SIGNALS[move.verb].send_robust(sender=_sender(move.task), move=move)


def tell_started(task: Task[Any, Any], context: Any) -> None:
    started.send_robust(sender=_sender(task.name), context=context)


def tell_stopped(
    task: Task[Any, Any], context: Any, outcome: Any, exception: BaseException | None
) -> None:
    stopped.send_robust(
        sender=_sender(task.name), context=context, outcome=outcome, exception=exception
    )


def _sender(name: str) -> Task[Any, Any] | None:
    return registry.get(name) if name in registry else None
