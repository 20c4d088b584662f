"""chain, group, chord and graph: what they store, and what runs with which arguments."""

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from taskharbor_django import Failure, JobHandle, chain, chord, graph, group, task
from taskharbor_django.exceptions import (
    InvalidJob,
    InvalidPayload,
    InvalidWorkflow,
    TooDeep,
    UnknownDependency,
)
from taskharbor_django.lifecycle import JobState, WorkflowState
from taskharbor_django.models import Dependency, Job, Workflow
from taskharbor_django.operations import terms
from tests.operations import Statements, undone
from tests.testapp.tasks import add
from tests.testapp.workflow_tasks import (
    boom,
    collect,
    first,
    fleeting,
    mark,
    plus,
    ran,
    total,
    unstorable,
)

from . import counts_add_up, driver, finish, letter, run, states, take, work

pytestmark = pytest.mark.django_db(transaction=True)


@task(name="tests.parts.called")
def called():
    """Takes nothing: one call of it is like another."""


@task(name="tests.parts.called_once")
def called_once():
    """The same, for one test alone: by the first call of a task the others are made."""


@pytest.fixture(autouse=True)
def _forget():
    ran.clear()


def results(part):
    """Run a part to its end and return the results of its last jobs."""
    workflow = part.enqueue()
    work()
    counts_add_up()
    assert workflow.state == WorkflowState.DONE
    return workflow.results


class TestResults:
    def test_a_step_of_a_chain_takes_the_result_before_it(self):
        assert results(chain(first.s(1), plus.s(10), plus.s(more=100))) == [111]

    def test_an_immutable_step_takes_none(self):
        assert results(chain(first.s(1), first.si(7), plus.s())) == [8]

    def test_a_finalizer_takes_the_results_in_the_order_of_the_members(self):
        members = [first.s(number) for number in range(30)]
        workflow = chord(members, collect.s()).enqueue()
        held = list(take(100))
        assert len(held) == 30
        for each in reversed(held):
            finish([run(each)])
        work()
        assert workflow.results == [list(range(30))]

    def test_a_group_gives_its_results_in_order(self):
        assert results(group(first.s(3), first.s(1), first.s(2))) == [3, 1, 2]

    def test_a_result_of_none_is_passed_on(self):
        assert results(chain(first.s(None), mark.s("more"))) == [[None, "more"]]

    def test_each_member_of_a_group_takes_the_result_before_it(self):
        part = chain(first.s(5), group(plus.s(1), plus.s(2)), total.s())
        assert results(part) == [13]

    def test_an_empty_group_gives_an_empty_list_after_what_was_before_it(self):
        workflow = chain(first.s(5), group(), collect.s()).enqueue()
        assert [job.state for job in workflow.jobs] == ["ready", "blocked"]
        work()
        assert workflow.results == [[]]

    @pytest.mark.parametrize("last", ["chain", "chord", "graph"])
    def test_what_only_has_to_end_before_an_empty_group_only_has_to_end(self, last):
        start = chord([boom.s()], group(), run_on_failure=True)
        part = {
            "chain": lambda: chain(start, mark.si()),
            "chord": lambda: chord([start, first.s(1)], mark.si()),
            "graph": lambda: graph({"a": start, "b": mark.si()}, after={"b": ["a"]}),
        }[last]()
        workflow = part.enqueue()
        work()
        assert workflow.jobs.get(task=mark.name).state == "done"
        counts_add_up()

    def test_so_does_an_empty_graph(self):
        workflow = chain(first.s(1), graph({}), collect.s()).enqueue()
        assert [job.state for job in workflow.jobs] == ["ready", "blocked"]
        work()
        assert workflow.results == [[]]

    def test_an_empty_chord_runs_its_finalizer(self):
        assert results(chord([], collect.s())) == [[]]

    def test_parts_nest_in_any_way(self):
        inner = chord([first.si(1), chain(first.si(2), plus.s(3))], total.s())
        outer = chord([inner, group(plus.s(10), plus.s(20)), chain(first.si(7))], collect.s())
        assert results(chain(first.s(0), outer, mark.s())) == [[[6, 10, 20, 7]]]

    def test_a_result_that_could_not_be_stored_buries_the_step_that_takes_it(self):
        workflow = chain(unstorable.s(), plus.s()).enqueue()
        work()
        lost, step = workflow.jobs
        assert (lost.state, step.state) == ("done", "dead")
        found = letter(step)
        assert (found.reason, found.code, found.category) == ("permanent", "result", "permanent")
        assert str(lost.pk) in found.error

    def test_a_result_that_was_removed_buries_the_step_that_takes_it(self):
        workflow = chain(first.s(1), plus.s()).enqueue()
        (held,) = take()
        finish([run(held)])
        Job.objects.filter(pk=held.job.id).update(result=None)
        work()
        assert states(*map(_handle, workflow.jobs)) == ["done", "dead"]

    def test_a_job_that_is_gone_buries_the_step_that_takes_its_result(self):
        workflow = chord([first.s(1), first.s(2)], collect.s()).enqueue()
        held = take(10)
        finish([run(each) for each in held])
        Job.objects.filter(pk=held[0].job.id).delete()
        work()
        assert letter(workflow.jobs.last()).code == "result"
        Dependency.objects.all().delete()

    def test_a_job_that_keeps_nothing_is_kept_as_long_as_a_step_takes_its_result(self):
        assert results(chain(fleeting.s(4), plus.s())) == [5]

    def test_failures_are_values_for_a_finalizer_that_runs_on_failure(self):
        workflow = chord([first.s(1), boom.s()], mark.s(), run_on_failure=True).enqueue()
        work()
        ((values,),) = ran
        assert values[0] == 1
        assert isinstance(values[1], Failure)
        assert (values[1].state, values[1].code, values[1].category) == (
            "dead",
            "broken",
            "permanent",
        )
        assert "it broke" in values[1].error
        assert values[1].job_id == workflow.jobs[1].pk
        assert workflow.state == WorkflowState.DEAD


def _handle(job):
    return JobHandle.of(job.pk)


class TestGraph:
    def test_any_graph_runs_in_its_order(self):
        nodes = {name: mark.s(name) for name in "dcba"}
        after = {"d": ["b", "c"], "c": ["a"], "b": "a"}
        workflow = graph(nodes, after=after).enqueue()
        assert [job.state for job in workflow.jobs] == ["ready", "blocked", "blocked", "blocked"]
        work(limit=1)
        order = [name for (name,) in ran]
        assert order[0] == "a"
        assert order[-1] == "d"
        assert sorted(order) == list("abcd")

    def test_a_node_may_wait_for_the_first_of_several(self):
        nodes = {"a": first.s(1), "b": first.s(2), "c": mark.s()}
        workflow = graph(nodes, after_any={"c": ["a", "b"]}).enqueue()
        (held,) = take(1)
        finish([run(held)])
        assert workflow.jobs.last().state == JobState.READY

    def test_a_node_may_be_a_part(self):
        nodes = {"all": group(first.s(1), first.s(2)), "end": chain(mark.s("x"), mark.s())}
        workflow = graph(nodes, after={"end": ["all"]}).enqueue()
        work()
        assert workflow.results == [[["x"]]]

    def test_what_follows_a_graph_takes_the_results_of_its_ends(self):
        part = graph({"a": first.s(1), "b": first.s(2), "c": first.s(3)}, after={"b": ["a"]})
        assert results(chain(part, collect.s())) == [[2, 3]]

    def test_the_entries_of_a_graph_take_what_was_before_it(self):
        part = graph({"a": plus.s(1), "b": first.si(9)}, after={"b": ["a"]})
        assert results(chain(first.s(4), part)) == [9]
        assert Job.objects.filter(task=plus.name, state="done").count() == 1


class TestSubmission:
    def test_all_is_written_in_few_statements(self):
        members = [first.s(number) for number in range(200)]
        part = chord(members, total.s())
        part.enqueue()
        with transaction.atomic(), Statements() as statements:
            part.enqueue()
        vendor = connection.vendor
        inserts = [verb for verb in statements.verbs if verb == "INSERT"]
        assert len(inserts) <= (3 if vendor == "postgresql" else 8)
        assert len(statements.verbs) - statements.verbs.count("SAVEPOINT") <= 14

    def test_steps_that_are_called_alike_stand_each_in_its_own_place(self):
        workflow = chain(called.si(), called.si(), called.si()).enqueue()
        left = workflow.jobs.values_list("state", "dependencies_left", "has_dependents")
        assert sorted(left) == [("blocked", 1, False), ("blocked", 1, True), ("ready", 0, True)]

    def test_a_job_of_the_same_task_is_no_part_of_it(self):
        group(called_once.s(), called_once.s()).enqueue()
        assert called_once.enqueue().refresh().workflow_id is None

    def test_it_commits_with_the_callers_transaction_or_not_at_all(self):
        with undone():
            chord([first.s(1)], total.s()).enqueue()
        assert not Job.objects.exists()
        assert not Workflow.objects.exists()
        assert not Dependency.objects.exists()

    def test_it_can_wait_for_the_commit(self):
        with transaction.atomic():
            chain(first.s(1), plus.s()).enqueue_on_commit(name="later")
            assert not Job.objects.exists()
        assert Workflow.objects.get().name == "later"
        work()
        assert Workflow.objects.get().open_jobs == 0

    @pytest.mark.parametrize(
        ("make", "error"),
        [
            (group, InvalidWorkflow),
            (lambda: chain(first.using(priority=101).s(1)), InvalidJob),
            (lambda: chain(first.using(queue="q1").s(1), plus.using(queue="q2").s()), InvalidJob),
            (lambda: chain([first.si(1)] * 101), TooDeep),
        ],
        ids=["empty", "rank", "databases", "depth"],
    )
    def test_what_cannot_be_stored_is_refused_before_the_commit(self, make, error, monkeypatch):
        homes = {"q2": "other"}
        monkeypatch.setattr(terms, "alias_of", lambda queue: homes.get(queue, "default"))
        with transaction.atomic():
            with pytest.raises(error):
                make().enqueue_on_commit()
            first.enqueue(1)
        assert Job.objects.count() == 1

    def test_it_has_an_async_twin(self):
        workflow = async_to_sync(chain(first.s(1), plus.s()).aenqueue)(name="a")
        assert workflow.refresh().name == "a"

    def test_a_signature_alone_is_a_job(self):
        job = add.s(1, 2).enqueue()
        work()
        assert job.result == 3
        assert job.refresh().workflow is None

    def test_steps_have_the_options_of_their_task(self):
        part = chain(first.using(queue="q1", tags={"a": "b"}).s(1), plus.using(queue="q2").s())
        workflow = part.enqueue()
        assert [job.queue for job in workflow.jobs] == ["q1", "q2"]
        assert workflow.jobs[0].tags == {"a": "b"}

    def test_a_step_may_wait_for_a_job_outside(self):
        outside = first.enqueue(1)
        workflow = chain(first.using(after=outside).s(2), plus.s()).enqueue()
        assert [job.state for job in workflow.jobs] == ["blocked", "blocked"]
        work()
        assert workflow.results == [3]

    def test_a_step_with_a_time_is_scheduled_when_it_is_released(self):
        workflow = chain(first.s(1), plus.using(delay=3600).s()).enqueue()
        assert workflow.jobs[1].state == "blocked"
        work()
        step = workflow.jobs[1]
        assert step.state == "scheduled"
        assert step.available_at == step.run_at


class TestRefusals:
    @pytest.mark.parametrize(
        "make",
        [
            chain,
            lambda: chain(first),
            lambda: group(1, 2),
            lambda: group(7),
            lambda: chord([first.s()], "total"),
            lambda: chord(3, total.s()),
            lambda: group().enqueue(),
            lambda: chain(first.using(idempotency_key="k").s(1)).enqueue(),
            lambda: chain(first.s(1)).enqueue(name="x" * 201),
            lambda: chain(first.s(1)).enqueue(name=7),
            lambda: graph([first.s(1)]),
            lambda: graph({1: first.s(1)}),
            lambda: graph({"a": first.s(1)}, after=["a"]),
            lambda: graph({"a": first.s(1)}, after={"a": 7}),
            lambda: graph({"a": first.s(1)}, after_any={"a": [{}]}),
        ],
    )
    def test_what_is_no_workflow_is_refused(self, make):
        with pytest.raises(InvalidWorkflow):
            make()
        assert not Job.objects.exists()

    def test_arguments_that_do_not_fit_are_refused(self):
        with pytest.raises(InvalidPayload, match="argument"):
            chain(first.s(1), first.s(2)).enqueue()
        assert not Job.objects.exists()

    def test_a_graph_names_only_its_nodes(self):
        with pytest.raises(UnknownDependency, match="'b'"):
            graph({"a": first.s()}, after={"a": ["b"]})


def test_driver_is_told_of_ends():
    assert driver().on_end is not None
