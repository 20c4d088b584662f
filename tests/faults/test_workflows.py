"""Workers killed or stopped, and members that end at the same instant, while workflows advance."""

import signal
from itertools import islice
from time import monotonic, time

import pytest

from taskharbor_django import chain, chord
from taskharbor_django.lifecycle import WorkflowState
from taskharbor_django.models import Job
from tests.process.harness import wait_until
from tests.testapp import fault_tasks as tasks
from tests.testapp.workflow_tasks import boom, first, total
from tests.workflows import counts_add_up

from .crew import counts, everything, gone, stopped
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
ROUNDS = 1_000
AT_ONCE = 50


def ended(workflows, timeout=120):
    wait_until(
        lambda: all(not it.refresh().open_jobs for it in workflows),
        timeout=timeout,
        what="the end of the workflows",
    )


def kill_each(crew):
    """A worker of its own is killed at each place."""
    victims = [crew.start(queue=place, failpoints=f"{place}=kill", threads=1) for place in PLACES]
    for victim in victims:
        gone(victim)
    counts_add_up()


def test_workers_killed_in_a_release_lose_nothing_and_release_once(crew):
    """One worker for each place, killed as it lets the finalizer of a chord of its own go."""
    workflows = {}
    for place in PLACES:
        member = first.using(queue=place)
        workflows[place] = chord(
            [member.s(1), member.s(2)], total.using(queue=f"then-{place}").s()
        ).enqueue()
    kill_each(crew)
    crew.start(queue="*")
    ended(workflows.values())
    crew.finish(signed=False)
    for place, workflow in workflows.items():
        assert workflow.state == WorkflowState.DONE, place
        assert workflow.results == [3], place
        finalizer = workflow.jobs.get(task=total.name)
        assert (finalizer.executions, finalizer.dependencies_left) == (1, 0), place


def test_workers_killed_while_a_death_goes_down_lose_nothing(crew):
    workflows = {}
    for place in PLACES:
        doomed = boom.using(queue=place)
        below = first.using(queue=f"then-{place}")
        workflows[place] = chain(doomed.s(), below.si(1), below.si(2)).enqueue()
    kill_each(crew)
    crew.start(queue="*")
    ended(workflows.values())
    crew.finish(signed=False)
    for place, workflow in workflows.items():
        assert [job.state for job in workflow.jobs] == ["dead"] * 3, place


@pytest.mark.parametrize("over", [False, True])
def test_what_stopped_workers_would_release_or_bury_is_left_to_who_has_the_job_now(crew, over):
    """Their ack and their failure come while another runs the job, or when that is over."""
    if over:
        crew.open()
    jobs, stale = stop_each(crew, "ack", "fail")
    # Before anybody takes over: a job that is done already would have nobody to let go.
    below = {verb: crew.enqueue(tasks.touch.using(after=job)) for verb, job in jobs.items()}
    crew.start(threads=4, lease=30)
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
    crew.start(lease=30)
    crew.ended(job, below)
    again = crew.history.lines("START", job.id)[1]
    record_property("began_after_stop", round(again.at - began, 1))
    before = everything(job), everything(below)
    stale.send(signal.SIGCONT)
    stale.line("settle: the database cannot be used")
    crew.dismiss(stale)
    assert (everything(job), everything(below)) == before
    assert counts(job) == ("done", 2, 0, 1)
    assert counts(below) == ("done", 1, 0, 0)
    crew.finish()


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_thousand_rounds_of_members_that_end_at_the_same_instant(crew, record_property):
    """Four processes, each with one member of every chord; each finalizer runs once."""
    queues = [f"side-{number}" for number in range(4)]
    for queue in queues:
        crew.start(queue=f"{queue},last", threads=2, lease=30)
    began, rounds = monotonic(), iter(range(ROUNDS))
    while batch := list(islice(rounds, AT_ONCE)):
        workflows = [
            chord(
                [first.using(queue=queue).s(number) for queue in queues],
                total.using(queue="last").s(),
            ).enqueue()
            for number in batch
        ]
        ended(workflows)
        results = [it.results for it in workflows]
        assert results == [[4 * number] for number in batch]
    record_property("rounds", ROUNDS)
    record_property("seconds", round(monotonic() - began, 1))
    counts = Job.objects.filter(task=total.name).values_list("executions", "state")
    assert set(counts) == {(1, "done")}
    assert len(counts) == ROUNDS
    crew.finish(signed=False)
