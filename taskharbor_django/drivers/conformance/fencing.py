"""The fence: which error a call meets, in which order, and that it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from ...exceptions import (
    InvalidLeaseDuration,
    JobNotFound,
    JobNotInflight,
    LeaseExpired,
    LeaseMismatch,
    StaleLease,
)
from ...lifecycle import OutcomeKind
from ...values import Outcome, Reservation
from .harness import Harness
from .terms import FAILURE, HOUR, LEASE, SECOND, T0, TICK, outcome, refused, require, same

ENDS = (OutcomeKind.ACK, OutcomeKind.FAIL, OutcomeKind.CANCEL)


class Shown(NamedTuple):
    """What a caller shows: a job, a token, a time."""

    job_id: UUID
    token: UUID
    now: datetime

    def with_wrong_token(self) -> Shown:
        return self._replace(token=uuid4())

    def later(self, wait: timedelta) -> Shown:
        return self._replace(now=self.now + wait)


def _ack(driver: Any, shown: Shown) -> None:
    driver.ack(shown.job_id, shown.token, now=shown.now, result=b"late")


def _retry(driver: Any, shown: Shown) -> None:
    update = replace(FAILURE, run_at=shown.now + HOUR)
    driver.retry(shown.job_id, shown.token, now=shown.now, update=update)


def _fail(driver: Any, shown: Shown) -> None:
    reason = "exhausted"
    driver.fail(shown.job_id, shown.token, now=shown.now, reason=reason, update=FAILURE)


def _release(driver: Any, shown: Shown) -> None:
    driver.release(shown.job_id, shown.token, now=shown.now, run_at=shown.now + HOUR)


def _cancel(driver: Any, shown: Shown) -> None:
    asked = Outcome(job_id=shown.job_id, token=shown.token, kind=OutcomeKind.CANCEL)
    for rejection in driver.settle([asked], now=shown.now):
        raise rejection.error


def _extend(driver: Any, shown: Shown, lease_for: timedelta = HOUR) -> None:
    driver.extend_lease(shown.job_id, shown.token, now=shown.now, lease_for=lease_for)


# Every call that must show the token of the job's lease.
FENCED = (_ack, _retry, _fail, _release, _cancel, _extend)


class FencingRules(Harness):
    def test_an_unknown_job_is_not_found(self) -> None:
        self.all_refuse(JobNotFound, self.unknown)

    def test_not_found_is_a_kind_of_not_inflight(self) -> None:
        error = refused(JobNotFound, _ack, self.driver, self.unknown())
        require(isinstance(error, JobNotInflight), error)

    def test_a_waiting_job_is_not_inflight(self) -> None:
        for fields in ({}, {"run_at": T0 + HOUR}, {"dependencies_left": 1}):
            self.all_refuse(JobNotInflight, partial(self.waiting, **fields))

    def test_an_ended_job_is_not_inflight_whatever_is_shown(self) -> None:
        for kind in ENDS:
            self.all_refuse(JobNotInflight, partial(self.settled, kind))
            self.all_refuse(JobNotInflight, lambda: self.settled(kind).with_wrong_token())  # noqa: B023  called within the turn

    def test_an_ended_job_is_not_inflight_also_after_its_lease_would_have_expired(self) -> None:
        for kind in ENDS:
            self.all_refuse(JobNotInflight, lambda: self.settled(kind).later(LEASE))  # noqa: B023  called within the turn

    def test_a_job_given_back_is_not_inflight_for_the_token_it_had(self) -> None:
        for kind in (OutcomeKind.RETRY, OutcomeKind.RELEASE):
            self.all_refuse(JobNotInflight, partial(self.settled, kind))

    def test_a_reclaimed_job_is_not_inflight_for_the_token_it_had(self) -> None:
        self.all_refuse(JobNotInflight, self.reclaimed)

    def test_a_job_whose_token_was_taken_is_not_inflight(self) -> None:
        self.all_refuse(JobNotInflight, self.taken_away)

    def test_a_lease_is_expired_at_exactly_its_end(self) -> None:
        self.all_refuse(LeaseExpired, lambda: self.held().later(LEASE))

    def test_a_lease_is_expired_long_after_its_end(self) -> None:
        self.all_refuse(LeaseExpired, lambda: self.held().later(1000 * HOUR))

    def test_a_lease_is_valid_until_a_tick_before_its_end(self) -> None:
        for call in FENCED:
            shown = self.held().later(LEASE - TICK)
            before = self.look(shown.job_id)
            call(self.driver, shown)
            require(self.look(shown.job_id) != before, f"{call.__name__} did nothing")

    def test_an_expired_lease_comes_before_a_wrong_token(self) -> None:
        self.all_refuse(LeaseExpired, lambda: self.held().later(LEASE).with_wrong_token())

    def test_a_missing_lease_is_expired_whatever_the_token(self) -> None:
        self.all_refuse(LeaseExpired, self.unleased)
        self.all_refuse(LeaseExpired, lambda: self.unleased().with_wrong_token())

    def test_a_wrong_token_does_not_match(self) -> None:
        self.all_refuse(LeaseMismatch, lambda: self.held().with_wrong_token())

    def test_the_token_of_another_job_does_not_match(self) -> None:
        self.all_refuse(LeaseMismatch, lambda: self.held()._replace(token=self.held().token))

    def test_the_token_of_an_earlier_lease_does_not_match(self) -> None:
        self.all_refuse(LeaseMismatch, self.taken_over)

    def test_what_counts_is_the_lease_that_the_job_has_now(self) -> None:
        self.all_refuse(LeaseExpired, lambda: self.taken_over().later(LEASE))

    def test_expired_and_mismatched_leases_are_stale(self) -> None:
        for shown in (self.held().later(LEASE), self.held().with_wrong_token()):
            sent = Outcome(job_id=shown.job_id, token=shown.token, kind=OutcomeKind.ACK)
            rejected = self.driver.settle([sent], now=shown.now)
            same([isinstance(each.error, StaleLease) for each in rejected], [True])

    def test_the_version_must_match_when_it_is_shown(self) -> None:
        for kind in OutcomeKind:
            for version in (0, 2):
                held = self.hold()
                before = self.look(held.job.id)
                wrong = outcome(kind, held, version=version)
                rejected = self.driver.settle([wrong], now=T0)
                same([type(each.error) for each in rejected], [LeaseMismatch], kind)
                same(self.look(held.job.id), before, kind)

    # -- what comes before the fence -------------------------------------------------------------

    def test_a_wrong_duration_comes_before_everything_about_the_job(self) -> None:
        for shown in (
            self.unknown(),
            self.waiting(),
            self.settled(OutcomeKind.ACK),
            self.held().later(LEASE),
            self.held().with_wrong_token(),
            self.held(),
        ):
            before = self.stored(self.driver, shown.job_id)
            for lease_for in (timedelta(0), -TICK):
                refused(InvalidLeaseDuration, _extend, self.driver, shown, lease_for)
            same(self.stored(self.driver, shown.job_id), before)

    def test_a_wrong_duration_renews_no_lease(self) -> None:
        shown = self.held()
        before = self.look(shown.job_id)
        extend = self.driver.extend_leases
        for tokens in ([], [uuid4()], [shown.token]):
            for lease_for in (timedelta(0), -SECOND):
                refused(InvalidLeaseDuration, extend, tokens, now=T0, lease_for=lease_for)
        same(self.look(shown.job_id), before)

    def test_a_time_without_a_zone_is_refused(self) -> None:
        naive = T0.replace(tzinfo=None)
        shown, driver = self.held()._replace(now=naive), self.driver
        before = self.look(shown.job_id)
        for call in FENCED:
            refused(ValueError, call, driver, shown, about=call.__name__)
        refused(ValueError, self.take, now=naive, about="reserve")
        refused(ValueError, driver.held, shown.token, now=naive, about="held")
        refused(ValueError, driver.expire_leases, "w", now=naive, about="expire_leases")
        refused(ValueError, driver.sweep, now=naive, about="sweep")
        same(self.look(shown.job_id), before)

    # -- situations ------------------------------------------------------------------------------

    def unknown(self) -> Shown:
        return Shown(uuid4(), uuid4(), T0)

    def waiting(self, **fields: Any) -> Shown:
        return Shown(self.put(**fields), uuid4(), T0)

    def held(self) -> Shown:
        return _shown(self.hold())

    def settled(self, kind: OutcomeKind) -> Shown:
        held = self.hold()
        self.settle(kind, held)
        return _shown(held)

    def reclaimed(self) -> Shown:
        held = self.hold()
        self.lose(held)
        return _shown(held).later(LEASE)

    def taken_away(self) -> Shown:
        held = self.hold()
        self.take_token(self.driver, held.job.id, T0)
        return _shown(held)

    def taken_over(self) -> Shown:
        held = self.hold()
        self.take_one(held.job.queue, now=held.lease.expires_at)
        return _shown(held).later(LEASE)

    def unleased(self) -> Shown:
        held = self.hold()
        self.drop_lease(self.driver, held.lease.token)
        return _shown(held)

    def all_refuse(self, error: type[Exception], arrange: Callable[[], Shown]) -> None:
        """Make every fenced call in this situation, and demand the error and no change."""
        for call in FENCED:
            shown = arrange()
            before = self.stored(self.driver, shown.job_id)
            refused(error, call, self.driver, shown, about=call.__name__)
            same(self.stored(self.driver, shown.job_id), before, f"{call.__name__} changed the job")


def _shown(held: Reservation) -> Shown:
    return Shown(held.job.id, held.lease.token, T0)
