"""Workers that are killed, stopped and poisoned while they work: FAULTS.md, "Processes"."""

import signal
import time

import pytest

from taskharbor_django import cancel
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Worker
from tests.process.harness import kill, wait_until
from tests.testapp import fault_tasks as tasks
from tests.testapp.models import Trail

from .crew import LEASE, MARGIN, POLL, counts, everything, freeze, freeze_for, gone, stopped

slow = pytest.mark.slow


def but_mariadb(test):
    """What MariaDB does differently is in tests/storage; here it runs the basics."""
    return pytest.mark.postgresql(pytest.mark.sqlite(test))


def each(*found):
    """Tasks by the last part of their names; those after the first are left out by 'not slow'."""
    return [
        pytest.param(task, id=task.name.rpartition(".")[2], marks=[slow] if number else [])
        for number, task in enumerate(found)
    ]


# -- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", each(tasks.hold, tasks.ahold))
def test_a_worker_killed_in_a_job_costs_one_lease_and_another_takes_over(
    crew, task, record_property
):
    job = crew.enqueue(task, str(crew.go))
    victim = crew.start()
    crew.signed("START")
    crew.start().ready()
    killed = time.time()
    kill(victim.pid)
    crew.inflight(job, fence=2)
    reserved = time.time() - killed
    began = crew.signed("START", times=2).at - killed
    record_property("reserved_after_kill", round(reserved, 2))
    record_property("began_after_kill", round(began, 2))
    crew.open()
    crew.ended(job)
    assert began <= LEASE + POLL + MARGIN
    assert counts(job) == ("done", 2, 0, 1)
    crew.finish()


@but_mariadb
def test_a_worker_killed_with_an_isolated_child_costs_nothing_for_the_child_gives_back(crew):
    job = crew.enqueue(tasks.hold_apart, str(crew.go))
    victim = crew.start(lease=6)
    crew.signed("START")
    kill(victim.pid)
    wait_until(lambda: counts(job) == ("ready", 1, 0, 0), what="the release")
    wait_until(lambda: not crew.history.processes(), what="the end of child and guard")
    crew.open()
    crew.start()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 0)
    wait_until(lambda: not Lease.objects.exists(), what="the end of the dead worker's lease")
    crew.finish()


@pytest.mark.parametrize(
    ("point", "runs", "task"),
    [
        # reserved, and not one line of the handler was run
        ("worker.taken", 0, tasks.touch),
        # the effect is there, its ack is not even made
        ("executor.returned", 1, tasks.touch),
        pytest.param("executor.returned", 1, tasks.atouch, marks=slow),
        # the ack is made and not sent
        ("completer.settling", 1, tasks.touch),
    ],
)
def test_a_worker_killed_before_the_ack_runs_the_job_again(crew, point, runs, task):
    job = crew.enqueue(task)
    gone(crew.start(failpoints=f"{point}=kill"))
    assert len(crew.history.lines("END")) == runs
    assert job.refresh().state == "inflight"
    crew.start()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    assert job.result == 2
    assert len(crew.history.lines("END")) == runs + 1
    crew.finish()


def test_a_worker_killed_after_the_ack_was_committed_costs_nothing(crew):
    job = crew.enqueue(tasks.touch)
    gone(crew.start(failpoints="completer.settled=kill"))
    assert counts(job) == ("done", 1, 0, 0)
    crew.start()
    wait_until(lambda: not Lease.objects.exists(), what="the end of the dead worker's lease")
    assert counts(job) == ("done", 1, 0, 0)
    assert len(crew.history.lines("START")) == 1
    crew.finish()


@pytest.mark.parametrize("point", ["atomic.called", pytest.param("atomic.settled", marks=slow)])
def test_the_rows_of_an_atomic_task_are_there_once_however_often_it_ran(crew, point):
    job = crew.enqueue(tasks.book)
    gone(crew.start(failpoints=f"{point}=kill"))
    assert len(crew.history.lines("END")) == 1
    assert Trail.objects.count() == 0
    crew.start()
    crew.ended(job)
    assert len(crew.history.lines("END")) == 2
    rows = Trail.objects.order_by("pk").values_list("mark", "fence")
    assert list(rows) == [("START", 2), ("END", 2)]
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
TOO_LATE, TAKEN_BACK = "came too late", "is lost: it was taken back"


def outrun(crew, verb):
    """
    Stop a worker right before it writes, and let another have the job.

    That write is the first thing that it does once it may go on: no heartbeat comes before it.
    """
    job = crew.enqueue(tasks.outrun, verb, str(crew.go))
    stale = crew.start(failpoints=f"{STALE[verb]}=stop")
    crew.signed("START")
    if verb == "cancel":
        assert cancel([job.id]).asked == 1
    stopped(stale)
    crew.start()
    return job, stale


@pytest.mark.parametrize("verb", ["ack", "retry", "fail", "release", "cancel"])
def test_what_a_stopped_worker_settles_after_another_has_ended_its_job_changes_nothing(crew, verb):
    crew.open()
    job, stale = outrun(crew, verb)
    crew.ended(job)
    before = everything(job)
    stale.send(signal.SIGCONT)
    stale.line(TOO_LATE)
    crew.dismiss(stale)
    assert everything(job) == before
    # Who is taken back with a request to cancel it is not run again.
    assert counts(job) == (("cancelled", 1, 0, 0) if verb == "cancel" else ("done", 2, 0, 1))
    crew.finish()


@but_mariadb
@pytest.mark.parametrize(
    "verb",
    [
        pytest.param("ack", marks=slow),
        pytest.param("retry", marks=slow),
        pytest.param("fail", marks=slow),
        pytest.param("release", marks=slow),
        "heartbeat",
        "progress",
        "checkpoint",
    ],
)
def test_what_a_stopped_worker_writes_while_another_runs_its_job_changes_nothing(crew, verb):
    job, stale = outrun(crew, verb)
    crew.signed("READY", job=job)
    wait_until(lambda: job.refresh().progress == 77, what="the progress of the second run")
    before = everything(job)
    stale.send(signal.SIGCONT)
    stale.line(TOO_LATE if STALE[verb] == "completer.settling" else TAKEN_BACK)
    crew.dismiss(stale)
    assert everything(job) == before
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    ended = job.refresh()
    assert (job.result, ended.progress, ended.progress_message) == ("second", 77, "second")
    assert not crew.history.lines("SAVED")
    crew.finish()


@but_mariadb
@pytest.mark.parametrize("task", each(tasks.touch, tasks.atouch))
def test_a_job_that_was_reserved_and_lost_before_it_began_does_not_begin(crew, task):
    job = crew.enqueue(task)
    stale = stopped(crew.start(failpoints="worker.taken=stop"))
    crew.start()
    crew.ended(job)
    stale.send(signal.SIGCONT)
    stale.line(f"{TOO_LATE}|is lost|dropped with its lost lease")
    crew.dismiss(stale)
    assert [line.fence for line in crew.history.lines("START")] == [2]
    assert counts(job) == ("done", 2, 0, 1)
    crew.finish()


@but_mariadb
@pytest.mark.parametrize("task", each(tasks.hold, tasks.ahold, tasks.hold_apart))
def test_a_handler_whose_worker_was_stopped_past_the_lease_is_made_to_stop(crew, task):
    job = crew.enqueue(task, str(crew.go))
    stale = crew.start()
    crew.signed("START")
    freeze(stale)
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


@pytest.mark.parametrize("task", each(tasks.hold, tasks.ahold, tasks.hold_apart))
def test_a_worker_stopped_for_less_than_its_lease_loses_nothing(crew, task):
    job = crew.enqueue(task, str(crew.go))
    worker = crew.start(lease=6)
    crew.signed("START")
    crew.start(lease=6).ready()
    freeze_for(worker, 2.5)
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 1, 0, 0)
    crew.finish()


# -- poison --------------------------------------------------------------------------------------


def bystanders(crew):
    return [crew.enqueue(tasks.hold, str(crew.go)) for _ in range(3)]


@pytest.mark.parametrize(
    "how", ["kill", pytest.param("exit", marks=slow), pytest.param("segfault", marks=slow)]
)
def test_a_poisonous_job_is_buried_and_its_neighbours_are_done(crew, how):
    others = bystanders(crew)
    poison = crew.enqueue(tasks.poison, how, company=3)
    assert crew.start().exit_code() != 0
    crew.open()
    crew.start()
    crew.ended(poison, *others)
    assert counts(poison) == ("dead", 3, 2, 1)
    assert DeadLetter.objects.get().reason == "exhausted"
    assert {attempt.category for attempt in Attempt.objects.filter(job=poison.id)} == {"system"}
    assert {counts(job) for job in others} == {("done", 2, 0, 1)}
    crew.finish()


@but_mariadb
def test_a_supervisor_survives_a_poisonous_job(crew):
    others = bystanders(crew)
    poison = crew.enqueue(tasks.poison, "segfault", company=1)
    supervisor = crew.start("--processes", "2", lease=30)
    supervisor.line("died: killed by SIGSEGV")
    crew.open()
    crew.ended(poison, *others)
    assert counts(poison) == ("dead", 3, 2, 1)
    assert {counts(job)[0] for job in others} == {"done"}
    assert {counts(job)[2:] for job in others} <= {(0, 0), (0, 1)}
    assert len(supervisor.lines("died")) == 1
    crew.finish()


@but_mariadb
def test_a_poisonous_coroutine_is_found_out_too(crew):
    poison = crew.enqueue(tasks.apoison, "exit")
    assert crew.start().exit_code() == 3
    crew.start()
    crew.ended(poison)
    assert counts(poison) == ("dead", 3, 2, 1)
    crew.finish()


@but_mariadb
def test_an_isolated_poisonous_job_hurts_nobody(crew):
    others = bystanders(crew)
    poisons = [crew.enqueue(tasks.poison_apart, how) for how in ("exit", "kill", "segfault")]
    worker = crew.start(threads=8)
    crew.ended(*poisons)
    crew.open()
    crew.ended(*others)
    assert {counts(job) for job in poisons} == {("dead", 2, 2, 0)}
    codes = Job.objects.filter(state="dead").values_list("failure_code", flat=True)
    assert sorted(codes) == ["exit:3", "signal:SIGKILL", "signal:SIGSEGV"]
    assert {counts(job) for job in others} == {("done", 1, 0, 0)}
    assert worker.alive
    crew.finish()


@but_mariadb
def test_a_job_that_takes_its_worker_down_even_from_quarantine_is_buried_by_its_losses(crew):
    poison = crew.enqueue(tasks.poison, "everything")
    supervisor = crew.start("--processes", "2", lease=30)
    crew.ended(poison)
    assert counts(poison) == ("dead", 3, 0, 3)
    assert DeadLetter.objects.get().reason == "lease_lost"
    assert len(supervisor.lines("died: killed by SIGKILL")) == 3
    crew.finish()


# -- endless loops -------------------------------------------------------------------------------


def test_an_endless_loop_ends_at_its_timeout_in_each_pool(crew):
    jobs = [crew.enqueue(task) for task in (tasks.spin, tasks.aspin, tasks.spin_apart)]
    crew.start(threads=2)
    crew.ended(*jobs)
    assert {counts(job) for job in jobs} == {("dead", 1, 1, 0)}
    assert set(Attempt.objects.values_list("category", flat=True)) == {"timeout"}
    after = [crew.enqueue(task) for task in (tasks.touch, tasks.atouch, tasks.touch_apart)]
    crew.ended(*after)
    assert Worker.objects.count() == 1
    crew.finish()


@but_mariadb
@pytest.mark.parametrize("task", each(tasks.ablock, tasks.ablock_in_c))
def test_a_coroutine_that_lets_no_other_run_ends_at_its_timeout(crew, task):
    """Its event loop is left behind, and a new process goes on with what waited for it."""
    waiting = crew.enqueue(tasks.ahold, str(crew.go))
    worker = crew.start(threads=1)
    crew.signed("START", job=waiting)
    job = crew.enqueue(task)
    crew.signed("START", job=job)
    others = [crew.enqueue(each) for each in (tasks.touch, tasks.atouch)]
    worker.ready(times=2)
    crew.open()
    crew.ended(job, waiting, *others)
    assert counts(job) == ("dead", 1, 1, 0)
    assert Attempt.objects.get(job=job.id).category == "timeout"
    assert {counts(other)[0] for other in (waiting, *others)} == {"done"}
    assert {counts(other)[2:] for other in (waiting, *others)} == {(0, 0)}
    assert worker.lines("its event loop is left behind")
    crew.finish()


@but_mariadb
@slow
def test_whoever_blocks_the_others_is_to_blame_and_not_who_waits(crew):
    """The one that blocks has all the time in the world; another's time is over."""
    innocent = crew.enqueue(tasks.aspin_once.using(timeout=2))
    worker = crew.start(threads=1)
    crew.signed("START", job=innocent)
    blocker = crew.enqueue(tasks.ablock.using(timeout=600))
    crew.signed("START", job=blocker)
    worker.ready(times=2)
    crew.open()
    crew.ended(innocent, blocker)
    assert counts(blocker) == ("dead", 1, 1, 0)
    assert counts(innocent) == ("done", 2, 0, 0)
    crew.finish()


# -- strange ends --------------------------------------------------------------------------------


def test_whatever_a_handler_raises_is_a_failure_of_its_job_and_of_nothing_else(crew):
    stumblers = (tasks.stumble, tasks.astumble, tasks.stumble_apart, tasks.astumble_aside)
    jobs = {(task.name, how): crew.enqueue(task, how) for task in stumblers for how in tasks.ENDS}
    worker = crew.start(expect_trouble=True)
    crew.ended(*jobs.values())
    after = [crew.enqueue(task) for task in (tasks.touch, tasks.atouch, tasks.touch_apart)]
    crew.ended(*after)
    assert {counts(job) for job in after} == {("done", 1, 0, 0)}
    ends = {name: counts(job) for name, job in jobs.items()}
    assert ends == dict.fromkeys(jobs, ("dead", 1, 1, 0))
    assert worker.alive
    assert Worker.objects.count() == 1
    crew.finish()


@but_mariadb
def test_a_backoff_that_raises_is_a_failure_in_each_pool(crew):
    jobs = [
        crew.enqueue(task)
        for task in (tasks.stumble_badly, tasks.astumble_badly, tasks.stumble_badly_apart)
    ]
    crew.start(expect_trouble=True, settings={"BACKOFF": tasks.SOON})
    crew.ended(*jobs)
    assert {counts(job) for job in jobs} == {("dead", 2, 2, 0)}
    crew.finish()


# -- the end of a process ------------------------------------------------------------------------


@but_mariadb
def test_nobody_gets_a_job_whose_handler_still_runs_in_a_worker_that_stops(crew):
    """The checker wants the last line of the first run before its release."""
    job = crew.enqueue(tasks.resist, str(crew.go))
    stubborn = crew.start("--grace", "0.1")
    crew.signed("START")
    crew.start()
    stubborn.send(signal.SIGTERM)
    assert stubborn.exit_code() == 0
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 0)
    crew.finish()


@but_mariadb
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
    twins = {crew.start("--name", "twin", threads=1, lease=3).pid for _ in range(2)}
    crew.signed("START", times=2)
    victim, survivor = (line.pid for line in crew.history.lines("START"))
    assert {victim, survivor} == twins
    kill(victim)
    crew.start("--name", "twin", threads=1, lease=3)
    crew.signed("START", times=3)
    crew.open()
    crew.ended(*jobs)
    assert sorted(counts(job) for job in jobs) == [("done", 1, 0, 0), ("done", 2, 0, 1)]
    crew.finish()
