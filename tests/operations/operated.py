"""The machine with all that operators and chores do, which only a database has."""

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import rule

from taskharbor_django import operations
from taskharbor_django.operations.expire import expire
from taskharbor_django.operations.prune import prune

from .machine import PICK, QUEUES, SOON, Machine, some

A_WEEK = timedelta(days=8)


class OperatedMachine(Machine):
    """Verbs of workers, operators and chores on one database."""

    def _repair(self, verb, pick, delay, flag):
        if verb == "requeue":
            self.requeue(pick, delay, one_more=flag)
        elif verb == "replay":
            self.replay(pick, keep=flag)
        elif verb in ("bury", "discard"):
            getattr(self, verb)(pick)
        else:
            super()._repair(verb, pick, delay, flag)

    @some("dead")
    @rule(pick=PICK, delay=SOON, one_more=st.booleans())
    def requeue(self, pick, delay, one_more):
        job, job_id = self.known(pick, "dead"), self.job(pick, "dead")
        moved = operations.requeue([job_id], delay=delay, one_more=one_more).moved
        assert moved == (
            job is not None and self.model.requeue(job, delay=delay, one_more=one_more)
        )

    @some("dead")
    @rule(pick=PICK, keep=st.booleans())
    def replay(self, pick, keep):
        old = self.known(pick, "dead")
        done = operations.replay([self.job(pick, "dead")], keep=keep)
        if old is None or old.state != "dead" or old.erased:
            assert done.made == ()
            return
        (new,) = done.made
        self.made.append(new)
        lifetime = self.model.lifetime(old)
        self.stand.move_to_now(new, self.model.now, lifetime)
        self.model.enqueue(new, old.queue, lifetime=lifetime)
        if not keep:
            self.model.discard(old)

    @some("dead")
    @rule(pick=PICK)
    def discard(self, pick):
        job, job_id = self.known(pick, "dead"), self.job(pick, "dead")
        moved = operations.discard([job_id]).moved
        assert moved == (job is not None and self.model.discard(job))

    @some("scheduled")
    @rule(picks=st.lists(PICK, min_size=1, max_size=3))
    def run_now(self, picks):
        ids = [self.job(pick, "scheduled") for pick in picks]
        operations.run_now(ids)
        for job_id in ids:
            if job := self.model.jobs.get(job_id):
                self.model.run_now(job)

    @some("ready", "scheduled")
    @rule(pick=PICK, queue=QUEUES, delay=SOON)
    def update(self, pick, queue, delay):
        terms = {"queue": queue} if delay is None else {"run_at": self.model.now + delay}
        job, job_id = self.known(pick, "ready", "scheduled"), self.job(pick, "ready", "scheduled")
        operations.update([job_id], **terms)
        if job is not None:
            self.model.update(job, **terms)

    @some("done", "dead", "cancelled")
    @rule(pick=PICK)
    def erase(self, pick):
        job = self.known(pick)
        ended = job is not None and job.state in ("done", "dead", "cancelled")
        assert operations.erase([self.job(pick)]).moved == ended
        if ended:
            job.erased = True

    @some("ready", "scheduled", "inflight")
    @rule(pick=PICK)
    def bury(self, pick):
        open_states = ("ready", "scheduled", "inflight")
        job, job_id = self.known(pick, *open_states), self.job(pick, *open_states)
        moved = operations.bury([job_id]).moved
        assert moved == (job is not None and self.model.bury(job))

    @rule()
    def end_lifetimes(self):
        for _ in expire(self.driver, now=self.model.now):
            pass
        self.model.expire()

    @some("done", "cancelled")
    @rule(later=st.sampled_from([timedelta(0), A_WEEK]))
    def prune(self, later):
        self._pass(later)
        for _ in prune(self.driver, now=self.model.now):
            pass
        self.model.prune()
