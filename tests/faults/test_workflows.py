"""Workers killed or stopped, and members that end at the same instant, while workflows advance."""

import os
import signal
from contextlib import contextmanager
from time import monotonic, time

import pytest
from django.db import connection

from taskharbor_django import chain, chord
from taskharbor_django.lifecycle import WorkflowState
from taskharbor_django.models import Job
from tests.process.harness import wait_until
from tests.testapp import fault_tasks as tasks
from tests.testapp.workflow_tasks import boom, first, total
from tests.workflows import counts_add_up

from .crew import LEASE, counts, everything, gone, stopped
from .harbor import tell
from .test_processes import WHEN_IT_HAS_ENDED, WHILE_IT_RUNS, let_go_on, stop_each

# Before and after each statement of a release, and after its commit.
PLACES = (
    "completer.settling",
    "settle.locked",
    "settle.moved",
    "advance.read",
    "advance.locked",
    "advance.moved",
    "advance.counted",
    "settle.reported",
    "completer.settled",
)
COMMITTED = {"completer.settled"}  # what was settled there is not lost
IDLE_FOR = 15.0  # so long a transaction may do nothing before PostgreSQL ends it
ROUNDS = int(os.environ.get("TASKHARBOR_FAULTS_ROUNDS", "1000"))


def ended(workflows, timeout=120):
    wait_until(
        lambda: all(not it.refresh().open_jobs for it in workflows),
        timeout=timeout,
        what="the end of the workflows",
    )


def kill_each(crew):
    """A worker of its own is killed at each place; return how soon another has what they lost."""
    victims = [crew.start(queue=place, failpoints=f"{place}=kill", threads=1) for place in PLACES]
    for victim in victims:
        gone(victim)
    counts_add_up()
    lost = list(Job.objects.filter(state="inflight"))
    assert {job.queue for job in lost} >= set(PLACES) - COMMITTED
    crew.start(queue="*", threads=2 * len(PLACES)).ready()
    return crew.taken_over(*lost, since=time())


def test_workers_killed_in_a_release_lose_nothing_and_release_once(crew, record_property):
    """One worker for each place, killed as it lets the finalizer of a chord of its own go."""
    workflows = {}
    for place in PLACES:
        member = first.using(queue=place)
        workflows[place] = chord(
            [member.s(1), member.s(2)], total.using(queue=f"then-{place}").s()
        ).enqueue()
    tell(record_property, recovery=kill_each(crew))
    ended(workflows.values())
    crew.finish(signed=False)
    for place, workflow in workflows.items():
        assert workflow.state == WorkflowState.DONE, place
        assert workflow.results == [3], place
        finalizer = workflow.jobs.get(task=total.name)
        assert (finalizer.executions, finalizer.dependencies_left) == (1, 0), place


def test_workers_killed_while_a_death_goes_down_lose_nothing(crew, record_property):
    workflows = {}
    for place in PLACES:
        doomed = boom.using(queue=place)
        below = first.using(queue=f"then-{place}")
        workflows[place] = chain(doomed.s(), below.si(1), below.si(2)).enqueue()
    tell(record_property, recovery=kill_each(crew))
    ended(workflows.values())
    crew.finish(signed=False)
    for place, workflow in workflows.items():
        assert [job.state for job in workflow.jobs] == ["dead"] * 3, place


@pytest.mark.parametrize("over", [False, True])
def test_what_stopped_workers_would_release_or_bury_is_left_to_who_has_the_job_now(
    crew, over, record_property
):
    """Their ack and their failure come while another runs the job, or when that is over."""
    if over:
        crew.open()
    jobs, stale = stop_each(crew, "ack", "fail")
    # Before anybody takes over: a job that is done already would have nobody to let go.
    below = {verb: crew.enqueue(tasks.touch.using(after=job)) for verb, job in jobs.items()}
    crew.start(threads=4, lease=30).ready()
    tell(record_property, reserved_after=crew.taken_over(*jobs.values(), since=time()))
    if over:
        crew.ended(*jobs.values(), *below.values())
    else:
        for job in jobs.values():
            crew.signed("READY", job=job)
    before = {verb: everything(job) for verb, job in below.items()}
    let_go_on(crew, stale, WHEN_IT_HAS_ENDED if over else WHILE_IT_RUNS)
    assert {verb: everything(job) for verb, job in below.items()} == before
    assert {job.refresh().state for job in below.values()} == {"done" if over else "blocked"}
    crew.open()
    crew.ended(*jobs.values(), *below.values())
    assert {counts(job) for job in jobs.values()} == {("done", 2, 0, 1)}
    assert {counts(job) for job in below.values()} == {("done", 1, 0, 0)}
    crew.finish()


@pytest.mark.slow
@pytest.mark.postgresql  # elsewhere nobody ends the transaction of a process that is stopped
@pytest.mark.parametrize("place", ["settle.moved", "advance.locked", "advance.counted"])
def test_a_release_that_a_stopped_worker_leaves_half_done_is_undone_and_happens_once(
    crew, place, record_property
):
    """It holds the rows until the server ends its session, and commits when that is long over."""
    crew.open()
    job = crew.enqueue(tasks.hold, str(crew.go), queue="half")
    below = crew.enqueue(tasks.touch.using(after=job))
    stale = crew.start(queue="half", threads=1, failpoints=f"{place}=stop")
    assert stopped(stale).alive, stale.output
    began = time()
    crew.start(lease=30).ready()
    took = crew.taken_over(job, since=began, lease=IDLE_FOR + LEASE)
    tell(record_property, reserved_after_stop=took)
    crew.ended(job, below)
    before = everything(job), everything(below)
    stale.send(signal.SIGCONT)
    stale.line("settle: the database cannot be used")
    crew.dismiss(stale)
    assert (everything(job), everything(below)) == before
    assert counts(job) == ("done", 2, 0, 1)
    assert counts(below) == ("done", 1, 0, 0)
    crew.finish()


# Where a member has ended, and its transaction has not yet looked at who waits for it. Nobody waits
# there for a lock: a worker would give that up after a moment.
GATE = """
CREATE FUNCTION faults_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({before});
    WHILE NOT pg_try_advisory_xact_lock_shared({gate}) LOOP
        PERFORM pg_sleep(0.001);
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER faults_gate AFTER UPDATE ON taskharbor_job FOR EACH ROW
WHEN (OLD.state = 'inflight' AND NEW.state = 'done' AND NEW.has_dependents)
EXECUTE FUNCTION faults_gate()
"""
BEFORE, SHUT = 4711, 4712
WAITING = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def ask(sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchone()[0]


@contextmanager
def a_gate():
    """Let members that end come to a gate; yield what shuts it until so many stand before it."""

    @contextmanager
    def shut(number):
        ask("SELECT pg_advisory_lock(%s)::text", SHUT)
        try:
            yield
            wait_until(lambda: ask(WAITING, BEFORE) == number, what="all at the gate")
        finally:
            ask("SELECT pg_advisory_unlock(%s)", SHUT)

    with connection.cursor() as cursor:
        cursor.execute(GATE.format(before=BEFORE, gate=SHUT))
    try:
        yield shut
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION faults_gate CASCADE")


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_thousand_rounds_of_members_that_end_at_the_same_instant(crew, record_property):
    """Four processes, each with one member of every chord; each finalizer runs once."""
    queues = [f"side-{number}" for number in range(4)]
    workers = [crew.start(queue=f"{queue},last", threads=2, lease=30) for queue in queues]
    for worker in workers:
        worker.ready()
    members = [tasks.touch.using(queue=queue).s() for queue in queues]
    began, last = monotonic(), tasks.gather.using(queue="last")
    with a_gate() as shut:
        for _ in range(ROUNDS):
            with shut(len(queues)):
                workflow = chord(members, last.s()).enqueue()
            ended([workflow])
            assert workflow.results == [len(queues)]
    record_property("rounds", ROUNDS)
    record_property("seconds", round(monotonic() - began, 1))
    runs = Job.objects.filter(task=tasks.gather.name).values_list("executions", "state")
    assert list(runs) == [(1, "done")] * ROUNDS
    crew.finish()
