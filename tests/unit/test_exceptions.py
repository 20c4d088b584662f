"""One root, facts as attributes, and a sentence for each."""

import inspect
import pickle

import pytest

from taskharbor_django import exceptions
from taskharbor_django.exceptions import (
    InvalidJob,
    InvalidPayload,
    JobNotFound,
    JobNotInflight,
    LeaseExpired,
    LeaseMismatch,
    PayloadTooLarge,
    PermanentError,
    Snooze,
    StaleLease,
    TaskHarborError,
    TemporaryError,
    UnknownTask,
)

EVERY = [
    kind
    for _, kind in inspect.getmembers(exceptions, inspect.isclass)
    if kind.__module__ == exceptions.__name__
]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_has_the_one_root_and_says_something_without_being_told(kind):
    error = kind(5) if kind is Snooze else kind()
    assert isinstance(error, TaskHarborError)
    assert str(error) == kind.__doc__.partition("\n")[0]
    assert str(error).endswith(".")


def test_a_message_of_its_own_comes_first():
    assert str(UnknownTask("No task 'x'.")) == "No task 'x'."


def test_facts_become_attributes():
    error = InvalidJob("queue: bad", field="queue")
    assert (error.field, str(error)) == ("queue", "queue: bad")


def test_an_error_about_the_payload_names_it_as_the_field():
    assert InvalidPayload().field == PayloadTooLarge().field == "payload"
    assert InvalidPayload("", argument="argument 1").argument == "argument 1"


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        (InvalidJob, ValueError),
        (InvalidPayload, InvalidJob),
        (PayloadTooLarge, InvalidPayload),
        (exceptions.InvalidTask, ValueError),
        (UnknownTask, LookupError),
        (exceptions.InvalidLeaseDuration, ValueError),
        (JobNotFound, JobNotInflight),
        (LeaseExpired, StaleLease),
        (LeaseMismatch, StaleLease),
    ],
)
def test_who_catches_the_family_catches_the_fact(kind, family):
    assert issubclass(kind, family)


def test_an_expired_lease_is_no_mismatch_and_neither_is_a_job_that_is_not_inflight():
    facts = {LeaseExpired, LeaseMismatch, JobNotInflight}
    assert not any(issubclass(one, other) for one in facts for other in facts - {one})


def test_a_handler_says_what_helps():
    assert TemporaryError("busy", retry_after=30).retry_after == 30
    assert TemporaryError("busy").retry_after is None
    assert PermanentError("no such order", code="E404").code == "E404"
    assert PermanentError("no such order").code == ""
    assert Snooze(60).delay == 60


@pytest.mark.parametrize(
    "error",
    [
        TemporaryError("busy", retry_after=30),
        PermanentError("gone", code="E1"),
        Snooze(60),
        InvalidJob("queue: bad", field="queue"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_a_process_with_its_facts(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  the bytes were made one call before
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
