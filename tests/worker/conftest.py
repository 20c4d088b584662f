"""Reservations and outcomes without a database, and a driver that does what a test says."""

import contextlib
import logging
import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connections

from taskharbor_django.clock import FixedClock, steady
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.operations import decide
from taskharbor_django.values import JobRecord, Lease, Reservation
from taskharbor_django.worker.holdings import Holdings
from taskharbor_django.worker.options import WorkerOptions
from taskharbor_django.worker.worker import Worker

NOW = datetime(2031, 5, 17, 9, 30, tzinfo=UTC)
LEASE = timedelta(seconds=30)


def reservation(token=None, **fields):
    """A job as a worker has it; one execution has been counted."""
    record = JobRecord(**{"task": "shop.report", "executions": 1, "max_attempts": 3, **fields})
    return Reservation(record, Lease(token or uuid4(), NOW + LEASE, version=1))


def ack(held):
    return decide.outcome(OutcomeKind.ACK, held.reservation)


class ScriptedDriver:
    """Answers each settle with the next thing from a list, an exception or a function."""

    using = "default"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.batches = []

    def settle(self, outcomes, *, now):
        self.batches.append(list(outcomes))
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, BaseException):
            raise answer
        return answer(outcomes) if callable(answer) else answer


@pytest.fixture
def clock():
    return FixedClock(NOW)


@pytest.fixture
def holdings():
    return Holdings()


@pytest.fixture
def hold(holdings):
    """Put reservations into the holdings and return them as running."""

    def take(*reservations, valid_for=30.0):
        return holdings.add(reservations, steady() + valid_for)

    return take


@contextlib.contextmanager
def working(**options):
    """A worker in a thread of this process, stopped and joined at the end of the block."""
    quick = {"poll": timedelta(seconds=0.05), "threads": 4, "grace": timedelta(seconds=10)}
    worker = Worker(WorkerOptions(**quick | options))

    def run():
        try:
            worker.run()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="worker-under-test")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


def drain(**options):
    """Run a worker until nothing is left to do."""
    with working(burst=True, **options) as worker:
        while not worker.stopping:
            threading.Event().wait(0.01)
    return worker


@pytest.fixture
def eventually():
    """Look again and again until a condition holds; fail when it does not within the time."""

    def wait(condition, seconds=20):
        until = steady() + seconds
        while not (found := condition()):
            assert steady() < until, "it did not happen in time"
            threading.Event().wait(0.02)
        return found

    return wait


@pytest.fixture
def broken_log():
    """Let whatever a module of the worker logs inside the block raise, as by a careless filter."""

    def careless(_record):
        raise ZeroDivisionError

    @contextlib.contextmanager
    def broken(module):
        log = logging.getLogger(f"taskharbor_django.worker.{module}")
        log.addFilter(careless)
        try:
            yield
        finally:
            log.removeFilter(careless)

    return broken
