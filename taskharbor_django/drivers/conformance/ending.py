"""Ack and fail: the two ends that keep the token which made them."""

from __future__ import annotations

from uuid import uuid4

from ...exceptions import JobNotFound
from ...lifecycle import DeadReason, OutcomeKind
from .harness import Harness
from .terms import FAILED, FAILURE, FINISHED, HOUR, NOW, STARTED, T0, TICK, outcome, refused, same


class AckRules(Harness):
    def test_an_ack_ends_the_job_and_keeps_its_token(self) -> None:
        effect = self.effect(OutcomeKind.ACK, self.hold(), NOW)
        same(effect, {"state": "done", "finished_at": NOW})

    def test_an_ack_stores_the_times_of_the_run_and_the_result(self) -> None:
        effect = self.effect(
            OutcomeKind.ACK,
            self.hold(),
            NOW,
            started_at=STARTED,
            finished_at=FINISHED,
            result=b"42",
            result_expires_at=T0 + HOUR + TICK,
        )
        expected = {
            "state": "done",
            "started_at": STARTED,
            "finished_at": FINISHED,
            "result": b"42",
            "result_expires_at": T0 + HOUR + TICK,
        }
        same(effect, expected)

    def test_an_ack_can_leave_an_attempt(self) -> None:
        effect = self.effect(OutcomeKind.ACK, self.hold(), NOW, record=True)
        same(effect["attempt_ends"], ((1, "done"),))

    def test_every_byte_of_a_result_is_kept(self) -> None:
        for result in (b"", b"\0", bytes(range(256)), bytes(range(256)) * 1024):
            held = self.hold()
            self.driver.ack(held.job.id, held.lease.token, now=T0, result=result)
            same(self.look(held.job.id).result == result, True, f"{len(result)} bytes")

    def test_a_job_that_keeps_nothing_is_gone(self) -> None:
        held = self.hold()
        self.settle(OutcomeKind.ACK, held, keep=False)
        same(self.stored(self.driver, held.job.id), None)
        refused(JobNotFound, self.driver.ack, held.job.id, held.lease.token, now=T0)

    def test_a_job_that_keeps_nothing_stays_while_something_needs_it(self) -> None:
        for fields in (
            {"idempotency_key": "k"},
            {"workflow": uuid4()},
            {"has_dependents": True},
            {"callback_url": "https://example.org/"},
            {"schedule": 7},
        ):
            held = self.hold(**fields)
            self.settle(OutcomeKind.ACK, held, keep=False)
            same(self.look(held.job.id).state, "done", fields)

    def test_only_an_ack_can_delete(self) -> None:
        for kind in (OutcomeKind.RETRY, OutcomeKind.FAIL, OutcomeKind.RELEASE, OutcomeKind.CANCEL):
            held = self.hold()
            self.settle(kind, held, keep=False)
            self.look(held.job.id)


class FailRules(Harness):
    def test_a_fail_buries_the_job_and_keeps_its_token(self) -> None:
        effect = self.effect(
            OutcomeKind.FAIL, self.hold(), NOW, update=FAILURE, finished_at=FINISHED
        )
        end = {"state": "dead", "finished_at": FINISHED, "reason": "exhausted", "dead_letters": 1}
        same(effect, end | FAILED)

    def test_a_fail_without_an_update_changes_no_facts(self) -> None:
        effect = self.effect(OutcomeKind.FAIL, self.hold(), NOW, reason="no_handler")
        end = {"state": "dead", "finished_at": NOW, "reason": "no_handler", "dead_letters": 1}
        same(effect, end | {"attempt_ends": ((1, "failed"),)})

    def test_every_reason_is_stored(self) -> None:
        for reason in DeadReason:
            held = self.hold()
            self.driver.fail(held.job.id, held.lease.token, now=T0, reason=reason.value)
            job = self.look(held.job.id)
            same((job.state, job.reason, job.dead_letters), ("dead", reason.value, 1))

    def test_an_unknown_reason_is_refused_before_anything_changes(self) -> None:
        good, bad = self.hold(), self.hold()
        before = self.look(good.job.id), self.look(bad.job.id)
        for reason in ("", "because"):
            outcomes = [outcome(OutcomeKind.ACK, good)]
            outcomes.append(outcome(OutcomeKind.FAIL, bad, reason=reason))
            refused(ValueError, self.driver.settle, outcomes, now=T0)
        same((self.look(good.job.id), self.look(bad.job.id)), before)
