"""What `erase` leaves: each column that takes words is emptied, or stands in a list here."""

import pytest
from django.db.models import BinaryField, CharField, JSONField, TextField

from taskharbor_django import erase
from taskharbor_django.models import Attempt, DeadLetter, Job
from tests.factories import job_in, utcnow

SHE = "ada-5f0c"
# Names that the project or an operator gave, and not what a job was told, returned or said.
KEPT = {
    *("task", "queue", "correlation_id", "idempotency_key", "payload_digest", "callback_url"),
    *("failure_code", "trace", "worker", "code", "error_class", "fingerprint", "note", "input"),
}
WORDS = {
    CharField: SHE,
    TextField: f"about {SHE}",
    JSONField: {SHE: SHE},
    BinaryField: f'"{SHE}"'.encode(),
}


def worded(model, state):
    """The columns that a person's data could be in, and some of it for each."""
    # Others never have a result.
    kept = KEPT if state == "done" else KEPT | {"result"}
    return {
        field.name: next(value for kind, value in WORDS.items() if isinstance(field, kind))
        for field in model._meta.concrete_fields
        if isinstance(field, tuple(WORDS)) and not field.choices and field.name not in kept
    }


@pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
def test_nothing_of_a_person_is_left_in_a_job_its_attempts_and_its_letters(db, state):
    job = job_in(state)
    Attempt.objects.create(job=job, lease_version=1, number=1, end="failed", finished_at=utcnow())
    written = {model: worded(model, state) for model in (Job, Attempt, DeadLetter)}
    assert {"payload", "checkpoint", "tags", "last_error"} <= written[Job].keys()
    for model, values in written.items():
        model.objects.update(**values)
    assert erase([job.pk]).moved == 1
    for model, values in written.items():
        for row in model.objects.values(*values):
            for name, value in row.items():
                said = bytes(value) if isinstance(value, memoryview) else value
                assert SHE not in str(said), (model, name)
