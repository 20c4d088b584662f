"""A dead job that is requeued takes back what its death has done; discarding it is final."""

from datetime import timedelta
from itertools import pairwise
from uuid import uuid4

import pytest

from taskharbor_django import chain, chord, discard, group, requeue
from taskharbor_django.drivers.ends import stored_rows
from taskharbor_django.lifecycle import JobState, WorkflowState
from taskharbor_django.models import DeadLetter, Job
from taskharbor_django.operations import revive
from taskharbor_django.operations.callback import CALLBACK_TASK
from tests.testapp.workflow_tasks import boom, collect, first, mark, plus, ran, total

from . import counts_add_up, driver, end, letter, states, take, work
from .test_waiting import AFTER_ANY, AFTER_END, dependent_of

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


def again(*jobs):
    return requeue(list(jobs))


def test_the_top_of_a_long_path_of_deaths_is_found():
    path = [uuid4() for _ in range(3_000)]
    failed = {below: {above: above} for above, below in pairwise(path)}
    assert revive._to_be_seen_to(path[-1], path[-2], failed) == path[0]


class TestRequeue:
    def test_revives_those_that_died_only_with_the_job(self):
        job = first.enqueue(1)
        middle = first.using(after=job).enqueue(2)
        last = first.using(after=middle).enqueue(3)
        end(job, "dead")
        assert states(job, middle, last) == ["dead"] * 3
        assert again(job).moved == 1
        assert states(job, middle, last) == ["ready", "blocked", "blocked"]
        assert not DeadLetter.objects.filter(open_for__isnull=False).exists()
        revived = middle.refresh()
        assert (revived.last_error, revived.failure_category, revived.failed_at) == ("", "", None)
        counts_add_up()
        work()
        assert states(job, middle, last) == ["done"] * 3
        counts_add_up()

    def test_leaves_a_dependent_dead_that_another_dead_job_keeps_from_running(self):
        one, two = first.enqueue(1), first.enqueue(2)
        dependent = first.using(after=[one, two]).enqueue()
        below = first.using(after=dependent).enqueue()
        end(one, "dead")
        end(two, "dead")
        again(one)
        assert states(dependent, below) == ["dead", "dead"]
        assert [letter(it).cause_id for it in (dependent, below)] == [two.id, two.id]
        end(one)
        counts_add_up()
        again(two)
        assert states(dependent, below) == ["blocked", "blocked"]
        end(two)
        assert states(dependent, below) == ["ready", "blocked"]
        counts_add_up()

    def test_of_two_causes_at_once_revives_the_dependent_once(self):
        one, two = first.enqueue(1), first.enqueue(2)
        dependent = first.using(after=[one, two]).enqueue()
        end(one, "dead")
        end(two, "dead")
        again(one, two)
        assert states(dependent) == ["blocked"]
        counts_add_up()
        work()
        assert states(dependent) == ["done"]

    def test_leaves_a_dependent_dead_below_a_cancelled_job(self):
        one, two = first.enqueue(1), first.enqueue(2)
        dependent = first.using(after=[one, two]).enqueue()
        end(one, "dead")
        end(two, "cancelled")
        again(one)
        assert states(dependent) == ["dead"]
        assert letter(dependent).cause_id == two.id

    def test_a_job_that_died_with_another_is_not_requeued_alone(self):
        job = first.enqueue(1)
        dependent = first.using(after=job).enqueue()
        end(job, "dead")
        answer = again(dependent)
        assert (answer.moved, answer.causes) == (0, (job.id,))
        assert states(dependent) == ["dead"]

    def test_counts_what_ended_while_the_dependent_was_dead(self):
        one, two = first.enqueue(1), first.enqueue(2)
        dependent = first.using(after=[one, two]).enqueue()
        end(one, "dead")
        end(two)  # lowers what is left of a dead dependent
        assert dependent.refresh().dependencies_left == 1
        again(one)
        end(one)
        assert states(dependent) == ["ready"]
        counts_add_up()

    def test_makes_those_wait_again_that_wait_for_its_end(self):
        one, two = first.enqueue(1), first.enqueue(2)
        dependent = dependent_of(one, two, kind=AFTER_END)
        end(one, "dead")
        assert dependent.refresh().dependencies_left == 1
        again(one)
        assert dependent.refresh().dependencies_left == 2
        end(two)
        assert states(dependent) == ["blocked"]
        end(one)
        assert states(dependent) == ["ready"]

    @pytest.mark.parametrize("kind", [AFTER_END, AFTER_ANY])
    @pytest.mark.parametrize("began", ["ready", "inflight", "done", "dead"])
    def test_leaves_those_alone_whose_conditions_had_all_been_met(self, kind, began):
        job = first.enqueue(1)
        dependent = dependent_of(job, kind=kind, task=first)
        end(job, "dead")
        assert states(dependent) == ["ready"]
        if began == "inflight":
            take()
        elif began != "ready":
            end(dependent, began)
        again(job)
        assert states(dependent) == [began]
        end(job, "dead")
        assert states(dependent) == [began]
        assert dependent.refresh().dependencies_left == 0
        if began == "dead":
            again(dependent)
            assert states(dependent) == ["ready"]

    def test_opens_the_first_of_several_again_if_no_other_has_ended(self):
        one, two, also = (first.enqueue(number) for number in range(3))
        dependent = first.using(after_any=[one, two], after=also).enqueue()
        end(one, "dead")
        assert dependent.refresh().dependencies_left == 1
        again(one)
        assert dependent.refresh().dependencies_left == 2
        end(two, "dead")
        assert dependent.refresh().dependencies_left == 1
        end(one, "dead")
        again(two)
        assert dependent.refresh().dependencies_left == 1
        again(one)
        assert dependent.refresh().dependencies_left == 2
        end(one)
        end(also)
        assert states(dependent) == ["ready"]
        counts_add_up()

    def test_of_a_job_that_waits_in_vain_ends_it_again(self):
        one = first.enqueue(1)
        dependent = first.using(after=one).enqueue()
        below = first.using(after=dependent).enqueue()
        bury_waiting(dependent)
        assert states(dependent, below) == ["dead", "dead"]
        end(one, "dead")
        again(dependent)
        assert states(dependent, below) == ["dead", "dead"]
        assert letter(dependent).reason == "dependency"
        assert letter(dependent).cause_id == one.id
        again(one)
        assert states(one, dependent, below) == ["ready", "blocked", "blocked"]
        counts_add_up()

    def test_of_a_job_that_still_waits_lets_it_wait(self):
        one = first.enqueue(1)
        dependent = first.using(after=one).enqueue()
        bury_waiting(dependent)
        again(dependent)
        assert states(dependent) == ["blocked"]
        end(one)
        assert states(dependent) == ["ready"]
        counts_add_up()

    def test_leaves_the_cause_that_is_still_one(self):
        one, two = first.enqueue(1), first.enqueue(2)
        dependent = first.using(after=[one, two]).enqueue()
        end(one, "dead")
        end(two, "dead")
        again(two)
        assert letter(dependent).cause_id == one.id

    def test_of_a_job_that_waits_for_a_cancelled_one_cancels_it(self):
        one = first.enqueue(1)
        dependent = first.using(after=one).enqueue()
        below = first.using(after=dependent).enqueue()
        bury_waiting(dependent)
        end(one, "cancelled")
        again(dependent)
        assert states(dependent, below) == ["cancelled", "cancelled"]
        assert not DeadLetter.objects.filter(open_for__isnull=False).exists()
        counts_add_up()

    def test_of_a_job_that_waits_in_vain_calls_back_again(self, callbacks):
        one = first.enqueue(1)
        dependent = first.using(after=one, callback_url=callbacks).enqueue()
        bury_waiting(dependent)
        end(one, "dead")
        Job.objects.filter(task=CALLBACK_TASK).delete()
        again(dependent)
        assert Job.objects.filter(task=CALLBACK_TASK).count() == 1

    def test_gives_those_that_live_again_a_new_lifetime(self):
        job = first.enqueue(1)
        dependent = first.using(after=job, lifetime=3600).enqueue()
        end(job, "dead")
        now = driver().now()
        Job.objects.filter(pk=dependent.id).update(created_at=now - HOUR, expires_at=now)
        again(job)
        assert dependent.refresh().expires_at > driver().now()


def bury_waiting(handle):
    """Bury a blocked job by its lifetime, as a sweep does."""
    with driver().transaction():
        rows = Job.objects.filter(pk=handle.id)
        jobs = stored_rows(rows)
        now = driver().now()
        rows.update(state=JobState.DEAD, finished_at=now, updated_at=now)
        DeadLetter.objects.create(
            job_id=handle.id,
            open_for=handle.id,
            task="t",
            queue="default",
            reason="lifetime",
            died_at=now,
        )
        driver().report_ends(jobs)


class TestDiscard:
    def test_gives_up_those_that_died_only_with_the_job(self):
        job = first.enqueue(1)
        dependent = first.using(after=job).enqueue()
        below = first.using(after=dependent).enqueue()
        end(job, "dead")
        assert discard([job]).moved == 1
        assert states(job, dependent, below) == ["cancelled"] * 3
        assert not DeadLetter.objects.filter(open_for__isnull=False).exists()
        counts_add_up()

    def test_leaves_those_that_died_for_reasons_of_their_own(self):
        job = first.enqueue(1)
        dependent = first.using(after=job).enqueue()
        bury_waiting(dependent)
        end(job, "dead")
        discard([job])
        assert states(job, dependent) == ["cancelled", "dead"]


class TestWorkflows:
    def test_a_dead_workflow_is_resumed(self):
        workflow = chord([first.s(1), chain(boom.s(), first.si(2))], collect.s()).enqueue()
        work()
        assert workflow.state == WorkflowState.DEAD
        assert workflow.refresh().finished_at is not None
        Job.objects.filter(task=boom.name).update(task=first.name)  # somebody has mended it
        answer = workflow.resume(note="mended")
        assert answer.moved == 1
        assert workflow.state == WorkflowState.OPEN
        assert workflow.refresh().finished_at is None
        counts_add_up()
        work()
        assert workflow.state == WorkflowState.DONE
        assert workflow.results == [[1, 2]]

    def test_one_that_died_with_a_job_of_others_names_that(self):
        outside = first.enqueue(1)
        workflow = group(chain(first.using(after=outside).s(1), plus.s()), boom.s()).enqueue()
        end(outside, "dead")
        work()
        answer = workflow.resume()
        assert (answer.moved, answer.left) == (1, {"dependency": 2})
        assert answer.causes == (outside.id,)
        assert requeue([outside]).moved == 1
        counts_add_up()

    def test_a_member_that_is_requeued_after_the_finalizer_ran_runs_alone(self):
        ran.clear()
        workflow = chord([boom.s(), first.s(1)], mark.s(), run_on_failure=True).enqueue()
        work()
        assert len(ran) == 1
        workflow.resume()
        work()
        assert len(ran) == 1
        counts_add_up()

    def test_a_group_below_a_dead_job_comes_back_as_a_whole(self):
        workflow = chain(boom.s(), group(plus.s(1), plus.s(2)), total.s()).enqueue()
        work()
        Job.objects.filter(task=boom.name).update(task=first.name)
        workflow.resume()
        work()
        assert workflow.results == [3]
        counts_add_up()
