"""Workers that are killed, stopped and poisoned while they work: FAULTS.md, "Processes"."""

import signal
import time

import pytest

from taskharbor_django import cancel
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Worker
from tests.process.harness import kill, wait_until
from tests.testapp import fault_tasks as tasks
from tests.testapp.models import Trail

from .crew import LEASE, MARGIN, POLL, counts, everything, gone, stopped, stopped_for

# MariaDB differs from the others in its locks, which is what tests/storage is about.
elsewhere_too = [pytest.mark.postgresql, pytest.mark.sqlite]
not_on_mariadb = lambda test: pytest.mark.postgresql(pytest.mark.sqlite(test))  # noqa: E731


# -- kill -9 -------------------------------------------------------------------------------------

HOLDERS = {"thread": tasks.hold, "async": tasks.ahold}


@pytest.mark.parametrize("pool", HOLDERS)
def test_a_worker_killed_in_a_job_costs_one_lease_and_another_takes_over(
    crew, pool, record_property
):
    job = crew.enqueue(HOLDERS[pool], str(crew.go))
    victim = crew.start()
    crew.signed("START")
    other = crew.start().ready()
    killed = time.time()
    kill(victim.pid)
    recovered = crew.signed("START", times=2).at - killed
    record_property("recovery_seconds", round(recovered, 2))
    crew.open()
    crew.ended(job)
    assert recovered <= LEASE + POLL + MARGIN
    assert counts(job) == ("done", 2, 0, 1)
    assert other.lines("is ready")
    crew.finish()


def test_a_worker_killed_with_an_isolated_child_costs_nothing_for_the_child_gives_back(crew):
    job = crew.enqueue(tasks.hold_apart, str(crew.go))
    victim = crew.start(lease=30)
    crew.signed("START")
    kill(victim.pid)
    wait_until(lambda: counts(job) == ("ready", 1, 0, 0), what="the release")
    wait_until(lambda: not crew.history.processes(), what="the end of child and guard")
    crew.open()
    crew.start()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 0)
    wait_until(lambda: not Lease.objects.filter(expires_at__gt=job.refresh().updated_at).exists())
    Lease.objects.all().delete()  # of the killed worker: it covers nothing, and expires in a while
    crew.finish()


@pytest.mark.parametrize(
    ("point", "runs"),
    [
        ("worker.taken", 0),  # reserved, and not one line of the handler was run
        ("executor.returned", 1),  # the effect is there, its ack is not even made
        ("completer.settling", 1),  # the ack is made and not sent
    ],
)
@pytest.mark.parametrize("task", [tasks.touch, tasks.atouch], ids=["thread", "async"])
def test_a_worker_killed_before_the_ack_runs_the_job_again(crew, point, runs, task):
    job = crew.enqueue(task)
    gone(crew.start(failpoints=f"{point}=kill"))
    assert len(crew.history.lines("END")) == runs
    assert counts(job)[:1] == ("inflight",)
    crew.start()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    assert job.result == 2
    assert len(crew.history.lines("END")) == runs + 1
    crew.finish()


@pytest.mark.parametrize("task", [tasks.touch, tasks.atouch], ids=["thread", "async"])
def test_a_worker_killed_after_the_ack_was_committed_costs_nothing(crew, task):
    job = crew.enqueue(task)
    gone(crew.start(failpoints="completer.settled=kill"))
    assert counts(job) == ("done", 1, 0, 0)
    crew.start()
    wait_until(lambda: not Lease.objects.exists(), what="the end of the dead worker's lease")
    assert counts(job) == ("done", 1, 0, 0)
    assert len(crew.history.lines("START")) == 1
    crew.finish()


@pytest.mark.parametrize("point", ["atomic.called", "atomic.settled"])
def test_the_rows_of_an_atomic_task_are_there_once_however_often_it_ran(crew, point):
    job = crew.enqueue(tasks.book)
    gone(crew.start(failpoints=f"{point}=kill"))
    assert len(crew.history.lines("END")) == 1
    assert Trail.objects.count() == 0
    crew.start()
    crew.ended(job)
    assert len(crew.history.lines("END")) == 2
    assert list(Trail.objects.values_list("mark", "fence")) == [("START", 2), ("END", 2)]
    assert counts(job) == ("done", 2, 0, 1)
    crew.finish()


# -- SIGSTOP past the lease ----------------------------------------------------------------------

# what the first run does -> where its worker is stopped with it
STALE = {
    "ack": "completer.settling",
    "retry": "completer.settling",
    "fail": "completer.settling",
    "release": "completer.settling",
    "cancel": "completer.settling",
    "heartbeat": "heartbeat.renewing",
    "progress": "reports.writing",
    "checkpoint": "reports.checkpointing",
}
SETTLED = [verb for verb, point in STALE.items() if point == "completer.settling"]


def outrun(crew, verb):
    """
    Stop a worker right before it writes, and let another have the job.

    The first one's write is the next thing that it does once it may go on: no heartbeat comes before it.
    """
    job = crew.enqueue(tasks.outrun, verb, str(crew.go))
    stale = crew.start(failpoints=f"{STALE[verb]}=stop")
    crew.signed("START")
    if verb == "cancel":
        assert cancel([job.id]).requested == 1
    stopped(stale)
    crew.start()
    return job, stale


@pytest.mark.parametrize("verb", STALE)
def test_what_a_stopped_worker_writes_while_another_runs_its_job_changes_nothing(crew, verb):
    if verb == "cancel":
        pytest.skip("a reclaim ends a job that somebody wants to have cancelled")
    job, stale = outrun(crew, verb)
    crew.signed("READY", job=job)
    wait_until(lambda: job.refresh().progress == 77, what="the progress of the second run")
    before = everything(job)
    lease = Lease.objects.get(token=before[0]["lease"])
    stale.send(signal.SIGCONT)
    stale.line("came too late" if verb in SETTLED else "is lost: it was taken back")
    crew.dismiss(stale)
    assert everything(job) == before
    assert Lease.objects.get(token=lease.token).worker == lease.worker
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    assert job.result == "second"
    assert job.refresh().progress == 77
    assert not crew.history.lines("SAVED")
    crew.finish()


@pytest.mark.parametrize("verb", SETTLED)
def test_what_a_stopped_worker_settles_after_another_has_ended_its_job_changes_nothing(crew, verb):
    crew.open()
    job, stale = outrun(crew, verb)
    crew.ended(job)
    before = everything(job)
    stale.send(signal.SIGCONT)
    stale.line("came too late")
    crew.dismiss(stale)
    assert everything(job) == before
    assert counts(job) == (("cancelled", 1, 0, 0) if verb == "cancel" else ("done", 2, 0, 1))
    crew.finish()


@pytest.mark.parametrize("task", [tasks.hold, tasks.ahold, tasks.hold_apart], ids=lambda t: t.name.rpartition(".")[2])
def test_a_handler_whose_worker_was_stopped_past_the_lease_is_made_to_stop(crew, task):
    job = crew.enqueue(task, str(crew.go))
    stale = crew.start()
    crew.signed("START")
    stale.send(signal.SIGSTOP)
    crew.start()
    crew.signed("START", times=2)
    stale.send(signal.SIGCONT)
    stale.line("is lost")
    crew.dismiss(stale)  # with a grace of 30 s: it has nothing left to wait for
    crew.open()
    crew.ended(job)
    assert [line.fence for line in crew.history.lines("END")] == [2]
    assert counts(job) == ("done", 2, 0, 1)
    crew.finish()


@pytest.mark.parametrize("task", [tasks.hold, tasks.ahold, tasks.hold_apart], ids=lambda t: t.name.rpartition(".")[2])
def test_a_worker_stopped_for_less_than_its_lease_loses_nothing(crew, task):
    job = crew.enqueue(task, str(crew.go))
    worker = crew.start(lease=6)
    other = crew.start(lease=6).ready()
    first = crew.signed("START")
    victim = worker if worker.lines(rf"pid {first.pid}\b") else other
    stopped_for(victim if task is not tasks.hold_apart else worker, 2.5)
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 1, 0, 0)
    crew.finish()


# -- poison --------------------------------------------------------------------------------------


def bystanders(crew):
    return [crew.enqueue(tasks.hold, str(crew.go)) for _ in range(3)]


def assert_found_out(crew, poison, others):
    """The one that kills is buried by its budgets; the others lost one lease and are done."""
    crew.open()
    crew.ended(poison, *others)
    assert counts(poison) == ("dead", 3, 2, 1)
    assert DeadLetter.objects.get().reason == "exhausted"
    assert {attempt.category for attempt in Attempt.objects.filter(job=poison.id)} == {"system"}
    assert {counts(job) for job in others} == {("done", 2, 0, 1)}
    crew.finish()


@pytest.mark.parametrize("how", ["exit", "kill", "segfault"])
def test_a_poisonous_job_is_buried_and_its_neighbours_are_done(crew, how):
    others = bystanders(crew)
    poison = crew.enqueue(tasks.poison, how, company=3)
    first = crew.start()
    assert first.exit_code() != 0
    crew.start()
    assert_found_out(crew, poison, others)


@pytest.mark.parametrize("how", ["kill"])
def test_a_supervisor_survives_a_poisonous_job(crew, how):
    others = bystanders(crew)
    poison = crew.enqueue(tasks.poison, how, company=1)
    supervisor = crew.start("--processes", "2", lease=30)
    supervisor.line("died: killed by SIGKILL")
    crew.open()
    crew.ended(poison, *others)
    assert counts(poison) == ("dead", 3, 2, 1)
    assert {counts(job)[0] for job in others} == {"done"}
    assert {counts(job)[2:] for job in others} <= {(0, 0), (0, 1)}
    assert len(supervisor.lines("died")) == 1
    crew.finish()


def test_a_poisonous_coroutine_is_found_out_too(crew):
    poison = crew.enqueue(tasks.apoison, "exit")
    assert crew.start().exit_code() == 3
    crew.start()
    crew.ended(poison)
    assert counts(poison) == ("dead", 3, 2, 1)
    crew.finish()


@pytest.mark.parametrize("how", ["exit", "kill", "segfault"])
def test_an_isolated_poisonous_job_hurts_nobody(crew, how):
    others = bystanders(crew)
    poison = crew.enqueue(tasks.poison_apart, how)
    worker = crew.start(threads=8)
    crew.ended(poison)
    crew.open()
    crew.ended(*others)
    assert counts(poison) == ("dead", 2, 2, 0)
    assert {counts(job) for job in others} == {("done", 1, 0, 0)}
    assert worker.alive
    crew.finish()


def test_a_job_that_takes_its_worker_down_even_from_quarantine_is_buried_by_its_losses(crew):
    poison = crew.enqueue(tasks.poison, "everything")
    supervisor = crew.start("--processes", "2", lease=30)
    crew.ended(poison)
    assert counts(poison) == ("dead", 3, 0, 3)
    assert DeadLetter.objects.get().reason == "lease_lost"
    assert len(supervisor.lines("died: killed by SIGKILL")) == 3
    crew.finish()


# -- endless loops -------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [tasks.spin, tasks.aspin, tasks.spin_apart], ids=["thread", "async", "isolated"])
def test_an_endless_loop_ends_at_its_timeout(crew, task):
    job = crew.enqueue(task)
    crew.start(threads=1)
    crew.ended(job)
    assert counts(job) == ("dead", 1, 1, 0)
    assert Attempt.objects.get().category == "timeout"
    after = crew.enqueue(tasks.touch)
    crew.ended(after)
    assert Worker.objects.count() == 1
    crew.finish()


@pytest.mark.parametrize("task", [tasks.ablock, tasks.ablock_in_c], ids=["loop", "call"])
def test_a_coroutine_that_lets_no_other_run_ends_at_its_timeout(crew, task):
    """Its thread is left behind, and a new process goes on with what waited for it."""
    job = crew.enqueue(task)
    worker = crew.start(threads=1)
    crew.signed("START")
    others = [crew.enqueue(each) for each in (tasks.touch, tasks.atouch)]
    crew.ended(job, *others)
    assert counts(job) == ("dead", 1, 1, 0)
    assert Attempt.objects.get(job=job.id).category == "timeout"
    assert {counts(other)[0] for other in others} == {"done"}
    assert {counts(other)[2:] for other in others} == {(0, 0)}
    worker.ready(times=2)
    crew.finish()


# -- strange ends --------------------------------------------------------------------------------

CATEGORIES = {
    "SystemExit": "system",
    "KeyboardInterrupt": "system",
    "GeneratorExit": "system",
    "RecursionError": "temporary",
    "Unreadable": "temporary",
    "Leaving": "system",
    "Spiteful": "system",
    "Snooze": "system",
}


def test_whatever_a_handler_raises_is_a_failure_of_its_job_and_of_nothing_else(crew):
    stumblers = [tasks.stumble, tasks.astumble, tasks.stumble_apart, tasks.astumble_aside]
    jobs = {
        (task.name.rpartition(".")[2], how): crew.enqueue(task, how)
        for task in stumblers
        for how in CATEGORIES
    }
    worker = crew.start(expect_trouble=True)
    crew.ended(*jobs.values())
    after = [crew.enqueue(task) for task in (tasks.touch, tasks.atouch, tasks.touch_apart)]
    crew.ended(*after)
    assert {counts(job) for job in after} == {("done", 1, 0, 0)}
    assert {name: counts(job) for name, job in jobs.items()} == dict.fromkeys(
        jobs, ("dead", 1, 1, 0)
    )
    assert worker.alive
    assert Worker.objects.count() == 1
    crew.finish()


@pytest.mark.parametrize("task", [tasks.stumble_badly, tasks.astumble_badly], ids=["thread", "async"])
def test_a_backoff_that_raises_is_a_failure_too(crew, task):
    job = crew.enqueue(task)
    crew.start(expect_trouble=True, settings={"BACKOFF": tasks.SOON})
    crew.ended(job)
    assert counts(job) == ("dead", 2, 2, 0)
    crew.finish()


# -- limits and names ----------------------------------------------------------------------------


def test_a_worker_over_its_memory_limit_goes_on_as_a_new_process(crew):
    """What runs is finished before, and nothing is charged to anybody."""
    running = crew.enqueue(tasks.hold, str(crew.go))
    jobs = [crew.enqueue(tasks.grow, 100) for _ in range(3)]
    worker = crew.start("--max-memory", "140", threads=2)
    wait_until(lambda: Job.objects.filter(state="done").exists(), what="a large job")
    crew.open()
    crew.ended(running, *jobs)
    worker.line(r"stops: memory: \d+ MB \(--max-memory\)")
    worker.ready(times=2)
    assert {counts(job) for job in (running, *jobs)} == {("done", 1, 0, 0)}
    assert {line.pid for line in crew.history.lines()} == {worker.pid}
    crew.finish()


def test_of_two_workers_with_one_name_only_the_dead_one_loses_its_leases(crew):
    jobs = [crew.enqueue(tasks.hold, str(crew.go)) for _ in range(2)]
    twins = {}
    for _ in range(2):
        worker = crew.start("--name", "twin", threads=1, lease=3)
        twins[worker.pid] = worker
    crew.signed("START", times=2)
    victim, survivor = (line.pid for line in crew.history.lines("START"))
    assert {victim, survivor} == set(twins)
    kill(victim)
    crew.start("--name", "twin", threads=1, lease=3)
    crew.signed("START", times=3)
    crew.open()
    crew.ended(*jobs)
    assert sorted(counts(job) for job in jobs) == [("done", 1, 0, 0), ("done", 2, 0, 1)]
    crew.finish()
