"""Buried by hand: an open job becomes a dead letter, and can come back."""

import pytest

from taskharbor_django import Selection, bury, failpoints, requeue
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.exceptions import InvalidJob, JobNotInflight
from taskharbor_django.failpoints import FailpointReached
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Attempt, DeadLetter, Job, Notice
from taskharbor_django.operations import Moved, decide
from tests.factories import job_in
from tests.testapp.tasks import add

from . import hold

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("state", ["blocked", "scheduled", "ready", "inflight"])
def test_an_open_job_becomes_a_dead_letter(state):
    job = job_in(state)
    assert bury([job], note="wrong address") == Moved(moved=1)
    job.refresh_from_db()
    assert (job.state, job.lease, job.failure_category) == ("dead", None, "cancelled")
    letter = DeadLetter.objects.get()
    assert (letter.open_for, letter.reason) == (job.pk, "manual")
    assert (letter.error, job.last_error) == ("wrong address", "wrong address")


@pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
def test_what_has_ended_is_left_alone_and_counted(state):
    job = job_in(state)
    assert bury([job]) == Moved(left={"ended": 1})
    assert Job.objects.get().state == state


def test_without_a_note_the_error_says_how_it_came():
    bury([job_in("ready")])
    assert DeadLetter.objects.get().error == "The job was buried by hand."


def test_a_running_job_is_taken_away_and_what_its_worker_reports_is_refused():
    driver = DatabaseDriver()
    held = hold(add.enqueue(1))
    assert bury([held.job.id]).moved == 1
    assert Notice.objects.get().token == held.lease.token
    assert Attempt.objects.get().end == "lost"
    outcome = decide.outcome(OutcomeKind.ACK, held)
    (rejection,) = driver.settle([outcome], now=driver.now())
    assert isinstance(rejection.error, JobNotInflight)
    assert not rejection.repeated
    assert Job.objects.get().state == "dead"


def test_dependents_die_with_it_and_a_requeue_revives_them():
    first = add.enqueue(1)
    then = add.using(after=first).enqueue(2)
    assert bury([first]).moved == 1
    assert then.refresh().state == "dead"
    assert requeue([first]).moved == 1
    assert (first.refresh().state, then.refresh().state) == ("ready", "blocked")


def test_a_filter_takes_all_that_match():
    for queue in ("mail", "mail", "other"):
        add.using(queue=queue).enqueue(1)
    assert bury(Selection(queue="mail")).moved == 2
    assert Job.objects.get(state="ready").queue == "other"


def test_a_note_that_cannot_be_stored_is_refused():
    job = job_in("ready")
    with pytest.raises(InvalidJob, match="note"):
        bury([job], note="a\x00b")
    assert Job.objects.get().state == "ready"


def test_a_crash_in_the_middle_changes_nothing():
    job = job_in("ready")

    def crash():
        raise FailpointReached

    with failpoints.armed("bury.locked", crash), pytest.raises(FailpointReached):
        bury([job])
    assert Job.objects.get().state == "ready"
    assert not DeadLetter.objects.exists()
