"""A running job adds others to its workflow, and who waits for it waits for them."""

from functools import partial

import pytest

from taskharbor_django import Priority, cancel, chain, chord, group, task
from taskharbor_django.context import JobContext, current
from taskharbor_django.exceptions import (
    CancelRequested,
    InvalidJob,
    InvalidWorkflow,
    LeaseMismatch,
    TooDeep,
    TooManyJobs,
)
from taskharbor_django.lifecycle import WorkflowState
from taskharbor_django.models import Dependency, Job, Workflow
from taskharbor_django.operations import additions, decide, terms
from taskharbor_django.operations.additions import add
from taskharbor_django.worker import reports
from tests.process.harness import database_url
from tests.testapp.workflow_tasks import (
    afan_out,
    collect,
    fan_out,
    fan_out_and_stumble,
    fan_out_atomic,
    fan_out_isolated,
    first,
    mark,
    plus,
    total,
)
from tests.worker.conftest import drain

from . import counts_add_up, driver, end, finish, hold, letter, run, states, take, work
from .test_races import with_row_locks
from .test_waiting import AFTER_ANY, AFTER_END, dependent_of

pytestmark = pytest.mark.django_db(transaction=True)


@task(name="tests.adding.stopping", takes_context=True, atomic=True)
def stopping(ctx):
    ctx.add(first.s(7))
    cancel([ctx.job_id])


class Runtime:
    """Adds at once, in the test's own thread."""

    def add(self, context, part, key):
        asked = reports.addition_of(context, part, key)
        add(driver(), context.reservation, asked)
        return additions.handles(asked, "default")


def running(reservation):
    return JobContext(reservation, Runtime())


@pytest.fixture
def held():
    """A running member of a chord with two, and the handle of its workflow."""
    workflow = chord([first.s(1), first.s(2)], collect.s()).enqueue()
    (reservation,) = take(1)
    return workflow, reservation


class TestAdd:
    def test_a_chord_waits_for_what_was_added(self, held):
        workflow, reservation = held
        added = running(reservation).add(first.s(7))
        finish([run(reservation)])
        (other,) = take(1)
        finish([run(other)])
        assert workflow.jobs.get(task=collect.name).state == "blocked"
        assert states(added) == ["ready"]
        counts_add_up()
        work()
        assert workflow.results == [[1, 2, 7]]
        counts_add_up()

    def test_with_a_key_it_is_added_once_over_all_attempts(self, held):
        workflow, reservation = held
        context = running(reservation)
        added = context.add(first.s(7), key="a")
        assert context.add(first.s(7), key="a").id == added.id
        driver().release(
            reservation.job.id, reservation.lease.token, now=driver().now(), run_at=None
        )
        again = next(it for it in take(10) if it.job.id == reservation.job.id)
        assert running(again).add(first.s(7), key="a").id == added.id
        assert running(again).add(first.s(7), key="b").id != added.id
        assert workflow.jobs.count() == 5
        assert added.id.version == 4
        counts_add_up()

    def test_without_a_key_each_call_adds(self, held):
        workflow, reservation = held
        for _ in range(3):
            running(reservation).add(first.s(7))
        assert workflow.jobs.count() == 6

    def test_a_stale_worker_cannot_add(self, held):
        workflow, reservation = held
        context = running(reservation)
        driver().release(reservation.job.id, reservation.lease.token, now=driver().now())
        with pytest.raises(LeaseMismatch):
            context.add(first.s(7), key="a")
        take(10)
        with pytest.raises(LeaseMismatch):
            context.add(first.s(7), key="a")
        assert workflow.jobs.count() == 3
        counts_add_up()

    @pytest.mark.parametrize("key", [None, "a"])
    def test_a_job_that_was_asked_to_stop_cannot_add(self, held, key):
        """Who cancelled the workflow would find it grown afterwards."""
        workflow, reservation = held
        context = running(reservation)
        assert workflow.cancel().asked == 1
        with pytest.raises(CancelRequested, match="cannot add"):
            context.add(first.s(7), key=key)
        assert workflow.jobs.count() == 3
        counts_add_up()

    def test_whole_parts_can_be_added(self, held):
        workflow, reservation = held
        context = running(reservation)
        ends = context.add(group(first.s(7), chain(first.s(8), plus.s(1))), key="part")
        assert len(ends) == 2
        context.add(chord([first.s(1), first.s(2)], total.s()))
        finish([run(reservation)])
        work()
        assert workflow.results == [[1, 2, 7, 9, 3]]
        assert workflow.state == WorkflowState.DONE
        counts_add_up()

    def test_what_was_added_may_add(self, held):
        workflow, reservation = held
        running(reservation).add(first.s(7))
        finish([run(reservation)])
        for each in take(10):
            if each.job.id != reservation.job.id and each.job.payload == b"[[7],{}]":
                running(each).add(first.s(8))
            finish([run(each)])
        work()
        assert workflow.results == [[1, 2, 7, 8]]

    def test_an_added_job_that_dies_takes_the_finalizer_along(self, held):
        workflow, reservation = held
        added = running(reservation).add(first.s(7))
        finish([run(reservation)])
        end(added, "dead")
        finalizer = workflow.jobs.get(task=collect.name)
        assert finalizer.state == "dead"
        assert letter(finalizer).cause_id == added.id
        counts_add_up()

    def test_a_step_of_a_chain_waits_and_takes_one_result(self):
        workflow = chain(first.s(1), plus.s(10)).enqueue()
        (reservation,) = take(1)
        running(reservation).add(first.s(7))
        finish([run(reservation)])
        assert workflow.jobs.get(task=plus.name).state == "blocked"
        work()
        assert workflow.results == [11]

    def test_who_waits_for_the_end_waits_for_the_end_of_what_was_added(self):
        part = chord([first.s(1)], collect.s(), run_on_failure=True)
        workflow = part.enqueue()
        (reservation,) = take(1)
        added = running(reservation).add(first.s(7))
        finish([run(reservation)])
        end(added, "dead")
        work()
        assert workflow.jobs.get(task=collect.name).state == "done"
        assert workflow.results == [[1, "dead"]]

    def test_who_waits_for_the_first_of_several_does_not_wait_for_more(self):
        workflow = group(first.s(1)).enqueue()
        (job,) = workflow.jobs
        dependent = dependent_of(job, kind=AFTER_ANY)
        (reservation,) = take(1)
        running(reservation).add(first.s(7))
        finish([run(reservation)])
        assert states(dependent) == ["ready"]

    def test_who_has_run_before_is_left_alone(self):
        workflow = group(first.s(1)).enqueue()
        (job,) = workflow.jobs
        handle = dependent_of(job, kind=AFTER_END)
        (reservation,) = take(1)
        driver().fail(job.pk, reservation.lease.token, now=driver().now(), reason="permanent")
        assert states(handle) == ["ready"]
        workflow.resume()
        (again,) = hold(job)
        running(again).add(first.s(7))
        assert states(handle) == ["ready"]
        assert handle.refresh().dependencies_left == 0

    @pytest.mark.parametrize("key", [None, "a"])
    def test_what_ends_in_an_empty_group_is_waited_for_and_gives_no_result(self, held, key):
        workflow, reservation = held
        added = running(reservation).add(chain(first.s(7), group()), key=key)
        finish([run(reservation)])
        (last,) = hold(added)
        work()
        assert workflow.jobs.get(task=collect.name).state == "blocked"
        counts_add_up()
        finish([run(last)])
        work()
        assert workflow.results == [[1, 2]]
        counts_add_up()

    def test_one_that_only_has_to_end_only_has_to_end(self, held):
        workflow, reservation = held
        part = chord([first.s(7), first.s(8)], group(), run_on_failure=True)
        handles = running(reservation).add(part)
        end(handles[0], "cancelled")
        finish([run(reservation)])
        work()
        assert workflow.results == [[1, 2]]
        counts_add_up()

    def test_it_has_the_running_job_as_its_parent(self, held):
        workflow, reservation = held
        context = running(reservation)
        token = current.set(context)
        try:
            added = context.add(first.s(7))
        finally:
            current.reset(token)
        assert added.refresh().parent_id == reservation.job.id
        assert added.refresh().workflow_id == workflow.id

    def test_its_priority_goes_down_to_who_waits(self, held):
        workflow, reservation = held
        running(reservation).add(first.using(priority=Priority.HIGH).s(7))
        assert workflow.jobs.get(task=collect.name).priority == Priority.HIGH

    def test_its_priority_goes_down_to_the_last_who_waits(self):
        part = chord([first.s(1)], plus.s(), run_on_failure=True)
        workflow = chain(part, plus.s(), plus.s()).enqueue()
        (reservation,) = take(1)
        running(reservation).add(first.using(priority=Priority.HIGH).s(7))
        waiting = workflow.jobs.filter(state="blocked")
        assert [job.priority for job in waiting] == [Priority.HIGH] * 3

    def test_its_priority_is_nothing_to_who_does_not_wait_for_it(self, held):
        workflow, reservation = held
        other = dependent_of(workflow.jobs.first(), kind=AFTER_ANY)
        part = chain(first.using(priority=Priority.HIGH).s(7), plus.s())
        running(reservation).add(part)
        assert other.refresh().priority == Priority.NORMAL

    def test_who_waits_for_the_running_job_in_two_ways_waits_for_it_once(self):
        """Past empty groups, once until it is done and once until it has ended."""
        empty = group(group(), chord([group()], group(), run_on_failure=True))
        workflow = chain(first.s(1), empty, collect.s()).enqueue()
        (reservation,) = take(1)
        running(reservation).add(chord([first.s(7)], group(), run_on_failure=True))
        counts_add_up()
        finish([run(reservation)])
        work()
        assert workflow.state == WorkflowState.DONE


class TestRefusals:
    def test_outside_of_a_workflow_nothing_can_be_added(self):
        first.enqueue(1)
        (reservation,) = take(1)
        with pytest.raises(InvalidWorkflow, match="in no workflow"):
            running(reservation).add(first.s(7))
        assert Job.objects.count() == 1

    def test_what_waits_for_jobs_outside_cannot_be_added(self, held):
        _, reservation = held
        outside = first.enqueue(1)
        with pytest.raises(InvalidWorkflow, match="outside"):
            running(reservation).add(first.using(after=outside).s(7))

    @pytest.mark.parametrize("part", [None, "text", first, [first.s(7)]])
    def test_what_is_no_part_cannot_be_added(self, held, part):
        with pytest.raises(InvalidWorkflow, match="cannot be a step"):
            running(held[1]).add(part)

    def test_what_is_kept_in_another_database_cannot_be_added(self, held, monkeypatch):
        homes = {"far": "other"}
        monkeypatch.setattr(terms, "alias_of", lambda queue: homes.get(queue, "default"))
        with pytest.raises(InvalidJob, match="far is kept in another database"):
            running(held[1]).add(first.using(queue="far").s(7))
        assert held[0].jobs.count() == 3

    def test_nothing_cannot_be_added(self, held):
        with pytest.raises(InvalidWorkflow, match="nothing"):
            running(held[1]).add(group())

    def test_more_than_a_workflow_may_have_cannot_be_added(self, held, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "WORKFLOW_MAX_JOBS": 4}
        workflow, reservation = held
        context = running(reservation)
        context.add(first.s(7))
        with pytest.raises(TooManyJobs, match="would have 5 jobs"):
            context.add(first.s(8))
        with pytest.raises(TooManyJobs):
            context.add(group([first.s(8)] * 5))
        assert workflow.jobs.count() == 4
        counts_add_up()

    @with_row_locks
    def test_two_members_cannot_add_more_than_that_together(self, session, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "WORKFLOW_MAX_JOBS": 3}
        workflow = group(first.s(1), first.s(2)).enqueue()
        one, two = map(running, take(2))
        with session().stopped_at("add.inserted", partial(one.add, first.s(7))) as adding:
            two.add(first.s(8))
        with pytest.raises(TooManyJobs, match="would have 4 jobs"):
            adding.result(20)
        assert workflow.jobs.count() == 3
        counts_add_up()

    def test_a_path_that_is_too_long_cannot_be_added(self, held, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "MAX_DEPTH": 3}
        workflow, reservation = held
        context = running(reservation)
        context.add(chain(first.s(7), plus.s()))
        with pytest.raises(TooDeep):
            context.add(chain(first.s(7), plus.s(), plus.s()))
        assert workflow.jobs.count() == 5
        counts_add_up()


class TestInAWorker:
    """Through a real worker, in each of its pools."""

    @pytest.mark.parametrize("member", [fan_out, afan_out, fan_out_atomic, fan_out_isolated])
    def test_a_member_adds_and_the_finalizer_waits(self, member, monkeypatch):
        monkeypatch.setenv("DATABASE_URL", database_url())  # for a child process
        workflow = chord([member.s(3)], collect.s()).enqueue()
        drain()
        counts_add_up()
        assert workflow.results == [[-1, 0, 1, 2]]

    def test_what_an_atomic_task_adds_is_gone_when_it_fails(self):
        workflow = chord([fan_out_atomic.s(3, fails=True)], mark.s()).enqueue()
        drain()
        assert workflow.jobs.count() == 2
        assert workflow.state == WorkflowState.DEAD
        counts_add_up()

    def test_an_atomic_task_that_was_asked_to_stop_before_its_ack_is_cancelled(self):
        workflow = chord([stopping.s()], mark.s()).enqueue()
        drain()
        assert workflow.jobs.count() == 2
        assert workflow.state == WorkflowState.CANCELLED
        counts_add_up()

    def test_what_a_task_adds_that_fails_later_is_there_and_not_added_again(self):
        workflow = chord([fan_out_and_stumble.s(2)], collect.s()).enqueue()
        drain()
        assert workflow.jobs.count() == 4
        assert workflow.results == [[-1, 0, 1]]
        assert Workflow.objects.get().open_jobs == 0
        assert Dependency.objects.filter(job__task=collect.name).count() == 3


def test_a_stale_atomic_task_leaves_nothing_behind():
    workflow = chord([fan_out_atomic.s(3)], mark.s()).enqueue()
    (reservation,) = take(1)
    context = JobContext(reservation, Runtime())
    context.additions = [reports.addition_of(context, first.s(1), "k")]
    outcome = decide.outcome("ack", reservation)
    driver().release(reservation.job.id, reservation.lease.token, now=driver().now())
    with driver().atomic():
        rejections = driver().settle_waiting(
            outcome,
            now=driver().now(),
            also=lambda: add(driver(), reservation, context.additions[0]),
        )
    assert isinstance(rejections[0].error, LeaseMismatch)
    assert workflow.jobs.count() == 2
