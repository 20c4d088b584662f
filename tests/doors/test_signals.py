"""One signal for each arrow, after its row is durable, and no work for signals nobody hears."""

import threading
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection, transaction

from taskharbor_django import (
    JobHandle,
    Snooze,
    cancel,
    chain,
    discard,
    registry,
    requeue,
    run_now,
    signals,
    task,
    update,
)
from taskharbor_django.drivers import FailureUpdate, JobRecord
from taskharbor_django.lifecycle import OutcomeKind, Verb
from taskharbor_django.models import Job
from taskharbor_django.operations import decide, telling
from taskharbor_django.operations.expire import expire
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.operations.telling import Settled, tell_settled
from taskharbor_django.signals import SIGNALS
from taskharbor_django.worker import announcer, errands, trouble
from tests.operations import Statements, hold, undone
from tests.testapp import worker_tasks, workflow_tasks
from tests.testapp.tasks import add, stumble
from tests.worker.conftest import drain, working

DIED_WITH = ("advance", "dead")

pytestmark = pytest.mark.django_db(transaction=True)


@task(name="tests.signals.snooze")
def snooze():
    raise Snooze(60)


class Heard(list):
    """What is told of, as (verb, state), in its order; `moves` has sender and move of each."""

    def __init__(self):
        self.moves = []

    def hear(self, sender, move, **_):
        self.append((str(move.verb), move.state))
        self.moves.append((sender, move))


@pytest.fixture
def heard():
    heard = Heard()
    for signal in SIGNALS.values():
        signal.connect(heard.hear)
    yield heard
    for signal in SIGNALS.values():
        signal.disconnect(heard.hear)


@pytest.fixture
def connected():
    """Connect a receiver for the length of the test."""
    made = []

    def connect(signal, receiver):
        made.append((signal, receiver))
        signal.connect(receiver)

    yield connect
    for signal, receiver in made:
        signal.disconnect(receiver)


def test_every_arrow_has_a_signal_and_no_two_share_one():
    assert set(SIGNALS) == set(Verb)
    assert len({id(signal) for signal in SIGNALS.values()}) == len(Verb)


def test_the_walk_of_a_job_is_told_of(heard):
    job = add.enqueue(1, 2)
    drain()
    assert heard == [("enqueue", "ready"), ("reserve", "inflight"), ("ack", "done")]
    assert {(sender, move.job_id, move.queue) for sender, move in heard.moves} == {
        (registry.get(add.name), job.id, "default")
    }
    *_, (_, acked) = heard.moves
    assert acked.attempt == 1
    assert acked.worker == heard.moves[1][1].worker != ""
    assert acked.started_at <= acked.finished_at


def test_a_failing_job_is_told_of_with_its_exception(heard):
    stumble.enqueue("oh")
    drain()
    # On a slow machine it may be tried again before the worker has looked around.
    retried = next(move for _, move in heard.moves if move.verb == "retry")
    assert (retried.verb, retried.state, retried.category) == ("retry", "scheduled", "temporary")
    assert (str(retried.exception), "oh" in retried.error) == ("oh", True)
    assert retried.run_at > retried.finished_at
    buried = worker_tasks.bury.enqueue()
    drain()
    failed = next(it for _, it in heard.moves if it.job_id == buried.id and it.verb == "fail")
    assert (failed.verb, failed.state, failed.reason, failed.code) == (
        "fail",
        "dead",
        "permanent",
        "never",
    )


def test_an_atomic_job_and_an_isolated_one_are_told_of(heard):
    worker_tasks.book.enqueue("a", 1)
    drain()
    worker_tasks.bury.enqueue()
    drain(isolate_all=True)
    ends = [(move.verb, move.exception) for _, move in heard.moves if move.attempt and move.error]
    assert ("ack", "done") in heard
    assert ends == [("fail", None)]  # the exception itself was in another process


def test_what_people_do_is_told_of(heard):
    one = add.using(delay=60).enqueue(1)
    update([one.id], priority=5)
    run_now([one.id])
    cancel([one.id])
    two = worker_tasks.bury.enqueue()
    drain()
    del heard[:-1]
    requeue([two.id])
    drain()
    discard([two.id])
    assert heard == [
        ("fail", "dead"),
        ("requeue", "ready"),
        ("reserve", "inflight"),
        ("fail", "dead"),
        ("discard", "cancelled"),
    ]
    assert [(str(move.verb), move.state) for _, move in heard.moves][:4] == [
        ("enqueue", "scheduled"),
        ("reschedule", "scheduled"),
        ("reschedule", "ready"),
        ("cancel", "cancelled"),
    ]


def test_a_due_job_is_promoted(heard):
    add.using(delay=0.01).enqueue(1)
    with working():
        until(lambda: ("ack", "done") in heard)
    assert ("promote", "ready") in heard


def until(condition):
    pause = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("it did not happen in time")


@pytest.mark.parametrize(
    ("most", "asked", "told"),
    [(None, False, "ready"), (1, False, "dead"), (1, True, "cancelled")],
)
def test_a_lost_lease_is_told_of(heard, most, asked, told):
    job = add.enqueue(1)
    hold(job, lease_for=timedelta(microseconds=1))
    if asked:
        job.cancel()
    driver = driver_for("default")
    driver.reserve("other", now=driver.now(), lease_for=timedelta(seconds=9), max_lease_losses=most)
    assert heard[-1] == ("reclaim", told)
    assert heard.moves[-1][1].reason == ("lease_lost" if told == "dead" else "")


def test_a_lifetime_that_is_over_is_told_of(heard):
    job = add.enqueue(1)
    driver = driver_for("default")
    assert list(expire(driver, now=driver.now() + timedelta(days=8))) == [1]
    assert (heard[-1], heard.moves[-1][1].reason) == (("expire", "dead"), "lifetime")
    assert heard.moves[-1][1].job_id == job.id


def test_dependents_are_told_of(heard):
    chain(add.s(1), add.s(2)).enqueue()
    drain()
    assert ("advance", "ready") in heard
    assert heard.count(("ack", "done")) == 2
    flow = chain(workflow_tasks.boom.s(), workflow_tasks.mark.si()).enqueue()
    drain()
    _, died = next(
        pair for pair in heard.moves if pair[1].state == "dead" and pair[1].verb == "advance"
    )
    assert died.reason == "dependency"
    first, last = flow.jobs.order_by("seq").values_list("pk", flat=True)
    requeue([first])
    assert sorted(heard[-2:]) == [("requeue", "blocked"), ("requeue", "ready")]
    drain()
    discard([first])
    assert heard[-2:] == [("discard", "cancelled")] * 2
    assert {move.job_id for _, move in heard.moves[-2:]} == {first, last}


def test_a_released_job_is_told_of_and_one_that_was_to_stop_is_cancelled(heard):
    snooze.enqueue()
    drain()
    _, released = heard.moves[-1]
    assert (released.verb, released.state) == ("release", "scheduled")
    assert released.run_at is not None
    Job.objects.all().delete()
    worker_tasks.reset()
    job = worker_tasks.hold.enqueue("signals")
    with working(grace=timedelta(seconds=1)) as worker:
        until(lambda: job.state == "inflight" and worker_tasks.seen["signals"])
        Job.objects.filter(pk=job.id).update(cancel_requested_at=job.refresh().created_at)
        worker.stop()
    assert heard[-1] == ("cancel", "cancelled")
    worker_tasks.reset()


def test_what_is_given_back_at_once_is_ready(heard):
    held = hold(add.enqueue(1))
    outcome = decide.outcome(OutcomeKind.RELEASE, held)
    driver = driver_for("default")
    tell_settled(driver, [Settled(held, outcome)], now=driver.now())
    assert heard[-1] == ("release", "ready")


@pytest.mark.parametrize(("late", "state"), [(0, "ready"), (1, "ready"), (-1, "scheduled")])
def test_what_is_told_of_a_retry_is_what_was_stored(heard, late, state):
    """It may be due by the time it is settled: a database was away, or there is no pause."""
    held, driver = hold(job := add.enqueue(1)), driver_for("default")
    now = driver.now()
    update = FailureUpdate(attempts=1, run_at=now - timedelta(seconds=late))
    outcome = decide.outcome(OutcomeKind.RETRY, held, update=update)
    assert driver.settle([outcome], now=now) == []
    tell_settled(driver, [Settled(held, outcome)], now=now)
    assert heard[-1] == ("retry", state)
    assert job.state == state


def test_outcomes_that_nobody_wants_to_hear_of_are_not_even_looked_at(monkeypatch):
    for signal in SIGNALS.values():
        monkeypatch.setattr(signal, "receivers", [])
    held, driver = hold(add.enqueue(1)), driver_for("default")
    told, now = [Settled(held, decide.outcome(OutcomeKind.RETRY, held))], driver.now()
    with Statements() as asked:
        tell_settled(driver, told, now=now)
    assert asked.verbs == []


def test_many_are_told_of_one_by_one(heard):
    add.using(idempotency_key="k").enqueue(1)
    add.using(idempotency_key="k").enqueue(1)
    assert len(heard) == 1
    add.enqueue_many([(number,) for number in range(5)])
    assert heard == [("enqueue", "ready")] * 6


def test_nothing_is_told_of_what_was_rolled_back(heard):
    kept = add.enqueue(1)
    with undone():
        add.enqueue(1)
        add.enqueue_many([(1,)])
        cancel([kept.id])
    assert heard == [("enqueue", "ready")]


def test_the_row_is_durable_when_it_is_told_of(connected):
    states = []

    def look(sender, move, **_):
        assert not connection.in_atomic_block
        states.append(JobHandle.of(move.job_id).state)

    connected(signals.enqueued, look)
    connected(signals.acked, look)
    with transaction.atomic():
        add.enqueue(1)
        assert states == []
    drain()
    assert states == ["ready", "done"]


def test_who_manages_transactions_by_hand_is_not_disturbed(heard):
    transaction.set_autocommit(False)
    try:
        add.enqueue(1)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert heard == []
    assert Job.objects.count() == 1


def test_a_receiver_that_fails_changes_nothing(heard, connected, caplog):
    def refuse(sender, **_):
        raise RuntimeError("no")

    for signal in (*SIGNALS.values(), signals.started, signals.stopped):
        connected(signal, refuse)
    job = add.enqueue(1, 2)
    drain()
    assert (job.state, job.result) == ("done", 3)
    assert len(heard) == 3
    assert any(record.name == "django.dispatch" for record in caplog.records)


def test_a_receiver_may_listen_to_one_task_only(connected):
    told = []
    receiver = partial(lambda **facts: told.append(facts["move"].task))
    signals.enqueued.connect(receiver, sender=registry.get(add.name))
    try:
        add.enqueue(1)
        stumble.enqueue()
        driver_for("default").enqueue(JobRecord(task="unknown"))
    finally:
        signals.enqueued.disconnect(receiver, sender=registry.get(add.name))
    assert told == [add.name]


def test_nobody_pays_for_a_signal_that_nobody_hears(connected):
    silent = Statements()
    with silent:
        add.enqueue(1)
    assert silent.verbs == ["INSERT"]
    connected(signals.enqueued, lambda **_: None)
    with Statements() as listened:
        add.enqueue(1)
    assert listened.verbs == ["INSERT"]


def test_no_thread_is_started_before_somebody_listens(monkeypatch):
    for signal in SIGNALS.values():
        monkeypatch.setattr(signal, "receivers", [])
    with working():
        add.enqueue(1).wait(20)
        assert "taskharbor-announcer" not in [it.name for it in threading.enumerate()]


def test_started_and_stopped_are_sent_where_the_handler_runs(connected):
    told = []

    def begin(context, **_):
        told.append(("started", threading.current_thread().name, context.attempt))

    def end(context, outcome, exception, **_):
        told.append(("stopped", threading.current_thread().name, outcome.kind, exception))

    connected(signals.started, begin)
    connected(signals.stopped, end)
    stumble.enqueue("oh")
    drain()
    (_, name, attempt), (_, same, kind, exception) = told
    assert name.startswith("taskharbor-")
    assert (name, attempt, kind, str(exception)) == (same, 1, "retry", "oh")


def test_a_coroutine_is_no_receiver():
    async def receiver(**_): ...

    with pytest.raises(TypeError, match="plain function"):
        signals.acked.connect(receiver)


@pytest.fixture
def line():
    """An announcer whose thread has something to do until the gate is open."""
    line = announcer.Announcer(driver_for("default"), "w")
    busy, line.gate = threading.Event(), threading.Event()

    def first():
        busy.set()
        line.gate.wait(30)

    line._put(first, 1)
    assert busy.wait(30)
    yield line
    line.gate.set()


def test_receivers_that_are_too_slow_are_left_out_and_said_so(line, monkeypatch, caplog):
    monkeypatch.setattr(errands, "MOST_WAITING", 21)
    sent = []
    for number in range(5):
        line._put(partial(sent.append, number), 10)
    line.gate.set()
    until(lambda: "receivers were not called for 30 moves" in caplog.text)
    line.close(30)
    assert sent == [0, 1]
    assert caplog.text.count("receivers of signals are too slow") == 1


def test_what_waits_is_counted_by_its_moves_and_a_large_one_alone_is_taken(monkeypatch):
    monkeypatch.setattr(errands, "MOST_WAITING", 10)
    line, sent = announcer.Announcer(driver_for("default"), "w"), []
    line._put(partial(sent.append, "large"), 500)
    line.close(30)
    assert sent == ["large"]


def test_a_receiver_that_does_not_return_does_not_keep_a_worker_from_ending(line):
    line._put(lambda: None, 1)
    began = time.monotonic()
    line.close(0.05)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_signals_that_cannot_be_sent_do_not_end_the_thread(caplog, error):
    def fail():
        raise error

    line, told = announcer.Announcer(driver_for("default"), "w"), []
    line._put(fail, 1)
    line._put(partial(told.append, "after it"), 1)
    line.close(30)
    assert told == ["after it"]
    assert "signals could not be sent" in caplog.text
    announcer.Announcer(driver_for("default"), "w").close(30)


@pytest.fixture
def away(monkeypatch):
    """How often the database is away when it is asked what became of jobs."""
    monkeypatch.setattr(trouble, "FIRST_PAUSE", 0.01)
    away = SimpleNamespace(times=0, asked=threading.Event())

    def moves_of(*args, **kwargs):
        if away.times:
            away.times -= 1
            away.asked.set()
            raise OperationalError("the server closed the connection")
        return telling.moves_of(*args, **kwargs)

    monkeypatch.setattr(announcer, "moves_of", moves_of)
    return away


def retried():
    """A job that was given back, as the worker knows it."""
    held = hold(add.enqueue(1))
    update = FailureUpdate(attempts=1, run_at=driver_for("default").now())
    running = SimpleNamespace(reservation=held, error=None)
    return running, decide.outcome(OutcomeKind.RETRY, held, update=update)


def test_a_database_that_is_away_keeps_no_signal_from_being_sent(heard, away, caplog):
    caplog.set_level("INFO")
    away.times, line = 3, announcer.Announcer(driver_for("default"), "w")
    line.settled([retried()], now=driver_for("default").now())
    until(lambda: heard and heard[-1] == ("retry", "ready"))
    line.close(30)
    told = [each.getMessage() for each in caplog.records if "signals:" in each.getMessage()]
    assert [text.partition(", ")[0] for text in told] == [
        "signals: the database cannot be used",
        "signals: the database is back",
    ]


def test_a_worker_that_ends_does_not_wait_for_a_database_to_send_signals(heard, away, caplog):
    away.times, line = 10**9, announcer.Announcer(driver_for("default"), "w")
    line.settled([retried()], now=driver_for("default").now())
    assert away.asked.wait(30)
    line.close(30)
    assert not any(verb == "retry" for verb, _ in heard)
    assert "receivers were not called for 1 moves" in caplog.text
