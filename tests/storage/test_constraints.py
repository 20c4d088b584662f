"""What the database itself refuses, whoever writes: each rule that a constraint can say."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import DataError, IntegrityError, transaction

from taskharbor_django.lifecycle import STATE_RULES, DeadReason, JobState
from taskharbor_django.models import (
    Attempt,
    DeadLetter,
    Dependency,
    IdempotencyKey,
    Job,
    Queue,
    QueueMinute,
    Schedule,
)

from .raw import NOW, filled, insert, job_in, update_job

pytestmark = pytest.mark.django_db

# A text too long for its column is an error of data on PostgreSQL and MariaDB.
REFUSALS = (IntegrityError, DataError)


def refused(write, *args, **columns):
    with pytest.raises(REFUSALS), transaction.atomic():
        write(*args, **columns)


def stored(state, **columns):
    return insert(Job, **job_in(state, **columns))["id"]


# -- the rules of each state, whatever they are --------------------------------------------------


def violations():
    """Yield (state, column, a value that its rule forbids) for each entry of STATE_RULES."""
    for state, rule in STATE_RULES.items():
        yield from ((state, column, filled(column)) for column in rule.empty)
        yield from ((state, column, None) for column in rule.filled)
        yield from ((state, column, 1) for column in rule.zero)
        yield from ((state, column, 0) for column in rule.positive)


EACH_RULE = pytest.mark.parametrize(
    ("state", "column", "value"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in violations()],
)


class TestRulesOfStates:
    @pytest.mark.parametrize("state", JobState)
    def test_a_row_that_keeps_the_rules_is_accepted(self, state):
        assert Job.objects.get(pk=stored(state)).state == state

    @EACH_RULE
    def test_no_insert_breaks_a_rule(self, state, column, value):
        refused(insert, Job, **job_in(state, **{column: value}))

    @EACH_RULE
    def test_no_update_breaks_a_rule(self, state, column, value):
        pk = stored(state)
        refused(update_job, pk, **{column: value})
        legal = job_in(state).get(column, 0 if value == 1 else None)
        assert update_job(pk, **{column: legal}) == 1

    @pytest.mark.parametrize("state", JobState)
    def test_a_column_without_a_rule_is_free(self, state):
        rule = STATE_RULES[state]
        for column in ("lease", "run_at", "cancel_requested_at", "finished_at"):
            if column not in rule.empty:
                insert(Job, **job_in(state, **{column: filled(column)}))
            if column not in rule.filled:
                insert(Job, **job_in(state, **{column: None}))


# -- the same by hand, so that a rule cannot leave the table unseen ------------------------------

FORBIDDEN = [
    ("inflight", {"lease": None}),
    ("inflight", {"finished_at": NOW}),
    ("inflight", {"dependencies_left": 1}),
    ("ready", {"lease": uuid4()}),
    ("ready", {"cancel_requested_at": NOW}),
    ("ready", {"finished_at": NOW}),
    ("ready", {"dependencies_left": 1}),
    ("scheduled", {"lease": uuid4()}),
    ("scheduled", {"cancel_requested_at": NOW}),
    ("scheduled", {"finished_at": NOW}),
    ("scheduled", {"run_at": None}),
    ("scheduled", {"dependencies_left": 1}),
    ("blocked", {"lease": uuid4()}),
    ("blocked", {"cancel_requested_at": NOW}),
    ("blocked", {"finished_at": NOW}),
    ("blocked", {"dependencies_left": 0}),
    ("done", {"finished_at": None}),
    ("done", {"lease": None}),
    ("done", {"dependencies_left": 1}),
    ("dead", {"finished_at": None}),
    ("cancelled", {"lease": uuid4()}),
    ("cancelled", {"finished_at": None}),
]

ALLOWED = [
    ("inflight", {"cancel_requested_at": NOW}),
    ("inflight", {"started_at": NOW, "run_at": NOW}),
    ("ready", {"run_at": NOW}),
    ("blocked", {"run_at": NOW, "dependencies_left": 7}),
    ("done", {"cancel_requested_at": NOW}),
    ("dead", {"lease": uuid4()}),
    ("dead", {"lease": None, "dependencies_left": 2}),
    ("cancelled", {"cancel_requested_at": NOW, "dependencies_left": 2}),
]


def named(cases):
    return [f"{state}-{'-'.join(columns)}" for state, columns in cases]


class TestStatesByHand:
    @pytest.mark.parametrize(("state", "columns"), FORBIDDEN, ids=named(FORBIDDEN))
    def test_a_forbidden_row_is_refused(self, state, columns):
        pk = stored(state)
        refused(insert, Job, **job_in(state, **columns))
        refused(update_job, pk, **columns)

    @pytest.mark.parametrize(("state", "columns"), ALLOWED, ids=named(ALLOWED))
    def test_an_allowed_row_is_accepted(self, state, columns):
        assert update_job(stored(state), **columns) == 1

    @pytest.mark.parametrize(
        ("before", "after"), [("ready", "inflight"), ("inflight", "ready"), ("ready", "done")]
    )
    def test_a_state_alone_cannot_be_changed(self, before, after):
        refused(update_job, stored(before), state=after)

    @pytest.mark.parametrize("state", ["", "lost", "READY", "ready "])
    def test_an_unknown_state_is_refused(self, state):
        pk = stored("ready")
        refused(update_job, pk, state=state)
        refused(insert, Job, **job_in("ready", state=state))


# -- columns that every job has ------------------------------------------------------------------

BAD_NAMES = {
    "empty": "",
    "space": "a b",
    "only a space": " ",
    "space at the end": "a ",
    "quote": "a'b",
    "double quote": 'a"b',
    "slash": "a/b",
    "newline at the end": "default\n",
    "newline at the beginning": "\ndefault",
    "newline inside": "a\nb",
    "carriage return": "a\r",
    "tab": "a\tb",
    "one too long": "x" * 129,
    "a letter that is not ASCII": "é",
    "a letter that is k to some": "\u212a",
    "a letter that is s to some": "\u017f",
    "a digit that is not ASCII": "\u0663",
    "an emoji": "\U0001f40c",
}
GOOD_NAMES = ["default", "a", "x" * 128, "AZaz09_.:-", "-", "."]


class TestColumns:
    @pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
    def test_a_bad_queue_name_is_refused(self, name):
        refused(insert, Job, **job_in("ready", queue=name))
        refused(update_job, stored("ready"), queue=name)

    @pytest.mark.parametrize("name", GOOD_NAMES)
    def test_a_good_queue_name_is_accepted(self, name):
        assert Job.objects.get(pk=stored("ready", queue=name)).queue == name

    def test_a_task_has_a_name(self):
        refused(insert, Job, **job_in("ready", task=""))
        refused(update_job, stored("ready"), task="")
        stored("ready", task="x")

    @pytest.mark.parametrize("rank", [101, -101, 32_000])
    def test_a_rank_outside_is_refused(self, rank):
        refused(insert, Job, **job_in("ready", priority=rank))
        refused(update_job, stored("ready"), priority=rank)

    @pytest.mark.parametrize("rank", [100, -100, 0])
    def test_a_rank_inside_is_accepted(self, rank):
        assert update_job(stored("ready"), priority=rank) == 1

    @pytest.mark.parametrize("column", ["attempts", "executions", "lease_losses"])
    def test_a_negative_counter_is_refused(self, column):
        pk = stored("ready")
        refused(update_job, pk, **{column: -1})
        refused(insert, Job, **job_in("ready", **{column: -1}))
        assert update_job(pk, **{column: 0}) == 1

    def test_dependencies_are_not_negative_in_any_state(self):
        for state in JobState:
            refused(insert, Job, **job_in(state, dependencies_left=-1))

    def test_an_id_is_there_once(self):
        pk = stored("ready")
        refused(stored, "ready", id=pk)

    def test_a_slot_of_a_schedule_has_one_job(self):
        first = stored("ready", schedule=1, schedule_slot=NOW)
        refused(stored, "ready", schedule=1, schedule_slot=NOW)
        second = stored("ready", schedule=1, schedule_slot=NOW + timedelta(microseconds=1))
        refused(update_job, second, schedule_slot=NOW)
        stored("ready", schedule=2, schedule_slot=NOW)
        assert update_job(first, state="ready") == 1

    def test_jobs_without_a_schedule_share_a_slot_of_nobody(self):
        stored("ready", schedule_slot=NOW)
        stored("ready", schedule_slot=NOW)
        # Run now, by hand: the schedule's own, in none of its slots.
        stored("ready", schedule=1, schedule_slot=None)
        stored("ready", schedule=1, schedule_slot=None)


# -- what hangs on a job -------------------------------------------------------------------------


def letter(job, **columns):
    row = dict.fromkeys(("category", "code", "error_class", "error", "traceback"), "")
    row |= {"job": job, "open_for": job, "task": "t", "queue": "q", "fingerprint": "", "note": ""}
    row |= {"reason": "exhausted", "attempts": 1}
    return insert(DeadLetter, **(row | {"died_at": NOW} | columns))


def attempt(job, version, **columns):
    row = dict.fromkeys(("worker", "category", "code", "error_class", "error", "traceback"), "")
    row |= {"job": job, "lease_version": version, "number": 1, "end": "lost", "finished_at": NOW}
    return insert(Attempt, **(row | columns))


class TestDeadLetters:
    def test_a_job_has_one_open_letter(self):
        job = uuid4()
        letter(job)
        refused(letter, job)
        letter(uuid4())

    def test_a_job_has_any_number_of_closed_ones(self):
        job = uuid4()
        for _ in range(2):
            letter(job, open_for=None, closed_at=NOW)
        letter(job)

    @pytest.mark.parametrize(
        "columns",
        [
            {"open_for": None, "closed_at": None},
            {"closed_at": NOW},
            {"open_for": uuid4(), "closed_at": None},
            {"open_for": uuid4(), "closed_at": NOW},
        ],
        ids=["closed without a time", "open with one", "open for another", "closed for another"],
    )
    def test_a_letter_is_open_or_closed(self, columns):
        refused(letter, uuid4(), **columns)

    def test_a_letter_cannot_be_closed_halfway(self):
        letter(uuid4())
        for half in ({"open_for": None}, {"closed_at": NOW}):
            refused(DeadLetter.objects.update, **half)
        assert DeadLetter.objects.update(open_for=None, closed_at=NOW) == 1

    @pytest.mark.parametrize("reason", ["", "bored", "EXHAUSTED"])
    def test_an_unknown_reason_is_refused(self, reason):
        refused(letter, uuid4(), reason=reason)

    @pytest.mark.parametrize("reason", DeadReason.values)
    def test_a_known_reason_is_accepted(self, reason):
        letter(uuid4(), reason=reason)


class TestOneOfAKind:
    def test_an_attempt_of_one_lease_version(self):
        job = uuid4()
        attempt(job, 1)
        refused(attempt, job, 1, end="failed")
        attempt(job, 2)
        attempt(uuid4(), 1)

    def test_a_key_of_one_task(self):
        def key(task, text):
            row = {"task": task, "key": text, "job": uuid4(), "payload_digest": ""}
            insert(IdempotencyKey, **row, expires_at=NOW)

        key("t", "k")
        refused(key, "t", "k")
        # Byte by byte on every database, or one caller's key could swallow another's job.
        for other in ("K", "k ", " k", "ḱ", "k\u0301"):
            key("t", other)
        for other in ("T", "t ", "u"):
            key(other, "k")

    def test_an_edge_between_two_jobs(self):
        first, second = uuid4(), uuid4()
        insert(Dependency, job=first, depends_on=second, kind="after", depth=2)
        refused(insert, Dependency, job=first, depends_on=second, kind="after", depth=2)
        insert(Dependency, job=second, depends_on=first, kind="after", depth=2)
        insert(Dependency, job=first, depends_on=second, kind="after_end", depth=2)

    def test_a_minute_of_one_worker(self):
        row = {"minute": NOW, "queue": "q", "worker": "w", "done": 0, "failed": 0, "dead": 0}
        insert(QueueMinute, **row)
        refused(insert, QueueMinute, **row)
        insert(QueueMinute, **(row | {"worker": "W"}))

    def test_a_name_of_a_queue(self):
        insert(Queue, name="q", note="")
        refused(insert, Queue, name="q", note="")
        insert(Queue, name="Q", note="")

    def test_a_name_of_a_schedule(self):
        row = dict.fromkeys(("cron", "time_zone", "problem"), "")
        row |= {"task": "t", "queue": "q", "payload": b"", "kind": "cron", "created_at": NOW}
        row |= {"catch_up": "skip", "overlap": "skip"}
        row |= {"declared": False, "enqueued": 0, "skipped": 0}
        insert(Schedule, name="s", **row)
        refused(insert, Schedule, name="s", **row)
        insert(Schedule, name="S", **row)

    def test_names_are_found_byte_by_byte(self):
        for queue in ("q", "Q"):
            stored("ready", queue=queue)
        assert Job.objects.filter(queue="q").count() == 1
        assert not Job.objects.filter(queue="q ").exists()
