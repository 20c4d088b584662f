"""Workflows as large as they may be: they run, and what they cost grows with them and no faster."""

from contextlib import contextmanager
from time import perf_counter
from uuid import uuid4

import pytest
from django.db import connection, transaction

from taskharbor_django import chain, chord
from taskharbor_django.lifecycle import JobState, WorkflowState
from taskharbor_django.operations import callback, dependents, revive
from tests.operations import Statements
from tests.testapp.workflow_tasks import first, mark, plus, total
from tests.worker.conftest import drain

from . import counts_add_up, driver, end, finish, run, take, work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@contextmanager
def timed(record_property, name):
    began = perf_counter()
    yield
    record_property(name, round(perf_counter() - began, 2))


@pytest.fixture
def bound():
    """Let the connection hand parameters over apart from the statement."""
    connection.close()
    usual = connection.settings_dict
    connection.settings_dict = {
        **usual,
        "OPTIONS": {**usual["OPTIONS"], "server_side_binding": True},
    }
    yield
    connection.close()
    connection.settings_dict = usual


def chord_of(size):
    return chord([first.s(number) for number in range(size)], total.s())


@pytest.mark.parametrize("size", [100, 1_000, 10_000])
def test_a_chord_runs(size, record_property):
    part = chord_of(size)
    with timed(record_property, "submitted"):
        workflow = part.enqueue()
    with timed(record_property, "drained"):
        drain(threads=4)
    assert workflow.state == WorkflowState.DONE
    assert workflow.results == [sum(range(size))]
    assert workflow.refresh().open_jobs == 0


def test_a_chain_of_a_hundred_runs(record_property):
    workflow = chain(first.s(0), *(plus.s() for _ in range(99))).enqueue()
    with timed(record_property, "drained"):
        drain(threads=4)
    assert workflow.results == [99]
    counts_add_up()


def test_a_death_goes_down_however_deep(settings):
    settings.TASKHARBOR = {**settings.TASKHARBOR, "MAX_DEPTH": 1_100}
    workflow = chain(*(mark.si() for _ in range(1_100))).enqueue()
    end(workflow.jobs.first(), "dead")
    assert workflow.counts[JobState.DEAD] == 1_100
    assert workflow.resume().moved == 1
    assert workflow.counts[JobState.BLOCKED] == 1_099
    counts_add_up()


@pytest.mark.postgresql
@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize("ask", [dependents.lock, revive._failed, callback.enqueue_callbacks])
def test_as_many_may_wait_for_one_job_as_want_to(ask):
    """More than a statement can have parameters that are sent apart from it."""
    with transaction.atomic():
        assert not any((ask(driver(), {uuid4() for _ in range(66_000)}) or {}).values())


@pytest.mark.postgresql
def test_what_lies_below_is_found_in_as_many_steps_as_there_is():
    """Also in tables that were filled just now, of which the planner knows nothing."""
    members = [plus.s() for _ in range(1_000)]
    workflow = chain(first.s(0), chord(members, total.s())).enqueue()
    sql = dependents._below("default").format(roots="%s", through="blocked")
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE) {sql}", [workflow.jobs.first().pk])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Rows Removed by Join Filter" not in plan, plan


def test_a_batch_costs_the_same_statements_however_many_members_are_in_it(vendor):
    def cost(size):
        with Statements() as submitted:
            chord_of(size).enqueue()
        stored = len(submitted.verbs) if vendor == "postgresql" else 0  # others insert by hundreds
        outcomes = [run(each) for each in take(size)]
        with Statements() as settled:
            finish(outcomes)
        work()
        # Without set-based writes an UPDATE is prepared once and run for each row.
        verbs = [verb for verb in settled.verbs if vendor == "postgresql" or verb != "UPDATE"]
        return stored, len(verbs)

    cost(10)
    assert cost(50) == cost(400)
