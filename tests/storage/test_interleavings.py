"""
Two sessions, each stopped at the worst place: who wins, and that nobody waits.

The sessions are real and their order is forced; mostly PostgreSQL only, because the places lie
inside its statements. Both forms of the driver are put through all of it.
"""

from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection, transaction

from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.lifecycle import JobState, OutcomeKind
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Notice
from taskharbor_django.operations import cancel

from .drivers import (
    END,
    FORMS,
    acks,
    errors,
    hold,
    job,
    outcome,
    put,
    reclaim,
    take,
)
from .raw import LEASE, NOW
from .sessions import ended

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

TICK = timedelta(microseconds=1)
LAST = END - TICK  # the last moment at which the leases of `hold` stand

# Where the locking statements say by what they found their rows.
IN_CLAIM = '"taskharbor_job"."state" = \'ready\''
IN_RECLAIM_OF_LEASES = '"taskharbor_lease"."expires_at" <= %s'
IN_SWEEP = '"taskharbor_job"."state" = \'inflight\''
IN_PROMOTE = {
    "set-based": '"available_at" <= %s',
    "portable": '"taskharbor_job"."available_at" <= %s',
}
IN_ACK = {
    "set-based": '"taskharbor_job"."state" IS NOT DISTINCT FROM \'inflight\'',
    "portable": '"taskharbor_job"."id" IN (%s)',
}
IN_SETTLE = '"taskharbor_job"."id" IN (%s)'


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture
def driver(form, transactional_db):
    return FORMS[form]()


def renew(driver, held, now=LAST):
    return driver.extend_leases([held.lease.token], now=now, lease_for=LEASE)


def settle(driver, outcomes, now=LAST):
    return driver.settle(outcomes, now=now)


def locked(held):
    """Hold the row of a job, as a handler's transaction or a stopped process does."""
    return list(Job.objects.filter(pk=held.job.id).select_for_update())


class TestHeartbeatAgainstReclaim:
    def test_a_heartbeat_waits_for_a_reclaim_and_learns_that_it_lost(self, driver, session):
        (held,) = hold(driver)
        first, second = session(), session()
        with first.stopped_at("reclaim.leases_locked", lambda: reclaim(driver)) as reclaiming:
            beating = second.start(renew, driver, held)
            second.until_waiting(beating)
        ended(reclaiming)
        assert ended(beating) == {}
        found = job(held)
        assert (found.state, found.lease, found.lease_losses) == ("ready", None, 1)

    @pytest.mark.mariadb
    def test_a_reclaim_does_not_wait_for_a_heartbeat(self, driver, session):
        (held,) = hold(driver)
        with transaction.atomic():
            assert renew(driver, held)
            session().run(reclaim, driver)
        session().run(reclaim, driver)
        assert (job(held).lease, job(held).lease_losses) == (held.lease.token, 0)

    def test_a_lease_renewed_after_the_look_of_a_reclaim_is_not_taken(self, driver, session):
        (held,) = hold(driver)
        with session().held_back(lambda: reclaim(driver), at=IN_RECLAIM_OF_LEASES) as reclaiming:
            assert renew(driver, held)
        ended(reclaiming)
        found = job(held)
        assert (found.state, found.lease, found.lease_losses) == ("inflight", held.lease.token, 0)
        assert settle(driver, acks([held]), now=END) == []

    @pytest.mark.mariadb
    def test_a_lease_renewed_right_before_its_lock_is_not_taken(self, driver, session):
        """What a reclaim has seen before it had the lock does not count."""
        (held,) = hold(driver)
        beat, renewed = session(), []

        def renew_first(run, sql, *rest):
            if "taskharbor_lease" in sql and "FOR UPDATE" in sql and not renewed:
                renewed.append(beat.run(renew, driver, held))
            return run(sql, *rest)

        with connection.execute_wrapper(renew_first):
            reclaim(driver)
        assert held.lease.token in renewed[0]
        assert (job(held).lease, job(held).lease_losses) == (held.lease.token, 0)

    @pytest.mark.mariadb
    @pytest.mark.sqlite
    def test_a_lease_renewed_between_peek_and_reclaim_is_not_taken(self, driver, session):
        (held,) = hold(driver)
        with session().stopped_at("reserve.peeked", lambda: reclaim(driver)) as reclaiming:
            assert renew(driver, held)
        ended(reclaiming)
        assert (job(held).lease, job(held).lease_losses) == (held.lease.token, 0)

    def test_of_several_leases_only_the_renewed_one_stays(self, driver, session):
        first, second = hold(driver), hold(driver)
        with session().held_back(lambda: reclaim(driver), at=IN_RECLAIM_OF_LEASES) as reclaiming:
            assert renew(driver, first[0])
        ended(reclaiming)
        assert (job(first[0]).state, job(second[0]).state) == ("inflight", "ready")
        assert list(Lease.objects.values_list("pk", flat=True)) == [first[0].lease.token]

    def test_a_heartbeat_that_waited_for_another_sees_what_that_one_did(self, session):
        # The first beat's reply was lost and it is sent again, a tick too late for the old expiry.
        # Only as one statement can it meet itself halfway.
        driver = DatabaseDriver()
        (held,) = hold(driver)
        beat = session()
        with transaction.atomic():
            assert renew(driver, held, now=LAST)
            again = beat.start(renew, driver, held, now=END)
            beat.until_waiting(again)
        assert ended(again)[held.lease.token].expires_at == END + LEASE

    def test_a_heartbeat_that_waited_does_not_renew_what_was_ended(self, driver, session):
        # The process was seen to die; a beat that it had sent before arrives now.
        (held,) = hold(driver, queue="q")
        beat = session()
        with transaction.atomic():
            Lease.objects.update(expires_at=NOW)
            late = beat.start(renew, driver, held)
            beat.until_waiting(late)
        assert ended(late) == {}
        assert Lease.objects.get().expires_at == NOW

    def test_two_processes_beat_in_crossing_orders(self, driver, race):
        tokens = [held[0].lease.token for held in (hold(driver) for _ in range(20))]
        orders = [tokens, tokens[::-1]] * 2

        def beat(order):
            renewed = [driver.extend_leases(order, now=LAST, lease_for=LEASE) for _ in range(10)]
            return {len(each) for each in renewed}

        assert race(*[lambda order=order: beat(order) for order in orders]) == [{20}] * 4


GIVEN_BACK = {OutcomeKind.RETRY: "ready", OutcomeKind.RELEASE: "ready"}
AFTER = GIVEN_BACK | {
    OutcomeKind.ACK: "done",
    OutcomeKind.FAIL: "dead",
    OutcomeKind.CANCEL: "cancelled",
}


class TestSettleAgainstReclaim:
    @pytest.mark.parametrize("kind", OutcomeKind)
    def test_a_reclaim_skips_what_a_settle_holds(self, driver, session, kind):
        (held,) = hold(driver)
        sent = outcome(kind, held, record=True)
        with session().stopped_at("settle.locked", lambda: settle(driver, [sent])) as settling:
            reclaim(driver)
            assert Lease.objects.filter(pk=held.lease.token).exists()
        assert ended(settling) == []
        found = job(held)
        assert (found.state, found.lease_losses) == (AFTER[kind], 0)
        assert not Attempt.objects.filter(end="lost").exists()
        reclaim(driver)
        assert not Lease.objects.exists()

    def test_a_lease_stays_until_none_of_its_jobs_is_left(self, driver, session):
        held = hold(driver, 5)
        sent = [outcome(OutcomeKind.RETRY, each) for each in held[:2]]
        with session().stopped_at("settle.locked", lambda: settle(driver, sent)) as settling:
            reclaim(driver)
            states = Counter(job(each).state for each in held)
            assert states == {"inflight": 2, "ready": 3}
            assert Lease.objects.filter(pk=held[0].lease.token).exists()
        assert ended(settling) == []
        assert [job(each).lease_losses for each in held] == [0, 0, 1, 1, 1]
        reclaim(driver)
        assert not Lease.objects.exists()
        assert [job(each).lease_losses for each in held] == [0, 0, 1, 1, 1]

    def test_a_settle_that_is_undone_leaves_its_jobs_to_the_next_reclaim(self, driver, session):
        held = hold(driver, 2)
        with transaction.atomic():
            assert settle(driver, acks(held[:1])) == []
            session().run(reclaim, driver)
            transaction.set_rollback(True)
        assert [job(each).state for each in held] == ["inflight", "ready"]
        reclaim(driver)
        assert [job(each).lease_losses for each in held] == [1, 1]

    @pytest.mark.parametrize("kind", OutcomeKind)
    def test_a_settle_finds_what_a_reclaim_holds_locked_and_then_lost(self, driver, session, kind):
        (held,) = hold(driver)
        sent, settler = outcome(kind, held), session()
        with session().stopped_at("reclaim.jobs_moved", lambda: reclaim(driver)) as reclaiming:
            assert errors(settler.run(settle, driver, [sent])) == ["JobLocked"]
        ended(reclaiming)
        (rejection,) = settler.run(settle, driver, [sent])
        assert (errors([rejection]), rejection.repeated) == (["JobNotInflight"], False)
        assert (job(held).state, job(held).lease_losses) == ("ready", 1)

    @pytest.mark.parametrize("kind", OutcomeKind)
    def test_a_settle_whose_look_is_older_than_a_reclaim_is_refused(
        self, driver, form, session, kind
    ):
        (held,) = hold(driver)
        sent = outcome(kind, held)
        at = IN_ACK[form] if kind == OutcomeKind.ACK else IN_SETTLE
        with session().held_back(lambda: settle(driver, [sent]), at=at) as settling:
            reclaim(driver)
        (rejection,) = ended(settling)
        assert (errors([rejection]), rejection.repeated) == (["JobNotInflight"], False)
        assert (job(held).state, job(held).lease_losses) == ("ready", 1)
        assert not DeadLetter.objects.exists()

    @pytest.mark.parametrize("kind", OutcomeKind)
    def test_a_settle_whose_look_is_older_than_the_next_reserve_is_refused(
        self, driver, form, session, kind
    ):
        (held,) = hold(driver)
        sent = outcome(kind, held)
        at = IN_ACK[form] if kind == OutcomeKind.ACK else IN_SETTLE
        with session().held_back(lambda: settle(driver, [sent]), at=at) as settling:
            (again,) = take(driver, now=END)
        (rejection,) = ended(settling)
        assert (errors([rejection]), rejection.repeated) == (["LeaseMismatch"], False)
        found = job(held)
        assert (found.state, found.lease) == ("inflight", again.lease.token)
        assert settle(driver, acks([again]), now=END) == []


class TestSettle:
    @pytest.mark.mariadb
    def test_a_row_that_another_holds_keeps_nothing_else_waiting(self, driver, session):
        held = hold(driver, 10)
        holder, settler = session(), session()

        def keep():
            with transaction.atomic():
                locked(held[4])
                settling = settler.start(settle, driver, acks(held))
                return ended(settling)

        (rejection,) = holder.run(keep)
        assert (errors([rejection]), rejection.outcome.job_id) == (["JobLocked"], held[4].job.id)
        assert Counter(job(each).state for each in held) == {"done": 9, "inflight": 1}
        assert settle(driver, acks(held[4:5])) == []

    @pytest.mark.mariadb
    @pytest.mark.parametrize("kind", OutcomeKind)
    def test_each_kind_reports_a_held_row_as_locked(self, driver, session, kind):
        held = hold(driver, 3)
        sent = [outcome(kind, each) for each in held]
        settler = session()
        with transaction.atomic():
            locked(held[1])
            assert errors(settler.run(settle, driver, sent)) == ["JobLocked"]
        assert errors(settle(driver, sent)) == ["JobNotInflight"] * 2
        assert Counter(job(each).state for each in held) == {AFTER[kind]: 3}

    def test_a_request_made_after_the_look_is_not_written_over(self, driver, form, session):
        (held,) = hold(driver)
        work = lambda: settle(driver, acks([held]))  # noqa: E731
        with session().held_back(work, at=IN_ACK[form]) as settling:
            Job.objects.update(cancel_requested_at=NOW, progress=50)
        assert ended(settling) == []
        found = job(held)
        # A normal return wins over the request.
        assert (found.state, found.cancel_requested_at, found.progress) == ("done", NOW, 50)

    def test_a_request_made_after_the_look_turns_a_retry_into_the_end(self, driver, session):
        (held,) = hold(driver)
        work = lambda: settle(driver, [outcome(OutcomeKind.RETRY, held)])  # noqa: E731
        with session().held_back(work, at=IN_SETTLE) as settling:
            Job.objects.update(cancel_requested_at=NOW)
        assert ended(settling) == []
        assert (job(held).state, job(held).lease) == ("cancelled", None)

    def test_a_follower_that_came_after_the_look_is_told(self, form, session):
        told = []
        driver = FORMS[form](on_end=told.extend)
        (held,) = hold(driver)
        work = lambda: settle(driver, acks([held]))  # noqa: E731
        with session().held_back(work, at=IN_ACK[form]) as settling:
            Job.objects.update(has_dependents=True)
        assert ended(settling) == []
        assert (job(held).state, told) == ("done", [held.job.id])

    @pytest.mark.parametrize("kind", OutcomeKind)
    def test_two_settles_of_the_same_jobs_apply_each_once(self, driver, session, kind):
        held = hold(driver, 4)
        sent = [outcome(kind, each, record=True) for each in held]
        first, second = session(), session()
        with first.stopped_at("settle.locked", lambda: settle(driver, sent)) as settling:
            rejected = second.run(settle, driver, sent[::-1])
            assert errors(rejected) == ["JobLocked"] * 4
        assert ended(settling) == []
        rejected = second.run(settle, driver, sent[::-1])
        assert [(type(each.error).__name__, each.repeated) for each in rejected] == [
            ("JobNotInflight", True)
        ] * 4
        attempts = 0 if kind in (OutcomeKind.RELEASE, OutcomeKind.CANCEL) else 4
        assert Attempt.objects.count() == attempts
        assert DeadLetter.objects.count() == (4 if kind == OutcomeKind.FAIL else 0)

    def test_overlapping_settles_each_take_what_the_other_does_not_hold(self, driver, session):
        held = hold(driver, 6)
        sent = [outcome(OutcomeKind.RETRY, each) for each in held]
        with session().stopped_at("settle.moved", lambda: settle(driver, sent[:4])) as settling:
            rejected = session().run(settle, driver, sent[2:][::-1])
            assert {each.outcome.job_id for each in rejected} == {h.job.id for h in held[2:4]}
            assert errors(rejected) == ["JobLocked"] * 2
        assert ended(settling) == []
        assert [job(each).attempts for each in held] == [1] * 6
        assert Attempt.objects.count() == 6

    def test_batches_in_opposite_order_never_deadlock(self, driver, race):
        for kind in (OutcomeKind.ACK, OutcomeKind.RETRY):
            held = hold(driver, 60, queue=kind.value)
            sent = [outcome(kind, each) for each in held]
            batches = [sent[:40], sent[20:][::-1], sent[::-2], sent[::2]]
            settled = race(*[lambda b=batch: persist(driver, b) for batch in batches])
            applied = [job_id for part in settled for job_id in part]
            assert Counter(applied) == Counter(each.job.id for each in held)


def persist(driver, outcomes):
    """Settle until nothing is locked; return the jobs that this call moved."""
    applied, left = [], outcomes
    while left:
        rejected = {each.outcome.job_id: each for each in settle(driver, left)}
        applied += [each.job_id for each in left if each.job_id not in rejected]
        retried = [each for each in rejected.values() if type(each.error).__name__ == "JobLocked"]
        left = [each.outcome for each in retried]
        others = [each for each in rejected.values() if each not in retried]
        assert all(each.repeated for each in others)
    return applied


class TestClaim:
    @pytest.mark.mariadb
    def test_a_claim_takes_the_next_instead_of_waiting(self, driver, session):
        ids = put(driver, 5)
        claimer = session()
        with transaction.atomic():
            list(Job.objects.filter(pk__in=ids[1:3]).select_for_update())
            taken = claimer.run(take, driver, limit=2)
            assert [each.job.id for each in taken] == [ids[0], ids[3]]
            assert claimer.run(take, driver, limit=5)[0].job.id == ids[4]
            assert claimer.run(take, driver) == []
        assert [each.job.id for each in take(driver, limit=5)] == ids[1:3]

    def test_a_claim_whose_look_is_older_than_another_takes_nothing_twice(self, driver, session):
        ids = put(driver, 3)
        first = session()
        work = lambda: take(driver, limit=2)  # noqa: E731
        with first.held_back(work, at=IN_CLAIM) as claiming:
            (other,) = take(driver)
        taken = ended(claiming)
        assert [each.job.id for each in taken] == ids[1:]
        assert (job(ids[0]).lease, job(ids[0]).lease_version) == (other.lease.token, 1)

    def test_a_job_taken_and_released_after_the_look_counts_both(self, driver, session):
        (job_id,) = put(driver)
        with session().held_back(lambda: take(driver), at=IN_CLAIM) as claiming:
            (other,) = take(driver)
            assert settle(driver, [outcome(OutcomeKind.RETRY, other)], now=NOW) == []
        (taken,) = ended(claiming)
        found = job(job_id)
        assert (found.lease_version, taken.lease.version, taken.job.attempts) == (2, 2, 1)

    def test_a_job_that_was_lost_after_the_look_is_in_quarantine(self, driver, session):
        put(driver, 2)
        call = uuid4()
        (first,) = take(driver)
        reclaim(driver)
        Job.objects.filter(pk=first.job.id).update(lease_losses=0)
        work = lambda: take(driver, limit=2, token=call)  # noqa: E731
        with session().held_back(work, at=IN_CLAIM) as claiming:
            Job.objects.filter(pk=first.job.id).update(lease_losses=1)
        tokens = {each.job.id: each.lease.token for each in ended(claiming)}
        assert tokens.pop(first.job.id) != call
        assert list(tokens.values()) == [call]
        assert Lease.objects.filter(call=call).count() == 2

    def test_jobs_cancelled_after_the_look_are_left(self, driver, session):
        ids = put(driver, 2)
        work = lambda: take(driver, limit=2)  # noqa: E731
        with session().held_back(work, at=IN_CLAIM) as claiming:
            cancel(ids[:1])
        assert [each.job.id for each in ended(claiming)] == ids[1:]
        assert job(ids[0]).state == "cancelled"

    def test_nothing_is_left_of_a_claim_that_is_undone(self, driver, session):
        ids = put(driver, 2)
        with transaction.atomic():
            assert len(take(driver, limit=2)) == 2
            assert session().run(take, driver) == []
            transaction.set_rollback(True)
        assert not Lease.objects.exists()
        assert [each.job.id for each in take(driver, limit=2)] == ids


class TestPromote:
    def test_what_another_promoted_and_took_is_not_made_ready_again(self, driver, form, session):
        put(driver, 3, run_at=END)
        with session().held_back(lambda: take(driver, now=END), at=IN_PROMOTE[form]) as second:
            held = take(driver, now=END, limit=3)
            assert settle(driver, acks(held[:1]), now=END) == []
        assert ended(second) == []
        assert Counter(Job.objects.values_list("state", flat=True)) == {"inflight": 2, "done": 1}
        assert [job(each).lease for each in held] == [held[0].lease.token] * 3

    def test_what_was_put_off_after_the_look_stays_put_off(self, driver, form, session):
        (job_id,) = put(driver, run_at=END)
        with session().held_back(lambda: take(driver, now=END), at=IN_PROMOTE[form]) as promoting:
            Job.objects.update(run_at=END + LEASE, available_at=END + LEASE)
        assert ended(promoting) == []
        assert job(job_id).state == JobState.SCHEDULED

    @pytest.mark.mariadb
    def test_a_held_row_is_promoted_next_time(self, driver, session):
        ids = put(driver, 3, run_at=END)
        promoter = session()
        with transaction.atomic():
            list(Job.objects.filter(pk=ids[0]).select_for_update())
            taken = promoter.run(take, driver, now=END, limit=5)
            assert [each.job.id for each in taken] == ids[1:]
        assert [each.job.id for each in take(driver, now=END)] == ids[:1]


class TestSweep:
    def lost(self, driver):
        (held,) = hold(driver)
        Lease.objects.all().delete()
        return held

    def test_a_job_reserved_again_after_the_look_is_not_stolen(self, driver, session):
        held = self.lost(driver)
        work = lambda: driver.sweep(now=NOW)  # noqa: E731
        with session().held_back(work, at=IN_SWEEP) as sweeping:
            assert driver.sweep(now=NOW) == 1
            (again,) = take(driver)
        assert ended(sweeping) == 0
        found = job(held)
        assert (found.state, found.lease, found.lease_losses) == ("inflight", again.lease.token, 1)
        assert Attempt.objects.count() == 1
        assert settle(driver, acks([again]), now=NOW) == []

    @pytest.mark.mariadb
    def test_a_sweep_skips_what_another_holds(self, driver, session):
        held = self.lost(driver)
        with transaction.atomic():
            locked(held)
            assert session().run(driver.sweep, now=NOW) == 0
        assert driver.sweep(now=NOW) == 1

    def test_a_sweep_leaves_an_empty_lease_to_the_heartbeat_that_holds_it(self, driver, session):
        (held,) = hold(driver)
        assert settle(driver, acks([held])) == []
        with transaction.atomic():
            list(Lease.objects.select_for_update())
            assert session().run(driver.sweep, now=NOW) == 0
        assert Lease.objects.exists()
        driver.sweep(now=NOW)
        assert not Lease.objects.exists()

    def test_a_lease_whose_jobs_are_being_settled_stays(self, driver, session):
        (held,) = hold(driver)
        with transaction.atomic():
            assert settle(driver, acks([held])) == []
            session().run(driver.sweep, now=NOW)
            transaction.set_rollback(True)
        assert settle(driver, acks([held])) == []

    def test_two_sweeps_take_back_each_job_once(self, driver, race):
        held = hold(driver, 200)
        Lease.objects.all().delete()
        assert sum(race(*[lambda: driver.sweep(now=NOW)] * 4)) == 200
        assert {job(each).lease_losses for each in held} == {1}


class TestCancelAgainstSettle:
    def test_a_forced_cancel_that_came_first_wins(self, driver, session):
        (held,) = hold(driver)
        work = lambda: cancel([held.job.id], force=True)  # noqa: E731
        with session().stopped_at("cancel.locked", work) as cancelling:
            assert errors(session().run(settle, driver, acks([held]))) == ["JobLocked"]
        assert ended(cancelling).moved == 1
        (rejection,) = settle(driver, acks([held]))
        assert (errors([rejection]), rejection.repeated) == (["JobNotInflight"], False)
        assert (job(held).state, job(held).lease) == ("cancelled", None)
        assert Notice.objects.get().kind == Notice.Kind.REVOKED

    def test_a_settle_that_came_first_wins(self, driver, session):
        (held,) = hold(driver)
        sent = outcome(OutcomeKind.ACK, held, record=True)
        canceller = session()
        with session().stopped_at("settle.moved", lambda: settle(driver, [sent])) as settling:
            cancelling = canceller.start(cancel, [held.job.id], force=True)
            canceller.until_waiting(cancelling)
        assert ended(settling) == []
        assert ended(cancelling).left == {"ended": 1}
        assert (job(held).state, job(held).lease) == ("done", held.lease.token)
        assert not Notice.objects.exists()

    def test_a_settle_whose_look_is_older_than_the_cancel_is_refused(self, driver, form, session):
        (held,) = hold(driver)
        work = lambda: settle(driver, acks([held]))  # noqa: E731
        with session().held_back(work, at=IN_ACK[form]) as settling:
            assert cancel([held.job.id], force=True).moved == 1
        assert errors(ended(settling)) == ["JobNotInflight"]
        assert (job(held).state, job(held).lease) == ("cancelled", None)

    def test_a_forced_cancel_is_lost_to_the_worker_with_the_next_beat(self, driver):
        (held,) = hold(driver)
        assert cancel([held.job.id], force=True).moved == 1
        assert renew(driver, held) == {}
        assert not Lease.objects.exists()
