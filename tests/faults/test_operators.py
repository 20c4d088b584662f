"""
Every verb of an operator against reserve, settle and expiry; and in bulk, while workers run.

TASKHARBOR_STORM_CALLS says how many calls, TASKHARBOR_STORM_SEED repeats their choice;
TASKHARBOR_DEAD_LETTERS says how many are requeued at once.
"""

import math
import os
import random
import statistics
import time
from collections import Counter

import pytest
from django.db import connection

from taskharbor_django import operations
from taskharbor_django.models import DeadLetter, Job, Lease, Workflow
from taskharbor_django.operations import Selection
from tests.factories import job_in
from tests.process.harness import Processes, wait_until
from tests.testapp.process_tasks import mark
from tests.workflows import counts_add_up

from . import history
from .crew import MARGIN
from .history import SETTLED, fate, noted, violations
from .storm import MAX_LEASE_LOSSES, OPERATORS_VERBS, Storm, drain

SEED = int(os.environ.get("TASKHARBOR_STORM_SEED") or random.SystemRandom().randrange(1, 10**9))
CALLS = {"postgresql": 10_000, "sqlite": 2_000, "mysql": 2_000}
# What a worker settled, and what it may have become in the history.
FATES = {
    "ack": {"ack"},
    "retry": {"retry", "last retry"},
    "fail": {"fail"},
    "release": {"release", "return", "cancel"},
    "cancel": {"cancel"},
}


@pytest.mark.slow
def test_every_verb_races_reserve_settle_and_expiry(transactional_db, tmp_path, record_property):
    """Thousands of calls of all kinds on few jobs: only legal moves, and everything adds up."""
    calls = int(os.environ.get("TASKHARBOR_STORM_CALLS") or CALLS[connection.vendor])
    print(f"TASKHARBOR_STORM_CALLS={calls} TASKHARBOR_STORM_SEED={SEED}")  # noqa: T201
    began = time.monotonic()
    with noted():
        storm = Storm(SEED, calls)
        storm.run()
        settled = storm.accepted + drain()
    record_property("seed", SEED)
    record_property("calls", dict(storm.did))
    record_property("settled", len(storm.accepted))
    record_property("seconds", round(time.monotonic() - began, 1))
    facts = history.History(tmp_path / "none").facts()
    record_property("moves", sum(map(len, facts.steps.values())))
    # The clock of the callers is the database's own: no lease may be taken a moment too early.
    # They stand in line behind each other's locks, for longer than their leases are.
    options = {"slack": 0.0, "in_line": math.inf, "most_losses": MAX_LEASE_LOSSES}
    assert violations(facts, operators=True, signed=False, **options) == []
    each_word_counted_once(settled, facts)
    no_other_word_counted(settled, facts)
    counts_add_up()
    assert not Lease.objects.exists()
    assert not Job.objects.filter(state="blocked").exists()
    assert not Workflow.objects.filter(finished_at=None).exists()
    assert storm.did.keys() >= OPERATORS_VERBS.keys()


def each_word_counted_once(accepted, facts):
    """What workers were told to have settled is what the history has, one by one."""
    assert max(Counter((job, version) for job, version, _ in accepted).values()) == 1
    moves = {
        (step.job, step.fence): step
        for steps in facts.steps.values()
        for step in steps
        if step.before == "inflight"
    }
    for job, version, kind in accepted:
        step = moves[job, version]
        assert fate(step) in FATES[kind], (kind, step)
        record = facts.records[job].get(version)
        assert record is None or record.end != "lost", (kind, step)  # somebody else has ended it


def no_other_word_counted(accepted, facts):
    """What was refused has moved nothing: each settled run is one that somebody was told of."""
    told = {(job, version) for job, version, _ in accepted}
    counted = {
        (step.job, step.fence): fate(step)
        for steps in facts.steps.values()
        for step in steps
        if fate(step) in SETTLED
    }
    assert {run: how for run, how in counted.items() if run not in told} == {}


# -- in bulk -------------------------------------------------------------------------------------

LONGEST_SHARE = 0.25  # of the time of the action, for a live job meanwhile
DEAD = int(os.environ.get("TASKHARBOR_DEAD_LETTERS") or 200_000)
MANY_DEAD = """
WITH made AS (
    INSERT INTO taskharbor_job ({columns})
    SELECT {values} FROM taskharbor_job, generate_series(1, %s) WHERE taskharbor_job.id = %s
    RETURNING id
)
INSERT INTO taskharbor_deadletter ({letter_columns})
SELECT {letter_values} FROM made, taskharbor_deadletter WHERE taskharbor_deadletter.job_id = %s
"""


def lists(model, changed):
    """The columns of a copied row, and what they are copied from."""
    fields = model._meta.concrete_fields
    names = [it.column for it in fields if it.column in changed or not it.primary_key]
    values = [changed.get(name, f'{model._meta.db_table}."{name}"') for name in names]
    return ", ".join(f'"{name}"' for name in names), ", ".join(values)


def copy_dead(job, count):
    """So many copies of a dead job with its letter, in one statement."""
    columns, values = lists(Job, {"id": "gen_random_uuid()"})
    letter_columns, letter_values = lists(DeadLetter, {"job_id": "made.id", "open_for": "made.id"})
    sql = MANY_DEAD.format(
        columns=columns, values=values, letter_columns=letter_columns, letter_values=letter_values
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [count, job.pk, job.pk])
        cursor.execute("ANALYZE")


def one_live(said):
    """How long one job of the live queue takes."""
    sent = time.monotonic()
    handle = mark.using(queue="live").enqueue(str(said))
    wait_until(lambda: handle.refresh().state == "done", what="a live job")
    return time.monotonic() - sent


@pytest.fixture
def workers(transactional_db):
    """
    Two workers that prefer the live queue to the bulk.

    Nothing notes their moves: triggers on so many rows would be what is measured.
    """
    running = Processes()
    for _ in range(2):
        running.start("--queues", "live,bulk", "--threads", "2", "--poll", "0.2")
    yield
    running.remove()


@pytest.mark.slow
@pytest.mark.postgresql
def test_200000_dead_letters_are_requeued_while_workers_run(
    tmp_path, record_property, race, workers
):
    said, took, answers = tmp_path / "said", [], []
    payload = mark.using(queue="live").enqueue(str(said)).refresh().payload
    job = job_in("dead", queue="bulk", task=mark.name, payload=bytes(payload))
    copy_dead(job, DEAD - 1)
    quiet = [one_live(said) for _ in range(20)]

    def requeue():
        began = time.monotonic()
        answers.append(operations.requeue(Selection(queue="bulk", state="dead"), note="all"))
        took.append(time.monotonic() - began)

    def look():
        found = [one_live(said)]
        while not took:
            found.append(one_live(said))
        return found

    _, busy = race(requeue, look)
    (answer,) = answers
    record_property("requeued", answer.moved)
    record_property("seconds", round(took[0], 1))
    record_property("live job before, median ms", round(statistics.median(quiet) * 1000))
    record_property("live job during, median ms", round(statistics.median(busy) * 1000))
    record_property("live job during, longest ms", round(max(busy) * 1000))
    # The first of them was enqueued as the action began: whoever waits for it waits for it all.
    assert max(busy) < max(took[0] * LONGEST_SHARE, MARGIN)
    assert (answer.moved, dict(answer.left)) == (DEAD, {})
    states = Counter(Job.objects.filter(queue="bulk").values_list("state", flat=True))
    record_property("done meanwhile", states["done"])
    assert sum(states.values()) == DEAD
    assert "dead" not in states
    assert not DeadLetter.objects.filter(queue="bulk").exclude(open_for=None).exists()
