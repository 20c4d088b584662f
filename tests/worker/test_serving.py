"""A child whose worker is gone settles its job itself, as far as the database lets it."""

from uuid import uuid4

import pytest
from django.db import OperationalError

from taskharbor_django.clock import LocalClock
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.values import Outcome
from taskharbor_django.worker import serving
from taskharbor_django.worker.child_run import Run
from taskharbor_django.worker.holdings import Running
from taskharbor_django.worker.messages import ChannelClosed
from taskharbor_django.worker.serving import Serving
from tests.operations import hold
from tests.testapp.worker_tasks import stepwise


class ClosedChannel:
    def send(self, _message):
        raise ChannelClosed


@pytest.mark.django_db(transaction=True)
def test_a_handler_that_asks_a_worker_that_is_gone_gives_its_job_back():
    reservation = hold(stepwise.enqueue(2))
    # Nobody has told the run yet: that the channel is closed is seen by the handler first.
    run = Run(ClosedChannel(), 1, Running(reservation), "default")
    clock = LocalClock()
    outcome = run.call_safely(clock.now(), clock)
    assert outcome.kind == OutcomeKind.RELEASE


def test_a_database_that_is_away_costs_an_orphan_one_line_and_no_traceback(db, monkeypatch, caplog):
    def refuse(*_, **__):
        raise OperationalError("connection failed:\n  nobody listens")

    monkeypatch.setattr(serving, "settle", refuse)
    monkeypatch.setattr(serving, "disconnect", lambda _: None)
    monkeypatch.setattr(serving.connections, "clean", lambda: None)
    outcome = Outcome(job_id=uuid4(), token=uuid4(), kind=OutcomeKind.RELEASE)
    Serving(channel=None, using="default")._settle(outcome)
    told = caplog.records[-1]
    assert told.getMessage() == (
        f"job {outcome.job_id} could not be settled; its lease will expire: "
        "connection failed: nobody listens"
    )
    assert told.exc_info is None
