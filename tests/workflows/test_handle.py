"""What can be asked of a workflow, and how it is drawn."""

from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync

from taskharbor_django import JobHandle, WorkflowHandle, chain, chord, graph, group
from taskharbor_django.exceptions import JobFailed, ResultNotReady, WorkflowNotFound
from taskharbor_django.lifecycle import JobState, WorkflowState
from taskharbor_django.operations import Moved
from tests.testapp.workflow_tasks import boom, collect, first, mark, plus, total
from tests.worker.conftest import drain

from . import counts_add_up, finish, run, take, work

pytestmark = pytest.mark.django_db(transaction=True)


class TestHandle:
    def test_says_how_many_jobs_are_in_which_state(self):
        workflow = chord([first.s(1), first.s(2), boom.s()], total.s()).enqueue(name="numbers")
        assert workflow.counts[JobState.READY] == 3
        assert workflow.counts[JobState.BLOCKED] == 1
        assert workflow.counts[JobState.DONE] == 0
        assert workflow.progress == 0
        assert workflow.state == WorkflowState.OPEN
        assert str(workflow.refresh()) == "numbers"
        work()
        assert workflow.counts[JobState.DEAD] == 2
        assert workflow.progress == 100
        assert workflow.state == WorkflowState.DEAD

    def test_says_how_far_it_is(self):
        workflow = chain(*(mark.s() for _ in range(4))).enqueue()
        for _ in range(3):
            work_one()
        assert workflow.progress == 75

    def test_can_be_made_of_an_id_that_was_kept(self):
        made = chain(first.s(1)).enqueue()
        assert WorkflowHandle.of(str(made.id)) == made
        with pytest.raises(WorkflowNotFound, match="There is no workflow"):
            WorkflowHandle.of("00000000-0000-4000-8000-000000000000").refresh()

    def test_waits_for_the_end(self):
        workflow = chain(first.s(1), plus.s()).enqueue()
        with pytest.raises(TimeoutError):
            workflow.wait(timeout=0.01)
        drain()
        assert workflow.wait(timeout=30) == WorkflowState.DONE
        assert workflow.results == [2]

    def test_has_no_results_before_its_last_jobs_are_done(self):
        workflow = chain(first.s(1), plus.s()).enqueue()
        with pytest.raises(ResultNotReady):
            _ = workflow.results
        dead = chain(boom.s()).enqueue()
        work()
        with pytest.raises(JobFailed):
            _ = dead.results

    def test_cancels_all_of_it(self):
        workflow = chord([first.s(number) for number in range(5)], total.s()).enqueue()
        answer = workflow.cancel()
        assert workflow.state == WorkflowState.CANCELLED
        assert answer.asked == 0
        assert workflow.progress == 100
        counts_add_up()

    def test_asks_what_runs_to_stop_or_takes_it_away(self):
        workflow = chord([first.s(1)], collect.s()).enqueue()
        take()
        assert workflow.cancel().asked == 1
        assert workflow.state == WorkflowState.OPEN
        workflow.cancel(force=True)
        assert workflow.state == WorkflowState.CANCELLED
        counts_add_up()

    def test_has_async_twins(self):
        workflow = chain(first.s(1), plus.s()).enqueue()
        work()

        async def ask():
            assert (await workflow.arefresh()).open_jobs == 0
            assert await workflow.await_(timeout=5) == WorkflowState.DONE
            assert await workflow.aresults() == [2]
            assert (await workflow.aresume()).moved == 0
            return await workflow.acancel()

        assert async_to_sync(ask)().moved == 0

    def test_waits_without_blocking_others(self):
        workflow = chain(first.s(1)).enqueue()
        with pytest.raises(TimeoutError):
            async_to_sync(workflow.await_)(timeout=0.01)


def work_one():
    (held,) = take(1)
    finish([run(held)])

    @pytest.mark.parametrize("ask", ["cancel", "resume", "drawing"])
    def test_of_no_workflow_says_so(self, ask):
        with pytest.raises(WorkflowNotFound):
            getattr(WorkflowHandle.of(uuid4()), ask)()

    def test_of_one_that_has_ended_cancels_nothing(self):
        workflow = chain(first.s(1)).enqueue()
        work()
        assert workflow.cancel() == workflow.resume() == Moved()


class TestDrawing:
    def test_has_a_node_for_each_job(self):
        workflow = chain(first.s(1), group(plus.s(1), plus.s(2)), total.s()).enqueue()
        work_one()
        drawing = workflow.drawing()
        jobs = list(workflow.jobs)
        assert [(node.job, node.depth) for node in drawing.nodes] == [
            (jobs[0].pk, 1),
            (jobs[1].pk, 2),
            (jobs[2].pk, 2),
            (jobs[3].pk, 3),
        ]
        assert drawing.nodes[0].states == {JobState.DONE: 1}
        assert {(line.source, line.target) for line in drawing.lines} == {
            (str(jobs[0].pk), str(jobs[1].pk)),
            (str(jobs[0].pk), str(jobs[2].pk)),
            (str(jobs[1].pk), str(jobs[3].pk)),
            (str(jobs[2].pk), str(jobs[3].pk)),
        }
        assert not drawing.collapsed

    def test_collapses_jobs_that_are_alike_when_there_are_too_many(self):
        members = [first.s(number) for number in range(250)]
        workflow = chain(chord(members, total.s()), mark.s()).enqueue()
        take(100)
        drawing = workflow.drawing()
        assert drawing.collapsed
        assert [(node.task, node.count, node.depth) for node in drawing.nodes] == [
            (first.name, 250, 1),
            (total.name, 1, 2),
            (mark.name, 1, 3),
        ]
        assert drawing.nodes[0].states == {JobState.INFLIGHT: 100, JobState.READY: 150}
        assert drawing.nodes[0].job is None
        assert [(line.count, line.kind) for line in drawing.lines] == [(250, "after"), (1, "after")]
        assert drawing.left_out == 0

    def test_leaves_out_the_deepest_when_it_is_still_too_much(self):
        workflow = chain(*(mark.s() for _ in range(30))).enqueue()
        drawing = workflow.drawing(most=10)
        assert len(drawing.nodes) == 10
        assert drawing.left_out == 20
        assert max(node.depth for node in drawing.nodes) == 10

    def test_has_a_line_for_each_kind_between_the_same_two(self):
        nodes = {"a": first.s(1), "b": mark.si()}
        drawing = graph(nodes, after={"b": ["a"]}, after_any={"b": ["a"]}).enqueue().drawing()
        assert sorted(line.kind for line in drawing.lines) == ["after", "after_any"]
        assert [node.depth for node in drawing.nodes] == [1, 2]

    def test_leaves_out_jobs_of_others(self):
        outside = first.enqueue(1)
        workflow = chain(first.using(after=outside).s(1), plus.s()).enqueue()
        assert len(workflow.drawing().nodes) == 2
        assert len(workflow.drawing().lines) == 1
        assert JobHandle.of(outside.id).state == "ready"
