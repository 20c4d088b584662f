"""A workflow that is cancelled while it grows: nothing of it is left to run."""

from functools import partial

import pytest
from django.db import transaction

from taskharbor_django import chain, chord, graph, group
from taskharbor_django.exceptions import CancelRequested, LeaseMismatch
from taskharbor_django.failpoints import armed
from taskharbor_django.lifecycle import OutcomeKind, WorkflowState
from taskharbor_django.operations import Moved, batches, decide
from taskharbor_django.operations.additions import add
from taskharbor_django.worker import reports
from tests.testapp.workflow_tasks import collect, fan_out_atomic, first, mark

from . import counts_add_up, driver, hold, states, take
from .test_adding import running
from .test_races import with_row_locks

pytestmark = pytest.mark.django_db(transaction=True)

LOOKED = "workflow.looked"


@pytest.fixture
def held():
    """A running member of a chord, and the handle of its workflow."""
    workflow = chord([first.s(1)], collect.s()).enqueue()
    return workflow, *take(1)


class TestCancel:
    @pytest.mark.parametrize(
        ("force", "refusal"), [(False, CancelRequested), (True, LeaseMismatch)]
    )
    def test_finds_what_was_added_after_it_looked(self, session, held, force, refusal):
        workflow, reservation = held
        context = running(reservation)
        with session().stopped_at(LOOKED, partial(workflow.cancel, force=force)) as cancelling:
            added = context.add(group(first.s(7), first.s(8)))
        answer = cancelling.result(20)
        assert states(*added) == ["cancelled", "cancelled"]
        assert (answer.moved, answer.asked) == ((4, 0) if force else (3, 1))
        with pytest.raises(refusal):
            context.add(first.s(9))
        counts_add_up()

    def test_finds_what_an_atomic_task_added_with_its_ack(self, session):
        workflow = chord([fan_out_atomic.s(1)], collect.s()).enqueue()
        (reservation,) = take(1)
        with session().stopped_at(LOOKED, workflow.cancel) as cancelling:
            ack_and_add(reservation, first.s(7))
        cancelling.result(20)
        assert workflow.state == WorkflowState.CANCELLED
        assert [job.state for job in workflow.jobs] == ["done", "cancelled", "cancelled"]
        counts_add_up()

    def test_looks_as_often_as_what_was_added_adds(self, session, held):
        workflow, reservation = held
        other, added = session(), [running(reservation).add(first.s(0))]

        def grow():
            if len(added) < 4:
                (latest,) = other.run(hold, added[-1])
                added.append(other.run(running(latest).add, first.s(len(added))))

        with armed(LOOKED, grow):
            assert workflow.cancel(force=True).moved == 6
        assert states(*added) == ["cancelled"] * 4
        counts_add_up()

    @with_row_locks
    def test_in_a_transaction_of_the_caller_finds_it_too(self, session, held):
        workflow, reservation = held

        def cancel():
            with transaction.atomic():
                return workflow.cancel()

        with session().stopped_at(LOOKED, cancel) as cancelling:
            added = running(reservation).add(first.s(7))
        cancelling.result(20)
        assert states(added) == ["cancelled"]

    @with_row_locks
    def test_in_a_transaction_of_the_caller_lets_who_adds_wait_for_its_end(self, session, held):
        workflow, reservation = held
        other = session()
        with transaction.atomic():
            workflow.cancel()
            adding = other.start(running(reservation).add, first.s(7))
            other.until_waiting(adding)
        with pytest.raises(CancelRequested):
            adding.result(20)
        assert workflow.jobs.count() == 2


class TestInBatches:
    @pytest.fixture(autouse=True)
    def one_by_one(self, monkeypatch):
        monkeypatch.setattr(batches, "BATCH", 1)

    def test_each_is_cancelled_in_its_own_turn(self):
        workflow = chain(*(mark.si() for _ in range(10))).enqueue()
        assert workflow.cancel() == Moved(moved=10)
        counts_add_up()

    def test_nothing_is_released_on_the_way(self, session):
        nodes = {str(number): mark.si() for number in range(20)}
        part = graph({**nodes, "any": mark.si()}, after_any={"any": nodes})
        workflow = chain(first.s(1), chord(part, collect.s(), run_on_failure=True)).enqueue()
        take(1)
        other, released = session(), []

        def look():
            released.extend(other.run(lambda: list(workflow.jobs.filter(state="ready"))))

        with armed("cancel.locked", look):
            assert workflow.cancel(force=True) == Moved(moved=23)
        assert released == []
        counts_add_up()


def ack_and_add(reservation, part):
    """End an atomic task as its worker does, with what it adds."""
    asked = reports.addition_of(running(reservation), part, None)
    also = partial(add, driver(), reservation, asked)
    outcome = decide.outcome(OutcomeKind.ACK, reservation)
    with driver().atomic():
        assert driver().settle_waiting(outcome, now=driver().now(), also=also) == []
