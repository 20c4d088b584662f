"""Spans of enqueues and runs, and what links them."""

from contextlib import suppress

import pytest

from taskharbor_django import context, signals, task
from taskharbor_django.testing import drain as drain_here
from tests.testapp import worker_tasks
from tests.testapp.tasks import aadd, add, stumble, write
from tests.worker.conftest import drain

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from taskharbor_django import tracing

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def traced(monkeypatch):
    """Install tracing for the length of the test; return what installs, and the spans."""
    monkeypatch.setattr(context, "_carry", None)
    for signal in (signals.started, signals.stopped):
        monkeypatch.setattr(signal, "receivers", list(signal.receivers))
        signal.sender_receivers_cache.clear()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def install(**options):
        tracing.install(tracer_provider=provider, **options)
        return provider.get_tracer("tests")

    install.spans = exporter.get_finished_spans
    return install


def named(traced):
    return {span.name: span for span in traced.spans()}


@task(name="tests.traced.child")
def child():
    with trace.get_tracer("tests", tracer_provider=tracing._provider).start_as_current_span(
        "inside"
    ):
        return add.enqueue(1).refresh().trace is not None


@task(name="tests.traced.blurt", max_attempts=1)
def blurt():
    given = "hunter2"
    raise ValueError(f"password={given} was refused") from KeyError(f"password={given}")


@task(name="tests.traced.say_nothing", max_attempts=1)
def say_nothing():
    raise KeyError


@pytest.mark.parametrize("runs", [drain, drain_here], ids=["worker", "kit"])
def test_enqueue_and_run_are_one_trace(traced, runs):
    tracer = traced()
    with tracer.start_as_current_span("request") as request:
        job = write.enqueue("x")
    runs()
    spans = named(traced)
    sent, ran = spans["enqueue testapp.write"], spans["run testapp.write"]
    assert sent.context.trace_id == ran.context.trace_id == request.get_span_context().trace_id
    assert sent.parent.span_id == request.get_span_context().span_id
    assert ran.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in ran.links] == [sent.context.span_id]
    assert (sent.kind, ran.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert sent.attributes["messaging.message.id"] == str(job.id)
    assert ran.attributes["taskharbor.outcome"] == "ack"
    assert ran.attributes["taskharbor.attempt"] == 1
    assert set(job.refresh().trace) == {"traceparent"}


def test_runs_may_have_traces_of_their_own_that_are_linked(traced):
    traced(same_trace=False)
    write.enqueue("x")
    drain()
    spans = named(traced)
    sent, ran = spans["enqueue testapp.write"], spans["run testapp.write"]
    assert ran.parent is None
    assert ran.context.trace_id != sent.context.trace_id
    assert [link.context.trace_id for link in ran.links] == [sent.context.trace_id]


def test_what_a_handler_does_is_inside_its_run(traced):
    traced()
    child.enqueue()
    drain()
    spans = named(traced)
    assert spans["inside"].parent.span_id == spans["run tests.traced.child"].context.span_id
    inner = spans[f"enqueue {add.name}"]
    assert inner.parent.span_id == spans["inside"].context.span_id


def test_a_coroutine_is_traced_and_leaves_nothing_behind(traced):
    traced()
    jobs = [aadd.enqueue(number) for number in range(5)]
    drain()
    assert {job.state for job in jobs} == {"done"}
    ran = [span for span in traced.spans() if span.name == f"run {aadd.name}"]
    assert len({span.context.trace_id for span in ran}) == 5
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_failure_is_recorded(traced):
    traced()
    stumble.enqueue("oh")
    drain()
    # The first of two, where a short pause let the second run come into the same drain.
    ran = next(span for span in traced.spans() if span.name == f"run {stumble.name}")
    assert (ran.status.status_code, ran.status.description) == (
        trace.StatusCode.ERROR,
        "taskharbor_django.exceptions.TemporaryError: oh",
    )
    (event,) = ran.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "taskharbor_django.exceptions.TemporaryError"
    assert event.attributes["exception.message"] == "oh"
    assert "in stumble" in event.attributes["exception.stacktrace"]
    assert ran.attributes["taskharbor.outcome"] == "retry"


@pytest.mark.parametrize("runs", [drain, drain_here], ids=["worker", "kit"])
def test_nothing_that_is_exported_holds_a_secret(traced, runs):
    traced()
    blurt.enqueue()
    with suppress(ValueError):  # which the kit hands on
        runs()
    ran = named(traced)[f"run {blurt.name}"]
    assert "hunter2" not in ran.to_json(indent=None)
    (event,) = ran.events
    assert event.attributes["exception.type"] == "ValueError"
    assert event.attributes["exception.message"] == "password=•••••• was refused"
    stack = event.attributes["exception.stacktrace"].splitlines()
    assert stack[0] == "KeyError: 'password=••••••'"  # its cause
    assert stack[-1] == "ValueError: password=•••••• was refused"
    assert any(line.endswith("in blurt") for line in stack)


def test_a_failure_without_a_message_has_an_empty_one(traced):
    traced()
    say_nothing.enqueue()
    drain()
    (event,) = named(traced)[f"run {say_nothing.name}"].events
    assert event.attributes["exception.type"] == "KeyError"
    assert event.attributes["exception.message"] == ""


def test_jobs_that_carry_nothing_begin_a_trace(traced):
    job = add.enqueue(1)
    traced()
    drain()
    ran = named(traced)[f"run {add.name}"]
    assert (ran.parent, ran.links) == (None, ())
    assert job.refresh().trace is None


def test_without_a_provider_nothing_is_stored(monkeypatch, traced):
    tracing.install()
    assert add.enqueue(1).refresh().trace is None
    drain()


def test_tracing_that_fails_stops_no_job(traced, monkeypatch, caplog):
    traced()
    monkeypatch.setattr(tracing, "_tracer", lambda: 1 / 0)
    job = add.enqueue(1)
    drain()
    assert (job.state, job.refresh().trace) == ("done", None)
    assert f"no trace of the enqueue of {add.name}" in caplog.text


def test_many_jobs_of_one_call_carry_its_trace(traced):
    tracer = traced()
    with tracer.start_as_current_span("request") as request:
        add.enqueue_many([(1,), (2,)])
    drain()
    ran = [span for span in traced.spans() if span.name == f"run {add.name}"]
    assert {span.context.trace_id for span in ran} == {request.get_span_context().trace_id}


def test_a_run_that_began_before_tracing_was_installed_ends_without_it(traced):
    job = worker_tasks.session.enqueue()
    signals.stopped.connect(tracing._stopped, dispatch_uid="taskharbor.tracing")
    drain()
    assert job.state == "done"
