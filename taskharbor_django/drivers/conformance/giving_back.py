"""Retry and release: a job given back, after a failure or unharmed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ...lifecycle import FailureCategory, OutcomeKind
from ...values import FailureUpdate
from .harness import Harness
from .terms import (
    FAILED,
    FAILURE,
    HOUR,
    NO_LEASE,
    NOW,
    SECOND,
    STARTED,
    T0,
    TICK,
    changed,
    outcome,
    refused,
    same,
)

# What every store must bring back as it was.
TEXTS = ["", "100% of %s and %(name)s", "quote ' \" \\ ;--", "Grüße ☃ 𝄞", "two\nlines\ttab"]


class RetryRules(Harness):
    def test_a_retry_stores_the_failure_and_schedules(self) -> None:
        later = NOW + TICK
        effect = self.effect(OutcomeKind.RETRY, self.hold(), NOW, update=_again(later))
        line = {"state": "scheduled", "run_at": later, "available_at": later}
        same(effect, line | NO_LEASE | FAILED)

    def test_a_retry_that_is_due_is_ready(self) -> None:
        for run_at in (None, NOW, NOW - HOUR):
            held = self.hold(run_at=T0 - HOUR)
            self.settle(OutcomeKind.RETRY, held, NOW, update=_again(run_at))
            job = self.look(held.job.id)
            same((job.state, job.run_at, job.available_at), ("ready", run_at, NOW), run_at)
            same((job.lease, job.attempts), (None, 2), run_at)

    def test_a_retry_stores_what_the_core_decided_and_counts_nothing_itself(self) -> None:
        held = self.hold(attempts=1, max_attempts=2)
        update = FailureUpdate(attempts=7, category=FailureCategory.SYSTEM)
        self.settle(OutcomeKind.RETRY, held, NOW, update=update)
        job = self.look(held.job.id)
        same((job.attempts, job.max_attempts, job.executions, job.lease_losses), (7, 2, 1, 0))
        same((job.failure_category, job.failure_code, job.last_error), ("system", "", ""))

    def test_a_failure_without_a_time_failed_now(self) -> None:
        for kind in (OutcomeKind.RETRY, OutcomeKind.FAIL):
            held = self.hold()
            self.settle(kind, held, NOW, update=FailureUpdate(attempts=1))
            same(self.look(held.job.id).failed_at, NOW, kind)

    def test_a_later_failure_replaces_the_facts_of_the_one_before(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.RETRY, held)
        again = self.take_one(held.job.queue)
        update = FailureUpdate(attempts=3, last_error="other", category=FailureCategory.TEMPORARY)
        self.settle(OutcomeKind.RETRY, again, NOW, update=update)
        job = self.look(held.job.id)
        same((job.attempts, job.last_error, job.failed_at), (3, "other", NOW))
        same((job.failure_category, job.failure_code), ("temporary", ""))
        same(job.attempt_ends, ((1, "failed"), (2, "failed")))

    def test_the_text_of_an_error_comes_back_unchanged(self) -> None:
        for kind in (OutcomeKind.RETRY, OutcomeKind.FAIL):
            for text in TEXTS:
                held = self.hold()
                self.settle(kind, held, update=replace(FAILURE, last_error=text))
                same(self.look(held.job.id).last_error, text, kind)

    def test_every_category_is_stored(self) -> None:
        for category in FailureCategory:
            held = self.hold()
            self.settle(OutcomeKind.RETRY, held, update=replace(FAILURE, category=category))
            same(self.look(held.job.id).failure_category, category.value)

    def test_a_retry_without_its_update_is_refused(self) -> None:
        held = self.hold()
        before = self.look(held.job.id)
        bad = outcome(OutcomeKind.RETRY, held, update=None)
        refused(ValueError, self.driver.settle, [bad], now=T0)
        same(changed(before, self.look(held.job.id)), {})


class ReleaseRules(Harness):
    def test_a_release_gives_the_job_back_as_it_was(self) -> None:
        for fields in ({}, {"run_at": T0 - HOUR}):
            queue = self.new_queue()
            before = self.look(self.put(queue=queue, **fields))
            held = self.take_one(queue)
            self.settle(OutcomeKind.RELEASE, held, NOW)
            same(changed(before, self.look(held.job.id)), {"lease_version": 1}, fields)

    def test_a_planned_job_keeps_its_run_at_through_a_release(self) -> None:
        job_id = self.put(run_at=T0 + SECOND)
        held = self.take_one(now=T0 + SECOND)
        self.settle(OutcomeKind.RELEASE, held, NOW)
        job = self.look(job_id)
        same((job.state, job.run_at, job.available_at), ("ready", T0 + SECOND, T0 + SECOND))

    def test_a_release_to_a_later_time_schedules(self) -> None:
        later = NOW + TICK
        effect = self.effect(OutcomeKind.RELEASE, self.hold(), NOW, run_at=later)
        line = {"state": "scheduled", "run_at": later, "available_at": later}
        same(effect, line | NO_LEASE | {"executions": 0})

    def test_a_release_to_a_time_that_is_not_ahead_keeps_the_place(self) -> None:
        for run_at in (NOW, NOW - HOUR):
            effect = self.effect(OutcomeKind.RELEASE, self.hold(), NOW, run_at=run_at)
            same(effect, {"state": "ready", "executions": 0} | NO_LEASE, run_at)

    def test_a_job_that_had_started_keeps_its_execution(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.RELEASE, held, NOW, started_at=STARTED)
        job = self.look(held.job.id)
        same((job.executions, job.attempts, job.lease_losses), (1, 0, 0))
        same(job.attempt_ends, ())

    def test_a_release_for_want_of_a_handler_counts_a_miss(self) -> None:
        held = self.hold()
        for misses in (1, 2):
            self.settle(OutcomeKind.RELEASE, held, T0, missed=True)
            job = self.look(held.job.id)
            same((job.handler_misses, job.attempts, job.executions), (misses, 0, 0))
            held = self.take_one(held.job.queue)
            same(held.job.handler_misses, misses)


def _again(run_at: datetime | None) -> FailureUpdate:
    return replace(FAILURE, run_at=run_at)
