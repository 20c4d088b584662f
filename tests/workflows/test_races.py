"""Two sessions, each stopped at the worst place: nobody is released twice, and nobody never."""

import contextlib
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction

from taskharbor_django import chord, group, requeue
from taskharbor_django.clock import DatabaseClock, steady
from taskharbor_django.drivers import ground, postgresql, transient
from taskharbor_django.exceptions import JobLocked, JobNotInflight
from taskharbor_django.failpoints import armed
from taskharbor_django.lifecycle import DeadReason, OutcomeKind, WorkflowState
from taskharbor_django.models import Job, Lease, Workflow
from taskharbor_django.operations import decide
from taskharbor_django.operations.edges import store
from taskharbor_django.operations.plans import Edge, Plan
from taskharbor_django.operations.settle import settle
from taskharbor_django.values import JobRecord, Reservation
from taskharbor_django.values import Lease as LeaseValue
from taskharbor_django.worker.completer import Completer
from taskharbor_django.worker.holdings import Holdings
from tests.storage.sessions import until
from tests.testapp.workflow_tasks import collect, first, mark

from . import LEASE, counts_add_up, driver, end, finish, hold, run, states, take, work
from .test_waiting import dependent_of

pytestmark = pytest.mark.django_db(transaction=True)


def with_row_locks(test):
    """Where more than one can write at a time."""
    return pytest.mark.postgresql(pytest.mark.mariadb(test))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Who is stopped by a test, or slow, is waited for: a settle leaves nothing for its next."""
    monkeypatch.setattr(postgresql, "SHORT_TIMEOUT", "20s")
    monkeypatch.setattr(ground, "SHORT_WAIT", 20)


@pytest.fixture
def no_repeats(monkeypatch):
    """Fail if a verb has to be repeated: a deadlock that was survived is a deadlock."""

    def refuse(*_):
        raise AssertionError("the database refused a statement, and the verb would be repeated")

    monkeypatch.setattr(transient.time, "sleep", refuse)


def held_members(*members):
    workflow = chord(list(members), collect.s()).enqueue()
    held = take(10)
    return workflow, [run(each) for each in held]


class TestFanIn:
    @pytest.mark.parametrize("place", ["advance.read", "advance.locked", "advance.moved"])
    def test_two_members_that_end_at_once_release_the_finalizer_once(self, session, place):
        workflow, (one, two) = held_members(first.s(1), first.s(2))
        ours, theirs = session(), session()
        with ours.stopped_at(place, partial(finish, [one])) as first_settle:
            second_settle = theirs.start(finish, [two])
            if connection.vendor != "sqlite" and place != "advance.read":
                theirs.until_waiting(second_settle)
        first_settle.result(20)
        second_settle.result(20)
        finalizer = workflow.jobs.get(task=collect.name)
        assert (finalizer.state, finalizer.dependencies_left) == ("ready", 0)
        counts_add_up()
        assert work() == 1
        assert workflow.results == [[1, 2]]

    def test_two_jobs_that_nobody_waits_for_are_both_counted_when_they_end_at_once(self, session):
        """No lock of a finalizer puts them in order: only the workflow's row is between them."""
        workflow = group([first.s(1), first.s(2)]).enqueue()
        one, two = [run(each) for each in take(10)]
        ours, theirs = session(), session()
        with ours.stopped_at("advance.counted", partial(finish, [one])) as first_settle:
            second_settle = theirs.start(finish, [two])
            if connection.vendor != "sqlite":
                theirs.until_waiting(second_settle)
        first_settle.result(20)
        second_settle.result(20)
        counts_add_up()
        assert workflow.state == WorkflowState.DONE

    @pytest.mark.parametrize("failed", [False, True])
    def test_round_after_round(self, race, failed):
        for _ in range(10):
            workflow, outcomes = held_members(*(first.s(number) for number in range(4)))
            if failed:
                outcomes[0] = fail_instead(outcomes[0])
            race(*(partial(keep_trying, outcome) for outcome in outcomes))
            counts_add_up()
            assert work() == (0 if failed else 1)
            expected = WorkflowState.DEAD if failed else WorkflowState.DONE
            assert workflow.state == expected

    def test_the_first_of_several_that_end_at_once_counts_once(self, race):
        for _ in range(5):
            jobs = [first.enqueue(number) for number in range(3)]
            also = first.using(queue="other").enqueue(9)
            dependent = first.using(after_any=jobs, after=also).enqueue()
            outcomes = [run(each) for each in hold(*jobs)]
            race(*(partial(keep_trying, outcome) for outcome in outcomes))
            assert dependent.refresh().dependencies_left == 1
            counts_add_up()
            also.cancel()


def keep_trying(outcome):
    """Settle as a completer does: what meets a lock comes again, what is not ours any more not."""
    while rejections := settle(driver(), [outcome], now=driver().now()):
        assert all(isinstance(it.error, JobLocked | JobNotInflight) for it in rejections)
        if not isinstance(rejections[0].error, JobLocked):
            return


def fail_instead(outcome):
    return replace(outcome, kind=OutcomeKind.FAIL, reason=DeadReason.PERMANENT, result=None)


@with_row_locks
class TestLockOrder:
    def test_finalizers_are_locked_in_the_order_of_their_ids(self, session, no_repeats):
        """Who holds the smaller one must be able to get the larger one, too."""
        jobs = [first.enqueue(1), first.enqueue(2)]
        small, large = finalizers_of(jobs)
        # The larger finalizer's member comes first in the batch.
        outcomes = [run(each) for each in hold(jobs[1], jobs[0])]
        settling = session()
        with transaction.atomic():
            list(Job.objects.filter(pk=small).select_for_update())
            future = settling.start(finish, outcomes)
            settling.until_waiting(future)
            locked = Job.objects.filter(pk=large).select_for_update(nowait=True)
            assert [job.state for job in locked] == ["blocked"]
        future.result(20)
        assert set(Job.objects.values_list("state", flat=True)) == {"done", "ready"}

    def test_settles_over_the_same_finalizers_never_deadlock(self, race, no_repeats):
        for _ in range(10):
            jobs = [[first.enqueue(number) for number in range(3)] for _ in range(2)]
            handles = [dependent_of(*some) for some in jobs]
            outcomes = {it.job_id: it for it in map(run, hold(*jobs[0], *jobs[1]))}
            batches = [
                [outcomes[one.id], outcomes[two.id]][:: 1 if number % 2 else -1]
                for number, (one, two) in enumerate(zip(*jobs, strict=True))
            ]
            race(*(partial(finish, batch) for batch in batches))
            assert states(*handles) == ["ready", "ready"]
            for handle in handles:
                handle.cancel()

    def test_a_cancelled_workflow_holds_nothing_that_runs_with_what_is_blocked(self, session):
        workflow = chord([first.s(1)], collect.s()).enqueue()
        (held,) = take()
        stopped = session().stopped_at("cancel.locked", workflow.cancel)
        with stopped as cancelling, transaction.atomic():
            rows = Job.objects.filter(pk=held.job.id).select_for_update(nowait=True)
            assert [job.state for job in rows] == ["inflight"]
        answer = cancelling.result(20)
        assert (answer.moved, answer.asked) == (1, 1)


def finalizers_of(jobs):
    """One dependent of each, whose ids are known: the first is the smaller, and is stored last."""
    ids = UUID(int=1, version=4), UUID(int=2, version=4)
    for job_id, job in reversed([*zip(ids, jobs, strict=True)]):
        record = JobRecord(id=job_id, task=mark.name)
        store(driver(), Plan(records=[record], edges=[Edge(job_id, job.id)]))
    return ids


@pytest.fixture
def short_waits(monkeypatch, patient):
    monkeypatch.setattr(postgresql, "LOCK_TIMEOUT", "100ms")
    monkeypatch.setattr(postgresql, "SHORT_TIMEOUT", "100ms")
    monkeypatch.setattr(ground, "LOCK_WAIT", 1)
    monkeypatch.setattr(ground, "SHORT_WAIT", 1)


@with_row_locks
@pytest.mark.usefixtures("short_waits")
class TestAtomic:
    def test_a_held_dependent_is_no_failure_of_the_handler(self, session):
        job = first.enqueue(1)
        dependent = first.using(after=job).enqueue()
        (held,) = hold(job)
        with transaction.atomic():
            list(Job.objects.filter(pk=dependent.id).select_for_update())
            (rejection,) = session().run(settle_as_atomic, decide.outcome(OutcomeKind.ACK, held))
        assert isinstance(rejection.error, JobLocked)
        assert states(job, dependent) == ["inflight", "blocked"]


def settle_as_atomic(outcome):
    """Settle in a handler's transaction, which is undone when it is refused."""
    with transaction.atomic():
        rejections = driver().settle_waiting(outcome, now=driver().now())
        transaction.set_rollback(bool(rejections))
    return rejections


@with_row_locks
@pytest.mark.usefixtures("short_waits")
class TestTakingBack:
    """Who waits for a lost job is held by somebody, who perhaps never comes back."""

    @pytest.fixture
    def lost(self):
        """Two jobs of a worker that is gone: the one that dies of it has a dependent."""
        jobs = dying, other = first.enqueue(1), first.enqueue(2)
        dependent = first.using(after=dying).enqueue()
        hold(*jobs)
        Job.objects.filter(pk=dying.id).update(lease_losses=1)
        return dying, other, dependent

    def test_an_expired_lease_gives_up_the_others(self, session, lost):
        dying, other, dependent = lost
        with transaction.atomic():
            list(Job.objects.filter(pk=dependent.id).select_for_update())
            assert [each.job.id for each in session().run(reserve_later)] == [other.id]
            assert states(*lost) == ["inflight", "inflight", "blocked"]
        reserve_later()
        assert states(dying, dependent) == ["dead", "dead"]

    def test_a_lease_taken_out_beside_them_is_not_old_when_it_begins(self, session, lost):
        """However long others of its kind may wait: this does not."""
        dependent, brief = lost[2], LEASE / 5
        waiting = first.using(queue="other").enqueue(3)
        Lease.objects.update(expires_at=driver().now())
        reserve = partial(driver().reserve, "other", lease_for=brief, max_lease_losses=2)
        with patiently(), transaction.atomic():
            list(Job.objects.filter(pk=dependent.id).select_for_update())
            (held,) = session().run(lambda: reserve(now=driver().now()))
            assert held.job.id == waiting.id
            assert held.lease.expires_at > driver().now() + brief / 2

    def test_it_gives_up_who_dies_too_if_nobody_holds_who_waits_for_that(self, session, lost):
        dying, other, dependent = lost
        Job.objects.filter(pk=other.id).update(lease_losses=1)
        free = first.using(after=other).enqueue()
        with transaction.atomic():
            list(Job.objects.filter(pk=dependent.id).select_for_update())
            assert session().run(reserve_later) == []
            assert states(dying, dependent, other, free) == ["inflight", "blocked", "dead", "dead"]

    def test_a_lease_that_is_gone_gives_up_the_others(self, session, lost):
        dependent = lost[2]
        Lease.objects.all().delete()
        sweep = partial(driver().sweep, now=driver().now(), max_lease_losses=2)
        with transaction.atomic():
            list(Job.objects.filter(pk=dependent.id).select_for_update())
            assert session().run(sweep) == 1
            assert states(*lost) == ["inflight", "ready", "blocked"]
        assert sweep() == 1
        assert states(*lost) == ["dead", "ready", "dead"]


@contextlib.contextmanager
def patiently():
    """Let who waits as usual wait for longer than the leases of this test last."""
    with pytest.MonkeyPatch.context() as usual:
        usual.setattr(postgresql, "LOCK_TIMEOUT", "8s")
        usual.setattr(ground, "LOCK_WAIT", 8)
        yield


def reserve_later():
    """Reserve at a time when all leases have expired."""
    later = driver().now() + 2 * LEASE
    return driver().reserve("default", now=later, lease_for=LEASE, limit=5, max_lease_losses=2)


@with_row_locks
@pytest.mark.usefixtures("short_waits")
class TestHeldDependents:
    """Somebody holds who waits for a job, and perhaps never comes back."""

    @pytest.fixture
    def held(self):
        """Five jobs that run; each of the first four has a dependent."""
        jobs = [first.enqueue(number) for number in range(5)]
        dependents = [first.using(after=job).enqueue() for job in jobs[:4]]
        return jobs, dependents, [run(each) for each in hold(*jobs)]

    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_a_settle_leaves_only_the_outcomes_that_they_wait_for(self, session, held, count):
        jobs, dependents, outcomes = held
        with holding(dependents[:count]):
            settling = partial(settle, driver(), outcomes, now=driver().now())
            # How often it divides them is bounded: where many are held a few turns are needed.
            left = {it.outcome.job_id: it.error for it in session().run(settling)}
            while len(left) > count:
                left = still_locked(session().run(settling))
            assert set(left) == {job.id for job in jobs[:count]}
            assert {type(error) for error in left.values()} == {JobLocked}
            assert states(*jobs) == ["inflight"] * count + ["done"] * (5 - count)
            assert states(*dependents) == ["blocked"] * count + ["ready"] * (4 - count)
        finish(outcomes[:count])
        assert states(*dependents) == ["ready"] * 4

    def test_so_it_is_with_a_workflow(self, session):
        workflow, (outcome, _) = held_members(first.s(1), first.s(2))
        alone = first.enqueue(3)
        (other,) = [run(each) for each in hold(alone)]
        with transaction.atomic():
            list(Workflow.objects.filter(pk=workflow.id).select_for_update())
            now = driver().now()
            (rejection,) = session().run(settle, driver(), [outcome, other], now=now)
            assert rejection.outcome == outcome
            assert isinstance(rejection.error, JobLocked)
            assert states(alone) == ["done"]
        finish([outcome])

    def test_in_a_transaction_of_the_caller_it_is_the_callers_error(self, session, held):
        _, dependents, outcomes = held

        def settle_inside():
            with transaction.atomic():
                driver().settle(outcomes, now=driver().now())

        if connection.vendor == "postgresql":
            settle_inside = with_lock_timeout(settle_inside)
        with holding(dependents[:1]), pytest.raises(OperationalError) as refused:
            session().run(settle_inside)
        assert transient.is_transient(refused.value)

    def test_a_worker_settles_all_others_and_says_nothing_of_trouble(self, held, caplog):
        jobs, dependents, outcomes = held
        holdings, settled = Holdings(), []
        completer = Completer(
            driver(),
            holdings,
            DatabaseClock(driver().now),
            lambda pairs: settled.extend(outcome.job_id for _, outcome in pairs),
        )
        running = holdings.add([reservation_of(it) for it in outcomes], steady() + 60)
        finished = [*zip(running, outcomes, strict=True)]
        completer.start()
        try:
            with holding(dependents[:1]):
                for each in finished[:4]:
                    completer.put(*each)
                until(lambda: {job.id for job in jobs[1:4]} == set(settled))
                completer.put(*finished[4])  # one that comes later, behind what is held up
                until(lambda: jobs[4].id in settled)
                assert states(jobs[0], dependents[0]) == ["inflight", "blocked"]
            assert completer.drain(20)
        finally:
            completer.close()
        assert sorted(settled) == sorted(job.id for job in jobs)
        assert "cannot be used" not in caplog.text


def reservation_of(outcome):
    lease = LeaseValue(outcome.token, driver().now() + LEASE, outcome.version)
    return Reservation(JobRecord(id=outcome.job_id, task=first.name), lease)


def still_locked(rejections):
    """What is left of a batch that was sent before: the rest of it was applied then."""
    return {it.outcome.job_id: it.error for it in rejections if not it.repeated}


@contextlib.contextmanager
def holding(handles):
    with transaction.atomic():
        list(Job.objects.filter(pk__in=[it.id for it in handles]).select_for_update())
        yield


def with_lock_timeout(work):
    """Let the caller's own transaction have a limit, as it may."""

    def limited():
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
            try:
                work()
            finally:
                cursor.execute("RESET lock_timeout")

    return limited


class TestSubmission:
    """Somebody makes a job wait for one that is ending."""

    def test_that_comes_while_a_job_ends_sees_the_end(self, session):
        job = first.enqueue(1)
        first.using(after=job, queue="other").enqueue()  # marks it as waited for
        (outcome,) = [run(each) for each in hold(job)]
        ending, submitting = session(), session()
        with ending.stopped_at("advance.locked", partial(finish, [outcome])) as future:
            stored = submitting.start(lambda: first.using(after=job).enqueue())
            if connection.vendor != "sqlite":
                submitting.until_waiting(stored)
        future.result(20)
        assert states(stored.result(20)) == ["ready"]
        counts_add_up()

    def test_that_marks_a_job_that_ends_sees_the_end(self, session):
        job = first.enqueue(1)
        (outcome,) = [run(each) for each in hold(job)]
        ending, submitting = session(), session()
        place = "settle.moved"
        if connection.vendor == "postgresql":
            outcome = with_record(outcome)  # not by the one statement, which has no place to stop
        with ending.stopped_at(place, partial(finish, [outcome])) as future:
            stored = submitting.start(lambda: first.using(after=job).enqueue())
            if connection.vendor != "sqlite":
                submitting.until_waiting(stored)
        future.result(20)
        assert states(stored.result(20)) == ["ready"]
        counts_add_up()

    @with_row_locks
    def test_that_found_a_job_marked_before_it_ends_sees_the_end(self, session):
        # Two, because MariaDB keeps its lock on a row that it found by one key and did not want.
        job, done = first.enqueue(1), first.enqueue(2)
        first.using(after=[job, done], queue="other").enqueue()
        end(done)
        (outcome,) = [run(each) for each in hold(job)]
        ending, submitting = session(), session()

        def end_meanwhile():
            stopped.enter_context(ending.stopped_at("advance.locked", partial(finish, [outcome])))

        with contextlib.ExitStack() as stopped, armed("edges.marked", end_meanwhile):
            stored = submitting.start(lambda: first.using(after=[job, done]).enqueue())
            submitting.until_waiting(stored)
        assert states(stored.result(20)) == ["ready"]
        counts_add_up()

    @with_row_locks
    def test_an_end_that_comes_while_a_dependent_is_stored_is_left_for_later(self, session):
        job = first.enqueue(1)
        (outcome,) = [run(each) for each in hold(job)]
        submitting = session()
        work = lambda: first.using(after=job).enqueue()  # noqa: E731
        with submitting.stopped_at("edges.inserted", work) as future:
            (rejection,) = settle(driver(), [outcome], now=driver().now())
            assert isinstance(rejection.error, JobLocked)
        dependent = future.result(20)
        assert states(dependent) == ["blocked"]
        finish([outcome])
        assert states(dependent) == ["ready"]
        counts_add_up()

    def test_that_comes_while_a_job_dies_ends_with_it(self, session):
        job = first.enqueue(1)
        middle = first.using(after=job).enqueue()
        (held,) = hold(job)
        outcome = fail_instead(run(held))
        ending, submitting = session(), session()
        with ending.stopped_at("advance.read", partial(finish, [outcome])) as future:
            # Stored before the closure is locked: it must be found by the second look.
            stored = submitting.start(lambda: first.using(after=middle).enqueue())
            if connection.vendor != "sqlite":
                stored.result(20)
        future.result(20)
        assert states(job, middle, stored.result(20)) == ["dead", "dead", "dead"]
        counts_add_up()


def with_record(outcome):
    return replace(outcome, record=True)


class TestRevival:
    @with_row_locks
    def test_looks_again_whether_another_dependency_has_died(self, session):
        one, two = first.enqueue(1), first.enqueue(2)
        dependent = first.using(after=[one, two]).enqueue()
        end(one, "dead")
        (held,) = hold(two)
        dying = fail_instead(run(held))
        reviving = session()
        with reviving.stopped_at("advance.read", lambda: requeue([one])) as future:
            finish([dying])
        future.result(20)
        assert states(one, two, dependent) == ["ready", "dead", "dead"]
        counts_add_up()

    def test_a_death_that_comes_while_a_dependent_is_revived_takes_it_along(self, session):
        one, two = first.enqueue(1), first.enqueue(2)
        dependent = first.using(after=[one, two]).enqueue()
        end(one, "dead")
        (held,) = hold(two)
        dying = fail_instead(run(held))
        reviving, other = session(), session()
        with reviving.stopped_at("revive.locked", lambda: requeue([one])) as future:
            death = other.start(finish, [dying])
            if connection.vendor != "sqlite":
                other.until_waiting(death)
        future.result(20)
        death.result(20)
        assert states(one, two, dependent) == ["ready", "dead", "dead"]
        counts_add_up()


class TestCancel:
    def test_of_a_workflow_races_with_its_members(self, race):
        for _ in range(5):
            workflow, outcomes = held_members(*(first.s(number) for number in range(3)))
            race(
                *(partial(keep_trying, it) for it in outcomes), partial(workflow.cancel, force=True)
            )
            counts_add_up()
            work()
            assert workflow.state in (WorkflowState.DONE, WorkflowState.CANCELLED)
            counts_add_up()
