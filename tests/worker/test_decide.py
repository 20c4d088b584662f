"""From an exception to an outcome."""

import inspect
import traceback
from datetime import timedelta
from itertools import pairwise

import pytest
from django.test import override_settings

from taskharbor_django.exceptions import (
    CancelRequested,
    JobTimeout,
    PermanentError,
    Snooze,
    TemporaryError,
)
from taskharbor_django.lifecycle import DeadReason, FailureCategory, OutcomeKind
from taskharbor_django.operations.decide import (
    category_of,
    handler_missing,
    lifetime_over,
    outcome_of,
)
from taskharbor_django.tasks import Task
from taskharbor_django.worker.executor import prepare

from .conftest import NOW, reservation

SECOND = timedelta(seconds=1)


class Gone(LookupError):
    pass


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def make_task(**options):
    from taskharbor_django.backoff import parse

    options.setdefault("backoff", parse({"strategy": "constant", "initial": 1, "jitter": "none"}))
    return Task(function=lambda: None, name="shop.report", **options)


def decided(error, task=None, **fields):
    return outcome_of(error, reservation(**fields), task or make_task(), now=NOW, started_at=NOW)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (ValueError("x"), FailureCategory.TEMPORARY),
        (TemporaryError("x"), FailureCategory.TEMPORARY),
        (PermanentError("x"), FailureCategory.PERMANENT),
        (JobTimeout(), FailureCategory.TIMEOUT),
        (CancelRequested(), FailureCategory.CANCELLED),
        (MemoryError(), FailureCategory.SYSTEM),
        (SystemExit(3), FailureCategory.SYSTEM),
        (KeyboardInterrupt(), FailureCategory.SYSTEM),
    ],
)
def test_each_failure_has_exactly_one_category(error, category):
    assert category_of(error) == category


def test_a_first_failure_is_tried_again_after_the_backoff():
    outcome = decided(ValueError("x"))
    assert outcome.kind == OutcomeKind.RETRY
    assert (outcome.update.attempts, outcome.update.run_at) == (1, NOW + SECOND)
    assert outcome.update.failed_at == outcome.finished_at == NOW


def test_the_failure_that_reaches_max_attempts_buries():
    outcome = decided(ValueError("x"), attempts=2)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAIL, DeadReason.EXHAUSTED)
    assert outcome.update.attempts == 3


def test_one_failure_before_that_does_not():
    assert decided(ValueError("x"), attempts=1).kind == OutcomeKind.RETRY


def test_no_max_attempts_means_the_setting():
    with override_settings(TASKHARBOR={"MAX_ATTEMPTS": 1}):
        assert decided(ValueError("x"), max_attempts=0).kind == OutcomeKind.FAIL


def test_a_permanent_error_buries_at_once_with_its_code():
    outcome = decided(PermanentError("no such order", code="order"))
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAIL, DeadReason.PERMANENT)
    assert (outcome.update.code, outcome.update.attempts) == ("order", 1)


def test_retry_after_wins_over_the_policy():
    outcome = decided(TemporaryError("busy", retry_after=90))
    assert outcome.update.run_at == NOW + timedelta(seconds=90)


def test_a_snooze_is_a_release_for_later_and_no_failure():
    outcome = decided(Snooze(60))
    assert (outcome.kind, outcome.update) == (OutcomeKind.RELEASE, None)
    assert outcome.run_at == NOW + timedelta(seconds=60)
    assert outcome.started_at == NOW


def test_cancelled_is_never_a_failure():
    outcome = decided(CancelRequested())
    assert (outcome.kind, outcome.update) == (OutcomeKind.CANCEL, None)


def test_bury_on_an_exception_class_buries_its_subclasses():
    assert decided(Gone("x"), make_task(bury_on=(LookupError,))).reason == DeadReason.PERMANENT
    assert decided(ValueError("x"), make_task(bury_on=(LookupError,))).kind == OutcomeKind.RETRY


def test_bury_on_a_category_buries():
    task = make_task(bury_on=(FailureCategory.TIMEOUT,))
    assert decided(JobTimeout(), task).kind == OutcomeKind.FAIL
    assert decided(ValueError("x"), task).kind == OutcomeKind.RETRY


def test_retry_on_leaves_other_exceptions_buried():
    task = make_task(retry_on=(ConnectionError,))
    assert decided(ConnectionResetError(), task).kind == OutcomeKind.RETRY
    assert decided(ValueError("x"), task).reason == DeadReason.PERMANENT


def test_a_handler_that_says_temporary_is_believed_whatever_retry_on_names():
    task = make_task(retry_on=(ConnectionError,))
    assert decided(TemporaryError("x"), task).kind == OutcomeKind.RETRY


def test_retry_on_can_name_a_permanent_failure():
    task = make_task(retry_on=(PermanentError,))
    assert decided(PermanentError("x"), task).kind == OutcomeKind.RETRY


def test_retry_on_says_nothing_about_timeouts_and_crashes():
    task = make_task(retry_on=(ConnectionError,))
    assert decided(JobTimeout(), task).kind == OutcomeKind.RETRY
    assert decided(MemoryError(), task).kind == OutcomeKind.RETRY


def test_an_exception_that_cannot_be_shown_is_still_a_failure():
    outcome = decided(Speechless())
    assert outcome.kind == OutcomeKind.RETRY
    assert "Speechless" in outcome.update.last_error
    assert outcome.update.error_class == f"{__name__}.Speechless"


def test_texts_are_masked_cleaned_and_cut():
    with override_settings(TASKHARBOR={"ERROR_MAX_CHARS": 200}):
        outcome = decided(ValueError("password=hunter2 \0 \udc80 " + "x" * 1000))
    shown = outcome.update.last_error + outcome.update.traceback
    assert "hunter2" not in shown
    assert "\0" not in shown
    assert len(outcome.update.last_error) <= 200
    shown.encode()


def test_a_lifetime_that_is_over_buries_without_an_attempt():
    outcome = lifetime_over(reservation(attempts=1), NOW)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAIL, DeadReason.LIFETIME)
    assert outcome.update.attempts == 1


def test_a_lifetime_is_over_at_exactly_its_end():
    assert prepare(reservation(expires_at=NOW), NOW).reason == DeadReason.LIFETIME
    later = prepare(reservation(expires_at=NOW + timedelta(microseconds=1)), NOW)
    assert later.reason != DeadReason.LIFETIME


def test_an_unknown_task_is_given_back_later_each_time():
    waits = [handler_missing(reservation(handler_misses=n), NOW).run_at - NOW for n in range(9)]
    assert waits[0] == timedelta(seconds=7)
    assert all(after == 2 * before for before, after in pairwise(waits))
    assert handler_missing(reservation(handler_misses=3), NOW).missed


def test_the_tenth_miss_buries():
    outcome = handler_missing(reservation(handler_misses=9), NOW)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAIL, DeadReason.NO_HANDLER)
    assert handler_missing(reservation(handler_misses=8), NOW).kind == OutcomeKind.RELEASE


def test_a_payload_that_cannot_be_decoded_is_permanent():
    outcome = prepare(reservation(task="tests.testapp.tasks.add", payload=b"\xff"), NOW)
    if outcome.reason == "":  # nobody registered that task: given back instead
        pytest.fail("the task of the tests is not registered")
    assert (outcome.reason, outcome.update.code) == (DeadReason.PERMANENT, "payload")


class Coded(Exception):
    @property
    def code(self):
        raise SystemExit("asking costs your life")


class Unprintable(Exception):
    """One whose traceback cannot be formatted: its cause is not what it should be."""

    @property
    def __cause__(self):
        raise RuntimeError("no cause")


def test_an_exception_whose_code_cannot_be_asked_has_none():
    outcome = decided(Coded("x"))
    assert (outcome.kind, outcome.update.code) == (OutcomeKind.RETRY, "")


def test_an_exception_whose_traceback_cannot_be_made_still_has_an_outcome():
    outcome = decided(Unprintable("x"))
    assert outcome.kind == OutcomeKind.RETRY
    assert outcome.update.traceback.endswith("Unprintable")


def test_a_traceback_whose_code_cannot_be_parsed_now_still_says_where(monkeypatch):
    def parse(*_args, **_kwargs):  # what Python 3.11 does while another thread parses
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(traceback.StackSummary, "format", parse)
    try:
        int("x")
    except ValueError as error:
        shown = decided(error).update.traceback
    assert shown.startswith(f'  File "{__file__}", line ')
    assert shown.endswith(f"in {inspect.currentframe().f_code.co_name}\nValueError")


def test_a_backoff_of_the_settings_that_raises_costs_no_outcome(caplog):
    def broken(_attempt):
        raise KeyError("bad")

    with override_settings(TASKHARBOR={"BACKOFF": broken}):
        outcome = decided(ValueError("x"), make_task(backoff=None))
    assert outcome.kind == OutcomeKind.RETRY
    assert outcome.update.run_at > NOW
    assert "the default is used instead" in caplog.text
