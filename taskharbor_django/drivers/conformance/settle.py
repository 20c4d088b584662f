"""Settle: many outcomes in one call, each for itself."""

from __future__ import annotations

from uuid import uuid4

from ...exceptions import JobNotFound, JobNotInflight, LeaseExpired, LeaseMismatch
from ...lifecycle import OutcomeKind
from ...values import Outcome
from .harness import Harness
from .terms import HOUR, LEASE, NO_LEASE, NOW, T0, TICK, changed, outcome, refused, same


class SettleRules(Harness):
    def test_a_cancel_ends_the_job_without_a_token(self) -> None:
        effect = self.effect(OutcomeKind.CANCEL, self.hold(), NOW)
        same(effect, {"state": "cancelled", "finished_at": NOW} | NO_LEASE)

    def test_no_outcomes_no_rejections(self) -> None:
        same(self.driver.settle([], now=T0), [])

    def test_the_neighbours_of_a_settled_job_stay_held(self) -> None:
        for kind in OutcomeKind:
            first, second = self.hold_many(2)
            before = self.look(second.job.id)
            self.settle(kind, first)
            same(changed(before, self.look(second.job.id)), {}, kind)

    def test_one_call_settles_every_kind(self) -> None:
        held = self.hold_many(5)
        same(self.driver.settle(list(map(outcome, OutcomeKind, held)), now=NOW), [])
        states = [self.look(each.job.id).state for each in held]
        same(states, ["done", "ready", "dead", "ready", "cancelled"])

    def test_good_outcomes_are_applied_and_each_bad_one_is_reported(self) -> None:
        good = [self.hold() for _ in OutcomeKind]
        ended, wrong = self.hold(), self.hold()
        expired = self.hold(take={"lease_for": TICK})
        self.settle(OutcomeKind.ACK, ended)
        bad = {
            outcome(OutcomeKind.FAIL, ended): JobNotInflight,
            outcome(OutcomeKind.RETRY, expired): LeaseExpired,
            outcome(OutcomeKind.ACK, wrong, token=uuid4()): LeaseMismatch,
            outcome(OutcomeKind.RELEASE, wrong, version=9): LeaseMismatch,
            Outcome(job_id=uuid4(), token=uuid4(), kind=OutcomeKind.ACK): JobNotFound,
        }
        mixed = [*list(bad)[:2], *map(outcome, OutcomeKind, good), *list(bad)[2:]]
        before = [self.look(each.job.id) for each in (ended, expired, wrong)]
        rejected = self.driver.settle(mixed, now=NOW)
        same({each.outcome: type(each.error) for each in rejected}, bad)
        same([self.look(each.job.id) for each in (ended, expired, wrong)], before)
        states = [self.look(each.job.id).state for each in good]
        same(states, ["done", "ready", "dead", "ready", "cancelled"])

    def test_of_two_outcomes_for_one_job_the_first_wins(self) -> None:
        ends = {"ack": "done", "retry": "ready", "fail": "dead", "cancel": "cancelled"}
        for first in OutcomeKind:
            held = self.hold()
            second = OutcomeKind.ACK if first != OutcomeKind.ACK else OutcomeKind.FAIL
            pair = [outcome(first, held), outcome(second, held)]
            rejected = self.driver.settle(pair, now=NOW)
            found = [(each.outcome, type(each.error)) for each in rejected]
            same(found, [(pair[1], JobNotInflight)], first)
            job = self.look(held.job.id)
            same(job.state, ends.get(first, "ready"), first)
            same(job.dead_letters, 1 if first == OutcomeKind.FAIL else 0, first)

    def test_a_second_ack_with_the_same_token_changes_nothing(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.ACK, held, T0, result=b"first")
        before = self.look(held.job.id)
        job_id, token = held.job.id, held.lease.token
        refused(JobNotInflight, self.driver.ack, job_id, token, now=NOW, result=b"second")
        same(changed(before, self.look(job_id)), {})

    def test_the_payload_is_never_changed(self) -> None:
        payload = bytes(range(256))
        for kind in OutcomeKind:
            held = self.hold(payload=payload)
            self.settle(kind, held)
            same(self.look(held.job.id).payload, payload, kind)

    def test_times_of_a_run_come_back_to_the_microsecond(self) -> None:
        for microsecond in (0, 1, 499_999, 999_999):
            moment = T0.replace(microsecond=microsecond)
            held = self.hold(take={"now": moment, "lease_for": LEASE})
            times = {"started_at": moment, "finished_at": moment + TICK}
            self.settle(OutcomeKind.ACK, held, moment, **times, result_expires_at=moment + HOUR)
            job = self.look(held.job.id)
            found = (job.started_at, job.finished_at, job.result_expires_at)
            same(found, (moment, moment + TICK, moment + HOUR))
            same(job.lease_expires_at, moment + LEASE)
