"""Drivers and operations beside the model: random verbs, and after each the same on both sides."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from taskharbor_django.drivers import FailureUpdate, JobRecord, Outcome
from taskharbor_django.lifecycle import OutcomeKind

from .model import CATEGORIES, LEASE, MAX_ATTEMPTS, MAX_LOSSES, Model

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)
# Few jobs, mostly in one queue, so that the verbs meet the same ones; what stands twice comes more.
QUEUES = st.sampled_from(["a", "a", "b"])
MOST_JOBS = 4
SOON = st.sampled_from([None, timedelta(seconds=3), timedelta(seconds=15)])
LIFETIMES = st.sampled_from([None, None, timedelta(seconds=40)])
WORKERS = st.sampled_from(["first", "second"])
KINDS = st.sampled_from([*OutcomeKind, OutcomeKind.FAIL, OutcomeKind.RETRY])
PICK = st.integers(0, 50)
LOST = "lost"
# How attempts end that follow each other.
ROUNDS = st.lists(
    st.sampled_from([LOST, LOST, OutcomeKind.RETRY, OutcomeKind.FAIL, OutcomeKind.RELEASE]),
    min_size=1,
    max_size=4,
)
REPAIRS = st.tuples(
    st.sampled_from(["requeue", "requeue", "bury", "replay", "discard", "cancel"]),
    PICK,
    SOON,
    st.booleans(),
)


def some(*states):
    """The rule needs a job in one of these states; what it then picks may be another."""
    return precondition(lambda self: any(it.state in states for it in self.model.jobs.values()))


class Machine(RuleBasedStateMachine):
    """One example: a stand, a model, and all reservations that were ever given out."""

    def __init__(self, stand):
        super().__init__()
        stand.clear()
        self.stand, self.driver = stand, stand.driver
        self.model = Model(NOON, orphans_at_once=not stand.has_operations)
        self.stand.set_time(NOON)
        self.held = []
        self.made = []

    def job(self, pick, *states):
        """One of the jobs that there ever were, mostly one that the verb is meant for."""
        meant = [job.id for job in self.model.jobs.values() if job.state in states]
        among = meant if meant and pick % 4 else self.made
        return among[pick // 4 % len(among)]

    def known(self, pick, *states):
        return self.model.jobs.get(self.job(pick, *states))

    def given(self, pick):
        """One of the reservations that there ever were, mostly one that is still good."""
        good = [it for it in self.held if self._refusal(it) is None]
        among = good if good and pick % 4 else self.held
        return among[-1 - pick // 4 % len(among)]

    def _refusal(self, held):
        return self.model.refusal(held.job.id, held.lease.token, held.lease.version)

    # -- workers ---------------------------------------------------------------------------------

    @initialize(
        jobs=st.lists(st.tuples(QUEUES, SOON, LIFETIMES), min_size=2, max_size=3),
        ends=ROUNDS,
        repairs=st.lists(REPAIRS, min_size=3, max_size=5),
    )
    def begin(self, jobs, ends, repairs):
        """With a past: from nothing an example would be too short for what dead jobs meet."""
        for job in jobs:
            self._enqueue(*job)
        self._attempt("a", "first", 4, ends)
        for repair in repairs:
            self._repair(*repair)
            self.the_same_on_both_sides()

    def _repair(self, verb, pick, _delay, flag):
        """A machine with operators has more."""
        if verb == "cancel":
            self.cancel(pick, force=flag)

    @precondition(lambda self: self.model.alive() < MOST_JOBS)
    @rule(queue=QUEUES, delay=SOON, lifetime=LIFETIMES)
    def enqueue(self, queue, delay, lifetime):
        self._enqueue(queue, delay, lifetime)

    def _enqueue(self, queue, delay, lifetime):
        record = JobRecord(
            task="t",
            queue=queue,
            created_at=self.model.now,
            run_at=None if delay is None else self.model.now + delay,
            lifetime=lifetime,
            max_attempts=MAX_ATTEMPTS,
        )
        self.driver.enqueue(record)
        self.made.append(record.id)
        self.model.enqueue(record.id, queue, delay=delay, lifetime=lifetime)

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds):
        self._pass(timedelta(seconds=seconds))

    def _pass(self, time):
        self.model.now += time
        self.stand.set_time(self.model.now)

    @rule(queue=QUEUES, limit=st.integers(1, 3), worker=WORKERS)
    def reserve(self, queue, limit, worker):
        self._reserve(queue, limit, worker)

    def _reserve(self, queue, limit, worker):
        taken = self.driver.reserve(
            queue,
            now=self.model.now,
            lease_for=LEASE,
            limit=limit,
            worker=worker,
            token=uuid4(),
            max_lease_losses=MAX_LOSSES,
        )
        self.model.before_claim()
        expected = self.model.next_in_line(queue, limit)
        assert [each.job.id for each in taken] == [job.id for job in expected]
        for job, each in zip(expected, taken, strict=True):
            self.model.claim(job, each.lease.token, worker)
            assert each.lease.version == job.version
        alone = [each.lease.token for each in taken if each.job.lease_losses]
        shared = {each.lease.token for each in taken if not each.job.lease_losses}
        assert len({*alone, *shared}) == len(alone) + bool(shared)
        self.held += taken
        return taken

    @some("ready", "scheduled", "inflight")
    @rule(queue=QUEUES, worker=WORKERS, seconds=st.sampled_from([0, 4, 4, 16]), ends=ROUNDS)
    def attempts_follow_each_other(self, queue, worker, seconds, ends):
        """Counts add up and jobs die, to which single verbs seldom come."""
        self._attempt(queue, worker, seconds, ends)

    def _attempt(self, queue, worker, seconds, ends):
        for end in ends:
            self._pass(timedelta(seconds=seconds))
            taken = self._reserve(queue, 2, worker)
            if end == LOST:
                self._die(worker)
            for each in taken if end != LOST else ():
                self._settle(each, end, None, started=True)
            self.the_same_on_both_sides()

    @precondition(lambda self: self.held)
    @rule(pick=PICK, kind=KINDS, delay=SOON, started=st.booleans())
    def settle(self, pick, kind, delay, started):
        """By whoever was ever given the job, so now and then too late."""
        self._settle(self.given(pick), kind, delay, started=started)

    def _settle(self, each, kind, delay, *, started):
        now, job_id = self.model.now, each.job.id
        run_at = None if delay is None else now + delay
        job = self.model.jobs.get(job_id)
        outcome = self._outcome(each, kind, run_at, started, job)
        error = self._refusal(each)
        rejections = self.driver.settle([outcome], now=now)
        assert [type(it.error) for it in rejections] == ([error] if error else [])
        if error is None:
            self.model.settle(job, kind.value, run_at=run_at, started=started)
        elif kind == OutcomeKind.ACK:
            own = job is not None and (job.state, job.token) == ("done", each.lease.token)
            assert rejections[0].repeated == own

    def _outcome(self, each, kind, run_at, started, job):
        failed = kind in (OutcomeKind.RETRY, OutcomeKind.FAIL)
        update = FailureUpdate(attempts=job.attempts + 1 if job else 1, run_at=run_at)
        return Outcome(
            job_id=each.job.id,
            token=each.lease.token,
            version=each.lease.version,
            kind=kind,
            started_at=self.model.now if started else None,
            run_at=run_at if kind == OutcomeKind.RELEASE else None,
            update=update if failed else None,
            reason="exhausted" if kind == OutcomeKind.FAIL else "",
        )

    @precondition(lambda self: self.held)
    @rule(picks=st.lists(PICK, min_size=1, max_size=3))
    def beat(self, picks):
        tokens = {self.given(pick).lease.token for pick in picks}
        renewed = self.driver.extend_leases(tokens, now=self.model.now, lease_for=LEASE)
        expected = {token: until for token in tokens if (until := self.model.renew(token))}
        assert {token: lease.expires_at for token, lease in renewed.items()} == expected

    @rule(worker=WORKERS)
    def a_worker_is_seen_to_die(self, worker):
        self._die(worker)

    def _die(self, worker):
        self.driver.expire_leases(worker, now=self.model.now)
        self.model.end_leases(worker)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def a_lease_row_is_lost(self, pick):
        token = self.given(pick).lease.token
        self.stand.drop_lease(token)
        self.model.leases.pop(token, None)

    @rule()
    def sweep(self):
        self.driver.sweep(now=self.model.now, max_lease_losses=MAX_LOSSES)
        self.model.take_back(gone=True, expired=self.model.orphans_at_once)
        self.model.remove_empty_leases()

    # -- operators -------------------------------------------------------------------------------

    @some("ready", "scheduled", "inflight")
    @rule(pick=PICK, force=st.booleans())
    def cancel(self, pick, force):
        job = self.known(pick, "ready", "scheduled", "inflight")
        if job is not None:
            self.stand.cancel(job.id, self.model.now, force=force)
            self.model.cancel(job, force=force)

    @rule(queue=QUEUES, seconds=st.sampled_from([None, 2, 20]))
    def pause(self, queue, seconds):
        """Or resume it, if it is paused: a queue that stands still shows little."""
        if queue in self.model.paused:
            self.stand.resume(queue)
            del self.model.paused[queue]
            return
        until = None if seconds is None else self.model.now + timedelta(seconds=seconds)
        self.stand.pause(queue, until)
        self.model.paused[queue] = until

    # -- what must hold after each ---------------------------------------------------------------

    @invariant()
    def the_same_on_both_sides(self):
        jobs = self.model.jobs
        assert self.stand.rows(self.made) == {job.id: job.facts for job in jobs.values()}
        tokens = {job.token for job in self.model.inflight()}
        standing = {token: until for token, until in self.model.leases.items() if token in tokens}
        assert self.stand.leases(tokens) == standing
        letters = {job.id: (job.letter, CATEGORIES[job.letter]) for job in self.model.buried()}
        assert self.stand.letters() in (None, letters)
        recorded = {
            (job.id, version): end
            for job in jobs.values()
            for version, end in job.attempts_recorded.items()
        }
        assert self.stand.attempts(jobs) == recorded
