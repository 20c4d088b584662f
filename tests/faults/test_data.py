"""Values that no column takes, through a real worker: refused with their name, or made storable."""

import pytest
from django.db import connection

from taskharbor_django import operations
from taskharbor_django.drivers import JobRecord
from taskharbor_django.exceptions import (
    InvalidJob,
    InvalidPayload,
    PayloadTooLarge,
    ResultNotStored,
)
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Attempt, DeadLetter, Job
from taskharbor_django.operations import Selection, decide
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.payload import decode_value
from tests.operations import LEASE
from tests.testapp.fault_tasks import HOSTILE, utter, utter_apart
from tests.testapp.tasks import echo

STORABLE = {"nul", "large number"}
MOST_CHARS = 32_768
NAMES = [
    "'; DROP TABLE taskharbor_job; --",
    '"quoted"',
    "100 % %s %(id)s",
    "a;b",
    "\\",
    "{0}",
    "é☃",
    "</script><script>alert(1)</script>",
]


# what cannot be stored -> the words that follow, or come before, the name of the argument
REFUSALS = {
    "surrogate": r"{} \(str\) cannot be stored: it holds a lone surrogate",
    "nan": r"{} \(float\) cannot be stored: NaN and infinities",
    "large": r"more than 1,048,576 bytes; the largest part is {} \(str\)",
    "deep": r"{}\S* \(list\) cannot be stored: it is nested deeper than 64 levels",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_an_argument_that_cannot_be_stored_is_refused_by_name(db, what):
    value, words = HOSTILE[what](), REFUSALS[what]
    kind = PayloadTooLarge if what == "large" else InvalidPayload
    with pytest.raises(kind, match=words.format("keyword argument 'value'")):
        echo.enqueue(value=value)
    with pytest.raises(kind, match=words.format("argument 1")):
        echo.enqueue(value)
    assert not Job.objects.exists()


def test_an_argument_that_can_be_stored_comes_to_the_handler_and_back_as_it_was(crew):
    values = {what: HOSTILE[what]() for what in STORABLE}
    assert {*values, *REFUSALS} == {*HOSTILE}
    jobs = {what: crew.enqueue(echo, value, value=value) for what, value in values.items()}
    crew.start()
    crew.ended(*jobs.values())
    assert {what: job.result for what, job in jobs.items()} == {
        what: [[value], {"value": value}] for what, value in values.items()
    }
    crew.finish(signed=False)


@pytest.mark.parametrize("task", [utter, utter_apart], ids=["thread", "isolated"])
def test_what_a_job_says_never_keeps_its_end_from_being_stored(crew, task):
    """Each hostile value in each place: no job is lost, none is run twice, and all is readable."""
    places = ["result", "result key", "error", "code", "progress", "checkpoint"]
    jobs = {
        (what, where): crew.enqueue(task, what, where)
        for what in HOSTILE
        for where in places
        if not (where == "result key" and what == "deep")  # a list is no key of any dict
    }
    worker = crew.start(lease=60, threads=2)
    crew.ended(*jobs.values(), timeout=240)
    for (what, where), handle in jobs.items():
        job = handle.refresh()
        assert (job.executions, job.lease_losses) == (1, 0), (what, where)
        CHECKS[where](what, handle, job)
    assert worker.alive
    crew.finish()


def check_result(what, handle, job):
    assert job.state == "done"
    if what in STORABLE:
        assert handle.result == HOSTILE[what]()
    else:
        with pytest.raises(ResultNotStored):
            _ = handle.result


def check_key(what, handle, job):
    assert job.state == "done"
    if what in STORABLE:
        assert handle.result == {str(HOSTILE[what]()): 1}
    else:
        with pytest.raises(ResultNotStored):
            _ = handle.result


def check_error(what, handle, job):
    assert (job.state, job.attempts) == ("dead", 1)
    letter, attempt = DeadLetter.objects.get(open_for=job.pk), Attempt.objects.get(job=job.pk)
    for text in (job.last_error, letter.error, letter.traceback, attempt.error, attempt.traceback):
        assert len(text) <= MOST_CHARS + 100
        assert "\0" not in text
        text.encode()


def check_code(what, handle, job):
    assert job.state == "dead"
    job.failure_code.encode()
    assert "\0" not in job.failure_code


def check_progress(what, handle, job):
    """What has a text is told by one that can be stored; what has none fails its handler."""
    if not has_text(HOSTILE[what]()):
        assert (job.state, job.attempts, job.progress) == ("dead", 1, None)
        assert "RecursionError" in Attempt.objects.get(job=job.pk).traceback
        return
    assert job.state == "done"
    assert job.progress == 50
    assert job.progress_message
    assert "\0" not in job.progress_message
    job.progress_message.encode()


def has_text(value):
    """Newer interpreters can also say what is nested very deeply."""
    try:
        return bool(str(value))
    except RecursionError:
        return False


def check_checkpoint(what, handle, job):
    assert job.state == "done"
    if what in STORABLE:
        assert handle.result == "saved"
        assert decode_value(bytes(job.checkpoint)) == HOSTILE[what]()
    else:
        assert handle.result in {"InvalidPayload", "PayloadTooLarge"}
        assert job.checkpoint is None


CHECKS = {
    "result": check_result,
    "result key": check_key,
    "error": check_error,
    "code": check_code,
    "progress": check_progress,
    "checkpoint": check_checkpoint,
}


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_names_are_data_in_every_statement(db, name):
    """A job whose every name is hostile goes the whole way, and is found by each of them."""
    driver = driver_for("default")
    record = JobRecord(
        task=name,
        correlation_id=name,
        tags={name: name},
        idempotency_key=name,
        trace={name: name},
        max_attempts=2,
    )
    driver.enqueue(record)
    assert driver.enqueue(JobRecord(task=name, idempotency_key=name)) == record.id
    (held,) = driver.reserve(
        "default", now=driver.now(), lease_for=LEASE, worker=name, max_lease_losses=3
    )
    assert held.job.task == name
    outcome = decide.outcome_of(RuntimeError(name), held, None, now=driver.now())
    assert driver.settle([outcome], now=driver.now()) == []
    for found in ({"task": name}, {"correlation_id": name}, {"tags": {name: name}}):
        assert list(Selection(**found).jobs().values_list("pk", flat=True)) == [record.id], found
    assert operations.run_now(Selection(tags={name: name})).moved == 1
    (held,) = driver.reserve("default", now=driver.now(), lease_for=LEASE, worker=name)
    fails = decide.outcome(OutcomeKind.FAIL, held, reason="exhausted")
    assert driver.settle([fails], now=driver.now()) == []
    assert operations.requeue(Selection(task=name, state="dead"), note=name).moved == 1
    assert operations.cancel(Selection(task=name)).moved == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM taskharbor_job")
        assert cursor.fetchone()[0] == 1


@pytest.mark.parametrize(
    "field", ["task", "queue", "correlation_id", "idempotency_key", "callback_url"]
)
def test_a_name_of_ten_thousand_characters_is_refused_by_its_field(db, field):
    with pytest.raises(InvalidJob) as refusal:
        driver_for("default").enqueue(JobRecord(**{"task": "t", field: "n" * 10_000}))
    assert refusal.value.field == field
    assert len(str(refusal.value)) < 1_000


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_is_named_by_few_characters_only(db, name):
    for verb in (operations.pause, operations.resume):
        with pytest.raises(InvalidJob):
            verb(name)
    with pytest.raises(InvalidJob):
        echo.using(queue=name)
