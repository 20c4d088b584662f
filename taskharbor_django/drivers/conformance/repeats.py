"""Repeats: an outcome sent again after a lost reply is told apart from one that came too late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...exceptions import JobNotFound, JobNotInflight, LeaseExpired, LeaseMismatch
from ...lifecycle import OutcomeKind
from ...values import Outcome, Rejection
from .harness import Harness
from .terms import HOUR, T0, outcome, same

GIVES_UP_TOKEN = (OutcomeKind.RETRY, OutcomeKind.RELEASE, OutcomeKind.CANCEL)


class RepeatRules(Harness):
    def test_the_same_outcome_again_is_a_repeat(self) -> None:
        for kind in OutcomeKind:
            sent = self.applied(kind)
            self.judged(sent, JobNotInflight, repeated=True)

    def test_an_end_that_keeps_its_token_is_known_by_it_alone(self) -> None:
        for kind in (OutcomeKind.ACK, OutcomeKind.FAIL):
            self.judged(self.applied(kind, version=None), JobNotInflight, repeated=True)

    def test_without_a_version_nothing_else_can_be_told(self) -> None:
        for kind in GIVES_UP_TOKEN:
            self.judged(self.applied(kind, version=None), JobNotInflight, repeated=False)

    def test_a_repeat_changes_nothing(self) -> None:
        for kind in OutcomeKind:
            sent = self.applied(kind)
            before = self.look(sent.job_id)
            self.driver.settle([sent], now=T0 + HOUR)
            same(self.look(sent.job_id), before, kind)

    def test_a_repeat_is_known_after_the_lease_would_have_expired(self) -> None:
        for kind in OutcomeKind:
            self.judged(self.applied(kind), JobNotInflight, now=T0 + HOUR, repeated=True)

    def test_a_repeated_retry_is_known_by_its_attempt_when_another_runs_the_job(self) -> None:
        sent = self.applied(OutcomeKind.RETRY, queue="again")
        self.take_one("again")
        self.judged(sent, LeaseMismatch, repeated=True)

    def test_a_repeated_retry_is_known_when_the_next_lease_was_lost(self) -> None:
        sent = self.applied(OutcomeKind.RETRY, queue="again")
        held = self.take_one("again")
        self.judged(sent, LeaseExpired, now=held.lease.expires_at, repeated=True)
        self.lose(held)
        self.judged(sent, JobNotInflight, now=held.lease.expires_at, repeated=True)

    def test_a_repeated_retry_is_known_after_the_next_run_ended_the_job(self) -> None:
        sent = self.applied(OutcomeKind.RETRY, queue="again")
        self.settle(OutcomeKind.ACK, self.take_one("again"))
        self.judged(sent, JobNotInflight, repeated=True)

    def test_a_repeat_does_not_stand_in_the_way_of_the_next_outcome_of_its_job(self) -> None:
        for place in (0, 1):
            sent = self.applied(OutcomeKind.RETRY, queue=f"again-{place}")
            batch = [outcome(OutcomeKind.ACK, self.take_one(f"again-{place}"))]
            (following,) = batch
            batch.insert(place, sent)
            rejected = self.driver.settle(batch, now=T0)
            same([(it.outcome, it.repeated) for it in rejected], [(sent, True)], place)
            self.judged(following, JobNotInflight, repeated=True)

    def test_a_release_is_forgotten_once_another_has_the_job(self) -> None:
        sent = self.applied(OutcomeKind.RELEASE, queue="again")
        self.take_one("again")
        self.judged(sent, LeaseMismatch, repeated=False)

    def test_an_ack_that_deleted_its_job_is_a_repeat(self) -> None:
        sent = self.applied(OutcomeKind.ACK, keep=False)
        self.judged(sent, JobNotFound, repeated=True)

    def test_for_a_job_that_is_gone_nothing_but_such_an_ack_is_a_repeat(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.ACK, held, keep=False)
        for kind in OutcomeKind:
            self.judged(outcome(kind, held), JobNotFound, repeated=False)

    def test_an_ack_that_left_an_attempt_is_a_repeat(self) -> None:
        self.judged(self.applied(OutcomeKind.ACK, record=True), JobNotInflight, repeated=True)

    def test_a_retry_or_release_that_ended_cancelled_is_a_repeat(self) -> None:
        for kind in (OutcomeKind.RETRY, OutcomeKind.RELEASE):
            held = self.hold()
            self.request_cancel(self.driver, held.job.id, T0)
            self.settle(kind, held)
            self.judged(outcome(kind, held), JobNotInflight, repeated=True)

    def test_of_a_pair_in_one_call_the_second_is_a_repeat(self) -> None:
        for kind in OutcomeKind:
            sent = outcome(kind, self.hold())
            rejected = self.driver.settle([sent, replace(sent)], now=T0)
            same([(each.outcome, each.repeated) for each in rejected], [(sent, True)], kind)

    # -- too late is no repeat -------------------------------------------------------------------

    def test_after_a_reclaim_nothing_is_a_repeat(self) -> None:
        for kind in OutcomeKind:
            held = self.hold()
            self.lose(held)
            late = held.lease.expires_at
            self.judged(outcome(kind, held), JobNotInflight, now=late, repeated=False)
            self.take_one(held.job.queue, now=late)
            self.judged(outcome(kind, held), LeaseMismatch, now=late, repeated=False)

    def test_an_expired_lease_that_nobody_reclaimed_is_no_repeat(self) -> None:
        for kind in OutcomeKind:
            held = self.hold()
            late = held.lease.expires_at
            self.judged(outcome(kind, held), LeaseExpired, now=late, repeated=False)

    def test_a_burial_by_reclaim_is_nobodys_own_fail(self) -> None:
        for kind in OutcomeKind:
            held = self.hold()
            self.lose(held, max_lease_losses=1)
            self.judged(outcome(kind, held), JobNotInflight, now=T0 + HOUR, repeated=False)

    def test_a_cancel_by_reclaim_is_nobodys_own_end(self) -> None:
        for kind in OutcomeKind:
            held = self.hold()
            self.request_cancel(self.driver, held.job.id, T0)
            self.lose(held)
            self.judged(outcome(kind, held), JobNotInflight, now=T0 + HOUR, repeated=False)

    def test_the_success_of_another_is_not_ones_own(self) -> None:
        for kind in OutcomeKind:
            held = self.hold()
            late = held.lease.expires_at
            other = self.take_one(held.job.queue, now=late)
            self.settle(OutcomeKind.ACK, other, late)
            self.judged(outcome(kind, held), JobNotInflight, now=late, repeated=False)

    def test_the_end_that_another_made_after_a_release_is_not_ones_own(self) -> None:
        for kind in (OutcomeKind.ACK, OutcomeKind.FAIL):
            for version in (1, None):
                held = self.hold()
                self.settle(OutcomeKind.RELEASE, held)
                self.settle(kind, self.take_one(held.job.queue))
                sent = outcome(kind, held, version=version)
                self.judged(sent, JobNotInflight, repeated=False)

    def test_a_release_is_forgotten_once_another_ended_the_job(self) -> None:
        for kind in GIVES_UP_TOKEN:
            held = self.hold()
            self.settle(OutcomeKind.RELEASE, held)
            self.settle(OutcomeKind.ACK, self.take_one(held.job.queue))
            self.judged(outcome(kind, held), JobNotInflight, repeated=False)

    def test_a_forced_cancel_is_nobodys_own_end(self) -> None:
        for kind in OutcomeKind:
            for version in (1, None):
                held = self.hold()
                self.take_token(self.driver, held.job.id, T0)
                sent = outcome(kind, held, version=version)
                self.judged(sent, JobNotInflight, repeated=False)

    def test_a_burial_is_no_ack_and_an_ack_is_no_burial(self) -> None:
        for kind, other in (
            (OutcomeKind.ACK, OutcomeKind.FAIL),
            (OutcomeKind.FAIL, OutcomeKind.ACK),
        ):
            held = self.hold()
            self.settle(kind, held)
            self.judged(outcome(other, held, version=None), JobNotInflight, repeated=False)

    def test_an_outcome_for_a_job_that_another_token_holds_is_no_repeat(self) -> None:
        for kind in OutcomeKind:
            held, other = self.hold(), self.hold()
            sent = outcome(kind, held, token=other.lease.token)
            self.judged(sent, LeaseMismatch, repeated=False)

    def applied(self, kind: OutcomeKind, queue: str | None = None, **facts: Any) -> Outcome:
        """Settle an outcome and return it, as if the reply had been lost."""
        sent = outcome(kind, self.hold(queue=queue or self.new_queue()), **facts)
        same(self.driver.settle([sent], now=T0), [])
        return sent

    def judged(
        self, sent: Outcome, error: type[Exception], *, repeated: bool, now: Any = T0
    ) -> None:
        rejected: list[Rejection] = self.driver.settle([sent], now=now)
        found = [(each.outcome, type(each.error), each.repeated) for each in rejected]
        same(found, [(sent, error, repeated)], sent.kind)
