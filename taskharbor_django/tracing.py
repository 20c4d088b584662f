"""
OpenTelemetry: a span where a job is enqueued and one for each run of it, in one trace or linked.

The context travels in the job's own row. Needs the extra `tracing`, and costs nothing until it is
installed; which exporter is used is the business of the project.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.core.exceptions import ImproperlyConfigured

from . import signals
from .context import JobContext, carry_through
from .operations.logs import fault
from .values import FailureUpdate, JobRecord, Outcome

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
except ImportError:
    raise ImproperlyConfigured(
        'Tracing needs OpenTelemetry: pip install "taskharbor-django[tracing]"'
    ) from None

logger = logging.getLogger(__name__)

SYSTEM = "taskharbor"

_running: WeakKeyDictionary[JobContext, tuple[Any, Any]] = WeakKeyDictionary()
_same_trace = True
_provider: Any = None


def install(*, tracer_provider: Any = None, same_trace: bool = True) -> None:
    """
    Make spans from now on in this process; call it in `AppConfig.ready`.

    Runs belong to the trace of the enqueue. With `same_trace=False` each begins its own, and the
    two are linked only.
    """
    global _same_trace, _provider
    _same_trace, _provider = same_trace, tracer_provider
    carry_through(_carry)
    signals.started.connect(_started, dispatch_uid="taskharbor.tracing")
    signals.stopped.connect(_stopped, dispatch_uid="taskharbor.tracing")


def _tracer() -> Any:
    return trace.get_tracer("taskharbor_django", tracer_provider=_provider)


def _carry(task: str, queue: str, job_id: UUID) -> dict[str, str] | None:
    """What the run of a job needs to find its enqueue; an exporter that fails stops no job."""
    try:
        return _sent(task, queue, job_id)
    except Exception as error:  # noqa: BLE001  whatever the exporter is
        fault(logger, error, "no trace of the enqueue of %s", task, job_id=str(job_id))
        return None


def _sent(task: str, queue: str, job_id: UUID) -> dict[str, str] | None:
    """A span for the enqueue, and its context; None when nobody traces."""
    span = _tracer().start_span(
        f"enqueue {task}",
        kind=trace.SpanKind.PRODUCER,
        attributes=_attributes("create", task, queue, job_id),
    )
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    span.end()
    return carrier or None


def _started(*, context: JobContext, **_: Any) -> None:
    job = context.reservation.job
    sent = propagate.extract(job.trace or {})
    origin = trace.get_current_span(sent).get_span_context()
    span = _tracer().start_span(
        f"run {job.task}",
        context=sent if _same_trace else contexts.Context(),
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(origin)] if origin.is_valid else [],
        attributes=_run_attributes(job, context),
    )
    token = contexts.attach(trace.set_span_in_context(span, sent))
    _running[context] = span, token


def _stopped(
    *, context: JobContext, outcome: Outcome, exception: BaseException | None, **_: Any
) -> None:
    if context not in _running:
        return  # installed in the midst of it
    span, token = _running.pop(context)
    contexts.detach(token)
    span.set_attribute("taskharbor.outcome", str(outcome.kind))
    if exception is not None and outcome.update is not None:
        span.add_event("exception", _exception(outcome.update))
        span.set_status(trace.StatusCode.ERROR, outcome.update.last_error.partition("\n")[0])
    span.end()


def _exception(update: FailureUpdate) -> dict[str, str]:
    """
    What was raised, in the words of OpenTelemetry's conventions and with secrets masked.

    The exception itself would be exported with a text and a traceback that nothing has looked at.
    """
    return {
        "exception.type": update.error_class,
        "exception.message": update.last_error.removeprefix(update.error_class).removeprefix(": "),
        "exception.stacktrace": update.traceback,
    }


def _run_attributes(job: JobRecord, context: JobContext) -> dict[str, Any]:
    return _attributes("process", job.task, job.queue, job.id) | {
        "taskharbor.attempt": context.attempt,
        "taskharbor.correlation_id": context.correlation_id,
    }


def _attributes(operation: str, task: str, queue: str, job_id: UUID) -> dict[str, Any]:
    """In the words of OpenTelemetry's conventions for messaging."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "messaging.message.id": str(job_id),
        "taskharbor.task": task,
    }
