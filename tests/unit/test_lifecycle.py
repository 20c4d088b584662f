"""The life of a job as data: every move, what must hold in each state, and other names for it."""

from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, connection, transaction

from taskharbor_django.lifecycle import (
    DIALECTS,
    ENDED,
    PRIORITY_FIRST,
    PRIORITY_LAST,
    STATE_RULES,
    TRANSITIONS,
    WAITING,
    DeadReason,
    FailureCategory,
    JobState,
    Priority,
    StateFacts,
    Verb,
    state_in,
)
from taskharbor_django.models import Job
from tests.factories import DeadLetterFactory, JobFactory, job_in

# Every move there is, written a second time and on purpose: verb, from, to.
MOVES = """
    enqueue     -          blocked scheduled ready dead cancelled
    advance     blocked    scheduled ready dead cancelled
    promote     scheduled  ready
    reschedule  blocked    blocked
    reschedule  scheduled  scheduled ready
    reschedule  ready      scheduled ready
    reserve     ready      inflight
    ack         inflight   done
    retry       inflight   scheduled ready cancelled
    fail        inflight   dead
    release     inflight   scheduled ready cancelled
    reclaim     inflight   ready dead cancelled
    cancel      blocked    cancelled
    cancel      scheduled  cancelled
    cancel      ready      cancelled
    cancel      inflight   cancelled
    expire      blocked    dead
    expire      scheduled  dead
    expire      ready      dead
    expire      inflight   dead
    bury        blocked    dead
    bury        scheduled  dead
    bury        ready      dead
    bury        inflight   dead
    requeue     dead       blocked scheduled ready
    discard     dead       cancelled
"""

LEGAL = {
    (verb, before, after)
    for verb, before, *targets in (line.split() for line in MOVES.strip().splitlines())
    for after in targets
}

STATES = ["blocked", "scheduled", "ready", "inflight", "done", "dead", "cancelled"]


# -- moves --------------------------------------------------------------------------------------


def test_there_are_seven_states():
    assert JobState.values == STATES


@pytest.mark.parametrize("verb", Verb, ids=str)
def test_a_verb_makes_the_moves_of_the_table_and_no_others(verb):
    for before in [None, *JobState]:
        for after in JobState:
            move = (verb.value, before.value if before else "-", after.value)
            moves = TRANSITIONS[verb].get(before, ())
            assert (after in moves) is (move in LEGAL), move


def test_the_table_speaks_of_every_verb_and_of_no_other():
    assert {verb for verb, _, _ in LEGAL} == set(Verb.values) == {v.value for v in TRANSITIONS}


def test_a_state_is_waiting_or_inflight_or_ended():
    assert {"blocked", "scheduled", "ready"} == WAITING
    assert {"done", "dead", "cancelled"} == ENDED


def test_nothing_leaves_done_or_cancelled():
    sources = {before for moves in TRANSITIONS.values() for before in moves}
    assert set(JobState) - sources == {JobState.DONE, JobState.CANCELLED}


def test_only_a_reserve_makes_a_job_inflight():
    assert {move for move in LEGAL if move[2] == "inflight"} == {("reserve", "ready", "inflight")}
    makers = {
        verb for verb, moves in TRANSITIONS.items() for to in moves.values() if "inflight" in to
    }
    assert makers == {Verb.RESERVE}


def test_every_state_can_be_reached_from_nothing():
    reached = {None}
    for _ in JobState:
        reached |= {
            after
            for moves in TRANSITIONS.values()
            for before, targets in moves.items()
            if before in reached
            for after in targets
        }
    assert reached == {None, *JobState}


# -- what must hold in each state ---------------------------------------------------------------

SOME_TIME = datetime(2031, 5, 17, tzinfo=UTC)
TOKEN = "0f7cf6ed-3b3c-4a0c-8d83-5d6df4c1d6aa"

# A change to a legal job that its state does not allow.
BREACHES = [
    ("blocked", {"lease": TOKEN}),
    ("blocked", {"dependencies_left": 0}),
    ("blocked", {"cancel_requested_at": SOME_TIME}),
    ("blocked", {"finished_at": SOME_TIME}),
    ("scheduled", {"lease": TOKEN}),
    ("scheduled", {"run_at": None}),
    ("scheduled", {"dependencies_left": 1}),
    ("scheduled", {"cancel_requested_at": SOME_TIME}),
    ("scheduled", {"finished_at": SOME_TIME}),
    ("ready", {"lease": TOKEN}),
    ("ready", {"dependencies_left": 1}),
    ("ready", {"cancel_requested_at": SOME_TIME}),
    ("ready", {"finished_at": SOME_TIME}),
    ("inflight", {"lease": None}),
    ("inflight", {"dependencies_left": 1}),
    ("inflight", {"finished_at": SOME_TIME}),
    ("done", {"lease": None}),
    ("done", {"finished_at": None}),
    ("done", {"dependencies_left": 1}),
    ("dead", {"finished_at": None}),
    ("cancelled", {"lease": TOKEN}),
    ("cancelled", {"finished_at": None}),
    *((state, {"state": "gone"}) for state in STATES),
]

# What its state does allow, though one may think otherwise.
LIBERTIES = [
    ("scheduled", {"attempts": 2}),
    ("inflight", {"cancel_requested_at": SOME_TIME}),
    ("dead", {"lease": None}),
    ("dead", {"dependencies_left": 2}),
    ("cancelled", {"dependencies_left": 2}),
    ("cancelled", {"cancel_requested_at": SOME_TIME}),
]


@pytest.mark.parametrize("state", STATES)
def test_a_job_of_the_factory_is_legal_in_every_state(db, state):
    assert Job.objects.get(pk=job_in(state).pk).state == state


@pytest.mark.parametrize(("state", "change"), BREACHES, ids=str)
def test_the_database_refuses_what_the_rules_of_a_state_forbid(db, state, change):
    job = job_in(state)
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(**change)


@pytest.mark.parametrize(("state", "change"), LIBERTIES, ids=str)
def test_the_database_allows_what_no_rule_forbids(db, state, change):
    assert Job.objects.filter(pk=job_in(state).pk).update(**change) == 1


@pytest.mark.parametrize("state", STATES)
def test_the_constraint_of_a_state_says_what_its_rule_says(state):
    rule = STATE_RULES[JobState(state)]
    breached = {(name, "filled") for name in rule.empty} | {(name, "empty") for name in rule.filled}
    breached |= {(name, "above zero") for name in rule.zero}
    breached |= {(name, "zero") for name in rule.positive}
    tried = {
        (name, _kind(value))
        for where, change in BREACHES
        for name, value in change.items()
        if where == state and name != "state"
    }
    assert tried == breached


def _kind(value):
    if isinstance(value, int):
        return "above zero" if value else "zero"
    return "filled" if value is not None else "empty"


def test_every_state_has_a_rule_and_a_constraint_made_from_it():
    assert list(STATE_RULES) == list(JobState)
    names = {constraint.name for constraint in Job._meta.constraints}
    assert {f"taskharbor_job_{state}_rule" for state in STATES} <= names


@pytest.mark.parametrize(
    "change",
    [
        {"priority": -101},
        {"priority": 101},
        {"queue": "two words"},
        {"queue": ""},
        {"task": ""},
        {"attempts": -1},
        {"executions": -1},
        {"lease_losses": -1},
        {"dependencies_left": -1},
    ],
    ids=str,
)
def test_the_database_refuses_an_illegal_rank_name_or_count(db, change):
    job = JobFactory()
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(**change)


def test_a_job_has_at_most_one_open_dead_letter(db):
    job = job_in("dead")
    DeadLetterFactory(job=job, closed=True)
    with pytest.raises(IntegrityError), transaction.atomic():
        DeadLetterFactory(job=job)
    assert job.dead_letters.count() == 2


def test_the_constraints_are_the_database_s_own(db):
    """Not only Django's: a statement past the ORM is refused too."""
    job, table = JobFactory(), connection.ops.quote_name(Job._meta.db_table)
    with (
        pytest.raises(IntegrityError),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE {table} SET state = 'inflight' WHERE seq = %s", [job.seq])


# -- priority -----------------------------------------------------------------------------------


def test_priorities_are_levels_from_zero_and_ranks_fifty_apart():
    assert [(p.name, p.level, int(p)) for p in Priority] == [
        ("CRITICAL", 0, -100),
        ("HIGH", 1, -50),
        ("NORMAL", 2, 0),
        ("LOW", 3, 50),
        ("BULK", 4, 100),
    ]
    assert (PRIORITY_FIRST, PRIORITY_LAST) == (Priority.CRITICAL, Priority.BULK)


def test_a_level_names_its_priority():
    assert [Priority.at_level(level) for level in range(5)] == list(Priority)


@pytest.mark.parametrize("level", [-1, 5])
def test_there_is_no_sixth_level(level):
    with pytest.raises(ValueError, match="is not a valid Priority"):
        Priority.at_level(level)


# -- categories and reasons ---------------------------------------------------------------------


def test_a_failure_has_one_of_five_categories():
    assert FailureCategory.values == ["temporary", "permanent", "timeout", "cancelled", "system"]


def test_a_job_is_dead_for_one_of_seven_reasons():
    assert DeadReason.values == [
        *("exhausted", "permanent", "lease_lost", "lifetime"),
        *("no_handler", "dependency", "manual"),
    ]


@pytest.mark.parametrize("words", [JobState, FailureCategory, DeadReason, Verb])
def test_every_word_has_a_label_for_people(words):
    assert all(str(label) for label in words.labels)
    assert len(set(map(str, words.labels))) == len(words)


# -- the names that other documents have for the states --------------------------------------------

FRESH, FAILED_TWICE = {"failures": 0}, {"failures": 2}
HELD, STARTED = {"started": False}, {"started": True}
EXHAUSTED, PERMANENT = {"reason": "exhausted"}, {"reason": "permanent"}

VOCABULARIES = ["taskharbor", "contracts", "queue_semantics", "gopherqueue"]

# state, facts, and its name in each vocabulary
NAMES = [
    ("blocked", {}, ["", "scheduled", "", "PENDING"]),
    ("scheduled", FRESH, ["scheduled", "scheduled", "Ready", "DELAYED"]),
    ("scheduled", FAILED_TWICE, ["scheduled", "retry", "Ready", "RETRYING"]),
    ("ready", FRESH, ["ready", "scheduled", "Ready", "SCHEDULED"]),
    ("ready", FAILED_TWICE, ["ready", "scheduled", "Ready", "SCHEDULED"]),
    ("inflight", HELD, ["inflight", "claimed", "InFlight", "RUNNING"]),
    ("inflight", STARTED, ["inflight", "running", "InFlight", "RUNNING"]),
    ("done", STARTED, ["done", "success", "Succeeded", "COMPLETED"]),
    ("dead", EXHAUSTED, ["dlq", "dlq", "Failed", "DEAD_LETTER"]),
    ("dead", PERMANENT, ["dlq", "failed", "Failed", "FAILED"]),
    ("dead", {"reason": "lifetime"}, ["dlq", "dlq", "Failed", "DEAD_LETTER"]),
    ("cancelled", {}, ["", "", "", "CANCELLED"]),
]


@pytest.mark.parametrize(("state", "facts", "names"), NAMES)
def test_a_state_has_its_name_in_each_vocabulary(state, facts, names):
    told = [state_in(dialect, StateFacts(state=state, **facts)) for dialect in VOCABULARIES]
    assert told == names


def test_there_are_four_vocabularies():
    assert list(DIALECTS) == VOCABULARIES


def test_an_unknown_vocabulary_is_refused_with_those_there_are():
    known = "contracts, gopherqueue, queue_semantics, taskharbor"
    with pytest.raises(ValueError, match=f"'klingon'; there are {known}"):
        state_in("klingon", StateFacts(state="ready"))


@pytest.mark.parametrize(
    ("state", "fields", "contracts", "gopher"),
    [
        ("scheduled", {}, "scheduled", "DELAYED"),
        ("scheduled", {"attempts": 1}, "retry", "RETRYING"),
        ("inflight", {}, "claimed", "RUNNING"),
        ("inflight", {"started_at": SOME_TIME}, "running", "RUNNING"),
        ("dead", {}, "dlq", "DEAD_LETTER"),
        ("dead", {"letter__reason": "permanent"}, "failed", "FAILED"),
        ("dead", {"letter": None}, "dlq", "DEAD_LETTER"),
    ],
)
def test_a_job_tells_its_own_facts(db, state, fields, contracts, gopher):
    job = job_in(state, **fields)
    assert (job.state_in("contracts"), job.state_in("gopherqueue")) == (contracts, gopher)


def test_only_the_open_letter_says_why_a_job_is_dead(db):
    job = job_in("dead")
    DeadLetterFactory(job=job, closed=True, reason="permanent")
    assert job.state_in("gopherqueue") == "DEAD_LETTER"
