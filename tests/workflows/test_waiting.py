"""`after` and `after_any` on any enqueue; what each end of a dependency makes of a dependent."""

from datetime import timedelta

import pytest
from django.db import transaction

from taskharbor_django import (
    JobHandle,
    Priority,
    chain,
    chord,
    enqueue_many,
    graph,
    group,
)
from taskharbor_django.exceptions import (
    DependencyCycle,
    InvalidJob,
    InvalidWorkflow,
    TooDeep,
    TooManyDependencies,
    TooManyJobs,
    UnknownDependency,
)
from taskharbor_django.lifecycle import DependencyKind
from taskharbor_django.models import Attempt, DeadLetter, Dependency, Job, Lease, Workflow
from taskharbor_django.operations.callback import CALLBACK_TASK
from taskharbor_django.operations.edges import store
from taskharbor_django.operations.expire import expire
from taskharbor_django.operations.plans import EDGES_PER_JOB, Edge, Plan
from taskharbor_django.operations.prune import prune
from taskharbor_django.values import JobRecord
from taskharbor_django.workflows import Before, plan_of
from tests.operations import Statements, undone
from tests.testapp.tasks import add
from tests.testapp.workflow_tasks import boom, first, fleeting, mark, plus, tire, total

from . import LEASE, counts_add_up, driver, end, finish, hold, letter, run, states, take, work

pytestmark = pytest.mark.django_db(transaction=True)

AFTER, AFTER_END, AFTER_ANY = DependencyKind


def dependent_of(*jobs, kind=AFTER, task=mark):
    """A job that waits for these by edges of that kind."""
    record = JobRecord(task=task.name)
    edges = [Edge(record.id, job.id, kind) for job in jobs]
    store(driver(), Plan(records=[record], edges=edges))
    return JobHandle.of(record.id)


# As the model of GopherQueue has it, for each kind of edge:
# state of the dependency -> state of the dependent.
EFFECTS = {
    AFTER: {"done": "ready", "dead": "dead", "cancelled": "cancelled"},
    AFTER_END: {"done": "ready", "dead": "ready", "cancelled": "ready"},
    AFTER_ANY: {"done": "ready", "dead": "ready", "cancelled": "ready"},
}
CASES = [(kind, *effect) for kind in EFFECTS for effect in EFFECTS[kind].items()]


class TestEffects:
    @pytest.mark.parametrize(("kind", "ended", "expected"), CASES)
    def test_of_an_end_on_the_dependent(self, kind, ended, expected):
        job = first.enqueue(1)
        dependent = dependent_of(job, kind=kind)
        assert states(dependent) == ["blocked"]
        end(job, ended)
        assert states(job, dependent) == [ended, expected]
        counts_add_up()

    @pytest.mark.parametrize(("kind", "ended", "expected"), CASES)
    def test_of_an_end_before_the_dependent_was_stored(self, kind, ended, expected):
        job = first.enqueue(1)
        end(job, ended)
        dependent = dependent_of(job, kind=kind)
        assert states(dependent) == [expected]
        counts_add_up()

    @pytest.mark.parametrize("kind", [AFTER, AFTER_END])
    def test_a_dependent_waits_for_all(self, kind):
        jobs = [first.enqueue(number) for number in range(3)]
        dependent = dependent_of(*jobs, kind=kind)
        for job in jobs:
            assert states(dependent) == ["blocked"]
            end(job)
        assert states(dependent) == ["ready"]
        counts_add_up()

    @pytest.mark.parametrize("ended", ["done", "dead", "cancelled"])
    def test_the_first_end_of_several_is_enough_and_the_others_change_nothing(self, ended):
        jobs = [first.enqueue(number) for number in range(3)]
        dependent = first.using(after_any=jobs).enqueue()
        end(jobs[1], ended)
        assert states(dependent) == ["ready"]
        end(jobs[0])
        end(jobs[2], "dead")
        assert states(dependent) == ["ready"]
        counts_add_up()

    def test_several_ends_of_one_settle_count_once_for_the_first_of_several(self):
        jobs, also = [first.enqueue(number) for number in range(3)], first.enqueue(9)
        dependent = first.using(after_any=jobs, after=also).enqueue()
        held = hold(*jobs)
        finish([run(each) for each in held])
        assert dependent.refresh().dependencies_left == 1
        end(also)
        assert states(dependent) == ["ready"]
        counts_add_up()

    def test_kinds_may_be_mixed(self):
        one, two, three = (first.enqueue(number) for number in range(3))
        dependent = first.using(after=[one], after_any=[two, three]).enqueue()
        assert dependent.refresh().dependencies_left == 2
        end(two)
        assert states(dependent) == ["blocked"]
        end(one)
        assert states(dependent) == ["ready"]

    def test_a_failure_goes_down_the_whole_way(self):
        workflow = chain(boom.s(), plus.s(), plus.s(), plus.s()).enqueue()
        work()
        jobs = list(workflow.jobs)
        assert {job.state for job in jobs} == {"dead"}
        for job in jobs[1:]:
            found = letter(job)
            assert (found.reason, found.category) == ("dependency", "permanent")
            assert found.cause_id == jobs[0].pk
            assert str(jobs[0].pk) in found.error
            assert (job.failure_category, job.attempts) == ("permanent", 0)
        assert letter(jobs[0]).cause_id is None
        assert not Attempt.objects.filter(job__in=jobs[1:]).exists()
        counts_add_up()

    def test_the_category_is_that_of_the_cause(self):
        workflow = chain(tire.s(), plus.s()).enqueue()
        work()
        found = letter(workflow.jobs[1])
        assert (found.reason, found.category) == ("dependency", "temporary")

    def test_a_cancel_goes_down_the_whole_way(self):
        workflow = chain(first.s(1), group(plus.s(1), plus.s(2)), total.s()).enqueue()
        JobHandle.of(workflow.jobs[0].pk).cancel()
        assert {job.state for job in workflow.jobs} == {"cancelled"}
        assert not DeadLetter.objects.exists()
        counts_add_up()

    def test_a_forced_cancel_of_a_running_job_goes_down_too(self):
        workflow = chain(first.s(1), plus.s()).enqueue()
        (held,) = take()
        JobHandle.of(held.job.id).cancel(force=True)
        assert {job.state for job in workflow.jobs} == {"cancelled"}
        counts_add_up()

    def test_a_running_job_that_is_cancelled_on_request_goes_down_when_it_is_given_back(self):
        workflow = chain(first.s(1), plus.s()).enqueue()
        (held,) = take()
        JobHandle.of(held.job.id).cancel()
        assert [job.state for job in workflow.jobs] == ["inflight", "blocked"]
        driver().release(held.job.id, held.lease.token, now=driver().now())
        assert {job.state for job in workflow.jobs} == {"cancelled"}
        counts_add_up()

    def test_of_a_dead_and_a_cancelled_dependency_the_dead_one_counts(self):
        one, two = first.enqueue(1), first.enqueue(2)
        end(one, "cancelled")
        end(two, "dead")
        dependent = first.using(after=[one, two]).enqueue()
        below = first.using(after=dependent).enqueue()
        assert states(dependent, below) == ["dead", "dead"]
        assert letter(below).cause_id == two.id

    def test_a_lost_lease_that_buries_is_an_end_too(self):
        workflow = chain(first.s(1), plus.s()).enqueue()
        (held,) = take()
        later = held.lease.expires_at
        driver().reserve("other", now=later, lease_for=LEASE, max_lease_losses=1)
        assert [job.state for job in workflow.jobs] == ["dead", "dead"]
        assert letter(workflow.jobs[1]).cause_id == held.job.id
        counts_add_up()

    def test_a_sweep_that_buries_is_an_end_too(self):
        workflow = chain(first.s(1), plus.s()).enqueue()
        take()
        Lease.objects.all().delete()
        driver().sweep(now=driver().now(), max_lease_losses=1)
        assert [job.state for job in workflow.jobs] == ["dead", "dead"]
        counts_add_up()

    def test_a_lifetime_that_is_over_is_an_end_too(self):
        job = first.using(lifetime=1).enqueue()
        dependent = first.using(after=job).enqueue()
        free = dependent_of(job, kind=AFTER_END)
        list(expire(driver(), now=driver().now() + timedelta(seconds=2)))
        assert states(job, dependent, free) == ["dead", "dead", "ready"]
        assert letter(dependent).cause_id == job.id
        counts_add_up()

    def test_a_lifetime_may_be_over_for_all_at_once(self):
        workflow = chain(*(mark.using(lifetime=600).s() for _ in range(4))).enqueue()
        list(expire(driver(), now=driver().now() + timedelta(seconds=601)))
        assert {job.state for job in workflow.jobs} == {"dead"}
        assert {letter(job).reason for job in workflow.jobs} == {"lifetime"}
        counts_add_up()
        assert workflow.resume().moved == 4
        counts_add_up()
        work()
        assert workflow.state == "done"

    def test_a_chord_with_a_dead_member_does_not_run_its_finalizer(self):
        workflow = chord([first.s(1), boom.s(), first.s(2)], total.s()).enqueue()
        work()
        assert sorted(job.state for job in workflow.jobs) == ["dead", "dead", "done", "done"]
        counts_add_up()

    def test_a_failure_on_the_way_releases_who_waits_for_ends(self):
        nodes = {"a": boom.s(), "b": first.s(1)}
        part = chord([graph(nodes, after={"b": ["a"]})], mark.s(), run_on_failure=True)
        workflow = part.enqueue()
        work()
        assert [job.state for job in workflow.jobs] == ["dead", "dead", "done"]
        counts_add_up()


class TestSubmission:
    def test_a_job_without_dependents_pays_nothing(self):
        job = first.enqueue(1)
        with Statements() as statements:
            end_only(job)
        plain = len(statements.verbs)
        followed = first.enqueue(1)
        first.using(after=followed, queue="other").enqueue()
        with Statements() as statements:
            end_only(followed)
        assert len(statements.verbs) > plain
        job = first.enqueue(1)
        with Statements() as statements:
            end_only(job)
        assert len(statements.verbs) == plain
        assert not any("dependency" in it["sql"] for it in statements.captured_queries)

    def test_the_statements_of_a_release_do_not_grow_with_the_jobs(self):
        def cost(count):
            jobs = [first.enqueue(number) for number in range(count)]
            for job in jobs:
                first.using(after=job).enqueue()
            held = hold(*jobs)
            outcomes = [run(each) for each in held]
            with Statements() as statements:
                finish(outcomes)
            return len([it for it in statements.verbs if it != "UPDATE"])

        cost(2)
        assert cost(2) == cost(20)

    def test_it_is_marked_once_that_a_job_has_dependents(self):
        job = first.enqueue(1)
        assert not job.refresh().has_dependents
        first.using(after=job).enqueue()
        assert job.refresh().has_dependents
        with transaction.atomic(), Statements() as statements:
            first.using(after=job).enqueue()
        assert "UPDATE" not in statements.verbs

    def test_a_dependent_commits_with_the_callers_transaction_or_not_at_all(self):
        job = first.enqueue(1)
        with undone():
            first.using(after=job).enqueue()
        assert Job.objects.count() == 1
        assert not Dependency.objects.exists()
        end(job)

    def test_it_can_wait_for_the_commit(self):
        job = first.enqueue(1)
        with transaction.atomic():
            first.using(after=job).enqueue_on_commit()
            assert Job.objects.count() == 1
        assert Job.objects.filter(state="blocked").count() == 1

    def test_many_are_stored_with_their_edges(self):
        jobs = [first.enqueue(number) for number in range(3)]
        calls = [first.using(after=jobs[number % 3]).call(number) for number in range(20)]
        assert enqueue_many([*calls, add.call(1, 2)], batch_size=7) == 21
        assert Job.objects.filter(state="blocked").count() == 20
        work()
        assert set(Job.objects.values_list("state", flat=True)) == {"done"}

    def test_a_known_key_gets_no_edges(self):
        job, other = first.enqueue(1), first.enqueue(2)
        keyed = first.using(idempotency_key="k")
        known = keyed.enqueue()
        again = keyed.using(after=[job, other]).enqueue()
        assert (again.id, again.created) == (known.id, False)
        assert not Dependency.objects.exists()
        work()
        assert states(known) == ["done"]

    def test_a_new_key_gets_its_edges(self):
        job = first.enqueue(1)
        keyed = first.using(idempotency_key="k", after=job)
        dependent = keyed.enqueue()
        assert dependent.created
        assert keyed.enqueue().id == dependent.id
        assert states(dependent) == ["blocked"]
        work()
        assert states(dependent) == ["done"]

    def test_a_known_key_leaves_no_letter_of_a_job_that_is_none(self):
        job = first.enqueue(1)
        end(job, "dead")
        keyed = first.using(idempotency_key="k", after=job)
        known = keyed.enqueue()
        assert (keyed.enqueue().id, states(known)) == (known.id, ["dead"])
        assert set(DeadLetter.objects.values_list("job", flat=True)) == {job.id, known.id}

    def test_a_job_that_keeps_nothing_is_kept_for_its_dependents(self):
        job = fleeting.enqueue(1)
        dependent = first.using(after=job).enqueue()
        end_only(job)
        assert states(job, dependent) == ["done", "ready"]

    def test_handles_ids_and_text_can_be_waited_for(self):
        jobs = [first.enqueue(number) for number in range(4)]
        named = [jobs[0], jobs[1].id, str(jobs[2].id), jobs[3].refresh(), jobs[3]]
        dependent = first.using(after=named).enqueue()
        assert dependent.refresh().dependencies_left == 4
        assert first.using(after=str(jobs[0].id)).enqueue().refresh().dependencies_left == 1
        assert first.using(after=None).enqueue().refresh().dependencies_left == 0

    def test_a_dependent_inherits_the_highest_priority(self):
        urgent = first.using(priority=Priority.CRITICAL).enqueue()
        usual = first.using(after=[urgent, first.enqueue()]).enqueue()
        below = first.using(after=usual, priority=Priority.BULK).enqueue()
        higher = first.using(after=first.enqueue(), priority=Priority.HIGH).enqueue()
        assert [it.refresh().priority for it in (usual, below, higher)] == [-100, -100, -50]
        workflow = chain(first.using(priority=Priority.HIGH).s(1), plus.s(), plus.s()).enqueue()
        assert [job.priority for job in workflow.jobs] == [-50, -50, -50]

    def test_the_end_of_what_was_ended_at_once_is_counted(self):
        job = first.enqueue()
        end(job, "dead")
        workflow = chain(first.using(after=job).s(), plus.s()).enqueue()
        assert [it.state for it in workflow.jobs] == ["dead", "dead"]
        assert Workflow.objects.get().finished_at is not None
        counts_add_up()

    def test_an_end_at_once_calls_back_as_any_end(self, callbacks):
        job = first.enqueue()
        end(job, "dead")
        first.using(after=job, callback_url=callbacks).enqueue()
        assert Job.objects.filter(task=CALLBACK_TASK).count() == 1

    def test_an_end_that_goes_down_calls_back_as_any_end(self, callbacks):
        job = first.enqueue()
        below = first.using(after=job, callback_url=callbacks).enqueue()
        first.using(after=below, callback_url=callbacks).enqueue()
        end(job, "dead")
        assert Job.objects.filter(task=CALLBACK_TASK).count() == 2

    def test_what_died_with_another_job_passes_its_cause_on(self):
        job = first.enqueue()
        end(job, "dead")
        dependent = first.using(after=job).enqueue()
        below = first.using(after=dependent).enqueue()
        assert letter(below).cause_id == job.id

    def test_a_finalizer_with_a_delay_waits_when_its_member_ended_at_once(self):
        job = first.enqueue()
        end(job, "dead")
        members = [first.using(after=job).s(1)]
        workflow = chord(members, mark.using(delay=60).s(), run_on_failure=True).enqueue()
        assert [it.state for it in workflow.jobs] == ["dead", "scheduled"]
        counts_add_up()


def end_only(job):
    """Reserve and ack this job alone, which is the only one that is ready."""
    held = driver().reserve("default", now=driver().now(), lease_for=LEASE, limit=1)
    assert held[0].job.id == job.id
    driver().ack(job.id, held[0].lease.token, now=driver().now())


def test_pruning_leaves_what_an_open_workflow_needs():
    workflow = chain(first.s(1), plus.s(), mark.s()).enqueue()
    (held,) = take(1)
    finish([run(held)])
    later = driver().now() + timedelta(days=30)
    list(prune(driver(), now=later))
    assert workflow.jobs.count() == 3
    work()
    assert workflow.results == [[2]]
    list(prune(driver(), now=later))
    assert workflow.jobs.count() == 0
    assert not Dependency.objects.exists()


class TestLimits:
    def refused(self, error, act, match=None):
        before = (Job.objects.count(), Dependency.objects.count(), Workflow.objects.count())
        with pytest.raises(error, match=match):
            act()
        after = (Job.objects.count(), Dependency.objects.count(), Workflow.objects.count())
        assert before == after

    def test_a_job_that_does_not_exist_cannot_be_waited_for(self):
        job = first.enqueue()
        gone = "00000000-0000-4000-8000-000000000000"
        self.refused(UnknownDependency, first.using(after=[job, gone]).enqueue, match=gone)
        assert not job.refresh().has_dependents

    def test_what_is_no_job_cannot_be_waited_for(self):
        self.refused(InvalidJob, first.using(after=[object()]).enqueue, match="no job id")

    @pytest.mark.parametrize("name", ["after", "after_any"])
    def test_nor_can_a_number(self, name):
        with pytest.raises(InvalidJob, match=f"{name}: 7 is no job") as refusal:
            first.using(**{name: 7})
        assert refusal.value.field == name

    def test_a_job_of_another_database_cannot_be_waited_for(self):
        elsewhere = JobHandle(id=first.enqueue().id, using="elsewhere")
        self.refused(
            InvalidWorkflow, first.using(after=elsewhere).enqueue, match="another database"
        )

    def test_a_circle_is_refused(self):
        nodes = {"a": first.s(), "b": first.s(), "c": first.s()}
        part = graph(nodes, after={"a": ["b"], "b": ["c"], "c": ["a"]})
        self.refused(DependencyCycle, part.enqueue, match="a, b, c")

    def test_a_circle_of_records_is_refused(self):
        one, two = JobRecord(task="one"), JobRecord(task="two")
        plan = Plan(records=[one, two], edges=[Edge(one.id, two.id), Edge(two.id, one.id)])
        self.refused(DependencyCycle, lambda: store(driver(), plan), match="one, two")

    def test_a_chain_of_a_hundred_is_stored_and_one_of_a_hundred_and_one_refused(self):
        workflow = chain(first.s(0), *(plus.s() for _ in range(99))).enqueue()
        last = workflow.jobs.last()
        self.refused(TooDeep, first.using(after=last).enqueue, match="101")
        longer = chain(first.s(0), *(plus.s() for _ in range(100)))
        self.refused(TooDeep, longer.enqueue, match="MAX_DEPTH")

    def test_a_thousand_may_be_named_and_one_more_not(self, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "MAX_DEPENDENCIES": 5}
        jobs = [first.enqueue(number) for number in range(6)]
        for kind in ("after", "after_any"):
            first.using(**{kind: jobs[:5]}).enqueue()
            self.refused(TooManyDependencies, first.using(**{kind: jobs}).enqueue, match="6 jobs")
        nodes = {str(number): first.s() for number in range(7)}
        with pytest.raises(TooManyDependencies):
            graph(nodes, after={"6": [str(number) for number in range(6)]})

    def test_the_group_of_a_chord_counts_as_one(self, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "MAX_DEPENDENCIES": 5}
        workflow = chord([first.s(number) for number in range(20)], total.s()).enqueue()
        work()
        assert workflow.results == [190]

    def test_a_workflow_has_a_largest_size(self, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "WORKFLOW_MAX_JOBS": 10}
        group(first.s(number) for number in range(10)).enqueue()
        larger = group(first.s(number) for number in range(11))
        self.refused(TooManyJobs, larger.enqueue, match="11 jobs")

    def test_a_finalizer_comes_on_top_of_as_many_members_as_there_may_be(self, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "WORKFLOW_MAX_JOBS": 10}
        full = chord([first.s(number) for number in range(10)], total.s())
        full.enqueue()
        self.refused(TooManyJobs, chain(full, mark.si()).enqueue, match="12 jobs")

    def test_large_groups_one_after_the_other_need_a_step_between(self, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "WORKFLOW_MAX_JOBS": 43}
        many = [mark.s()] * 21
        chain(group(many), mark.s(), group(many)).enqueue()
        settings.TASKHARBOR = {**settings.TASKHARBOR, "WORKFLOW_MAX_JOBS": 42}
        self.refused(TooManyJobs, chain(group(many), group(many)).enqueue, match="Put a step")

    def test_what_is_too_large_is_refused_before_it_is_made(self, settings):
        settings.TASKHARBOR = {**settings.TASKHARBOR, "WORKFLOW_MAX_JOBS": 500}
        many = [first.si()] * 200
        plan = Plan()
        with pytest.raises(TooManyJobs):
            chain(group(many), group(many)).lay(plan, Before())
        assert len(plan.edges) <= 500 * EDGES_PER_JOB
        plan = Plan()
        with pytest.raises(TooManyJobs):
            group([first.si()] * 600).lay(plan, Before())
        assert len(plan.records) == 500

    def test_many_empty_groups_wait_for_the_same_jobs_once(self):
        _, end = plan_of(chain(group([first.si()] * 20), group([group()] * 20)))
        assert len(end.waits) == 20


def test_what_a_call_waits_for_leaves_no_trace_in_later_calls_of_its_task():
    """What calls of a task have in common is made once."""
    waiting = add.using(after=add.enqueue(1))
    assert [waiting.enqueue(number).state for number in (2, 3)] == ["blocked", "blocked"]
    steps = chain(add.si(4), group(add.si(number) for number in (5, 6))).enqueue()
    assert sorted(steps.jobs.values_list("state", flat=True)) == ["blocked", "blocked", "ready"]
    plain = add.enqueue(7).refresh()
    assert (plain.state, plain.workflow, plain.dependencies_left) == ("ready", None, 0)
    assert not plain.has_dependents
