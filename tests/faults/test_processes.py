"""Workers that are killed, stopped and poisoned while they work: FAULTS.md, "Processes"."""

import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor_django import cancel
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Worker
from taskharbor_django.operations.storage import driver_for
from tests.process.harness import kill, wait_until
from tests.testapp import fault_tasks as tasks
from tests.testapp.models import Ledger, Trail

from .crew import LEASE, counts, everything, freeze, freeze_for, gone, in_time, stopped
from .history import SLACK, violations
from .stale import TOLD

slow = pytest.mark.slow


def but_mariadb(test):
    """What MariaDB does differently is in tests/storage; here it runs the basics."""
    return pytest.mark.postgresql(pytest.mark.sqlite(test))


# Where several workers are hurt, each has a queue of its own and one other takes over from all.


# -- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [tasks.hold, pytest.param(tasks.ahold, marks=slow)])
def test_a_worker_killed_in_a_job_costs_one_lease_and_another_takes_over(
    crew, task, record_property
):
    job = crew.enqueue(task, str(crew.go))
    victim = crew.start()
    crew.signed("START")
    crew.start().ready()
    killed = time.time()
    kill(victim.pid)
    record_property("reserved_after_kill", crew.taken_over(job, since=killed))
    began = crew.signed("START", times=2).at - killed
    record_property("began_after_kill", round(began, 2))
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    crew.finish()


@slow
def test_a_job_whose_lease_row_is_gone_is_taken_back_within_another_minute(crew, record_property):
    """As after a restore, or a hand in the table: there is no row left that could expire."""
    job = crew.enqueue(tasks.hold, str(crew.go))
    victim = crew.start()
    crew.signed("START")
    crew.start().ready()
    kill(victim.pid)
    assert victim.exit_code() == -signal.SIGKILL  # it does not write any more
    assert Lease.objects.all().delete()[0] == 1
    took = crew.taken_over(job, since=time.time(), lease=60 + LEASE)
    record_property("reserved_after", took)
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    crew.dismiss(*crew.working)
    wait_until(lambda: not crew.history.processes(), what="the end of all processes")
    # Of the lease nobody can say any more that it was over: the checker misses that, and only that.
    (found,) = violations(crew.history.facts())
    assert found.startswith(f"job {job.id}: the lease 1 was lost at ")
    assert found.endswith(", held until None")


@but_mariadb
def test_a_worker_killed_with_an_isolated_child_costs_nothing_for_the_child_gives_back(
    crew, record_property
):
    job = crew.enqueue(tasks.hold_apart, str(crew.go))
    victim = crew.start(lease=30)
    crew.signed("START")
    killed = time.time()
    kill(victim.pid)
    wait_until(lambda: counts(job) == ("ready", 1, 0, 0), what="the release")
    record_property("given_back_after", in_time([time.time()], killed))
    wait_until(lambda: not crew.history.processes(), what="the end of child and guard")
    crew.open()
    crew.start()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 0)
    wait_until(lambda: not Lease.objects.exists(), what="the end of the dead worker's lease")
    crew.finish()


# where its worker is killed, the task -> how often the handler has then come to its end
BEFORE_THE_ACK = {
    # reserved, and not one line of the handler was run
    ("worker.taken", tasks.touch): 0,
    # the effect is there, its ack is not even made
    ("executor.returned", tasks.touch): 1,
    ("executor.returned", tasks.atouch): 1,
    # the ack is made and not sent
    ("completer.settling", tasks.touch): 1,
    # handler and ack are in one transaction, which is never committed
    ("atomic.called", tasks.book): 1,
    ("atomic.settled", tasks.book): 1,
}


def kill_each(crew, cases):
    """Let a worker of its own be killed for each case; return the jobs that they had."""
    jobs = {case: crew.enqueue(case[1], queue=queue_of(case)) for case in cases}
    victims = [
        crew.start(queue=queue_of(case), failpoints=f"{case[0]}=kill", threads=1) for case in cases
    ]
    for victim in victims:
        gone(victim)
    return jobs


def queue_of(case):
    return f"{case[0]}-{case[1].name.rpartition('.')[2]}"


@pytest.mark.quick
def test_workers_killed_before_the_ack_let_others_run_the_job_again(crew, record_property):
    jobs = kill_each(crew, BEFORE_THE_ACK)
    ends = {case: len(crew.history.lines("END", job.id)) for case, job in jobs.items()}
    assert ends == BEFORE_THE_ACK
    assert not Job.objects.filter(state="done").exists()
    crew.start(threads=len(jobs)).ready()
    record_property("reserved_after", crew.taken_over(*jobs.values(), since=time.time()))
    crew.ended(*jobs.values())
    assert {case: (counts(job), job.result) for case, job in jobs.items()} == dict.fromkeys(
        jobs, (("done", 2, 0, 1), 2)
    )
    ends = {case: len(crew.history.lines("END", job.id)) - 1 for case, job in jobs.items()}
    assert ends == BEFORE_THE_ACK
    crew.finish()


def test_the_rows_of_an_atomic_task_are_there_once_however_often_it_ran(crew, record_property):
    jobs = kill_each(crew, [case for case in BEFORE_THE_ACK if case[1] is tasks.book])
    assert Trail.objects.count() == 0
    crew.start().ready()
    record_property("reserved_after", crew.taken_over(*jobs.values(), since=time.time()))
    crew.ended(*jobs.values())
    assert len(crew.history.lines("END")) == 4
    for job in jobs.values():
        rows = Trail.objects.filter(job=job.id).order_by("pk").values_list("mark", "fence")
        assert list(rows) == [("START", 2), ("END", 2)]
    crew.finish()


def test_a_worker_killed_after_the_ack_was_committed_costs_nothing(crew):
    jobs = kill_each(crew, [("completer.settled", task) for task in (tasks.touch, tasks.atouch)])
    assert {counts(job) for job in jobs.values()} == {("done", 1, 0, 0)}
    crew.start()
    wait_until(lambda: not Lease.objects.exists(), what="the end of the dead workers' leases")
    assert {counts(job) for job in jobs.values()} == {("done", 1, 0, 0)}
    assert len(crew.history.lines("START")) == 2
    crew.finish()


# -- SIGSTOP past the lease ----------------------------------------------------------------------

SETTLING = "completer.settling"

# what the first run does -> where its worker is stopped with it; `fail` and `exhaust` bury the job,
# by what was raised and by its last attempt; `snooze` gives it back of its own will, `release`
# because its worker ends
STALE = {
    "ack": SETTLING,
    "retry": SETTLING,
    "fail": SETTLING,
    "exhaust": SETTLING,
    "snooze": SETTLING,
    "release": SETTLING,
    "cancel": SETTLING,
    "heartbeat": "heartbeat.renewing",
    "progress": "reports.writing",
    "checkpoint": "reports.checkpointing",
}
TOO_LATE = "came too late"
DROPPED = "is lost|dropped with its lost lease"
# why the database refuses it while another worker runs the job, and when the job has ended
WHILE_IT_RUNS = dict.fromkeys(STALE, "LeaseMismatch") | {
    "heartbeat": "NotRenewed",
    "progress": "NotWritten",
}
WHEN_IT_HAS_ENDED = dict.fromkeys(STALE, "JobNotInflight") | {
    "heartbeat": "NotRenewed",
    "progress": "NotWritten",
    "checkpoint": "LeaseMismatch",
}
# ... and when nobody has the job yet, but its lease is over
WHEN_IT_IS_FREE = dict.fromkeys(STALE, "LeaseExpired") | {"heartbeat": "NotRenewed"}


def stop_each(crew, *verbs):
    """
    Stop a worker for each right before it writes.

    That write is the first thing that it does once it may go on; see tests/faults/stale.py.
    """
    jobs = {verb: crew.enqueue(outrun_by(verb), verb, str(crew.go), queue=verb) for verb in verbs}
    stale = {verb: start_stale(crew, verb) for verb in verbs}
    for verb, job in jobs.items():
        crew.signed("START", job=job)
        if verb == "cancel":
            assert cancel([job.id]).asked == 1
        if verb == "release":
            stale[verb].send(signal.SIGTERM)
    for worker in stale.values():
        assert stopped(worker).alive, worker.output
    return jobs, stale


def outrun(crew, *verbs):
    """The same, and let another have their jobs in time; it loses none, however slow all is."""
    jobs, stale = stop_each(crew, *verbs)
    crew.start(threads=len(verbs), lease=30).ready()
    lost = [job for verb, job in jobs.items() if verb != "cancel"]  # that one is not run again
    return jobs, stale, crew.taken_over(*lost, since=time.time())


def outrun_by(verb):
    return tasks.outrun.using(max_attempts=1) if verb == "exhaust" else tasks.outrun


def start_stale(crew, verb):
    grace = ("--grace", "0.1") if verb == "release" else ()
    return crew.start(*grace, queue=verb, threads=1, failpoints=f"{STALE[verb]}=stop")


def refused(worker):
    """Wait until what a stopped worker was about to write was sent, and say why it was refused."""
    told = worker.line(rf"{TOLD}: (\w+) after (\d+) statements")
    assert int(told[2]) > 0, worker.output
    return told[1]


def counted(worker):
    """How many outcomes came too late, as a worker says that has stopped."""
    return int(worker.line(r"stopped; .*, too late: (\d+)")[1])


def let_go_on(crew, stale, expected, heard=TOO_LATE):
    """Let the stopped ones try what they were about to, be refused, say and count that, and end."""
    for worker in stale.values():
        worker.send(signal.SIGCONT)
    assert {verb: refused(worker) for verb, worker in stale.items()} == {
        verb: expected[verb] for verb in stale
    }
    for verb, worker in stale.items():
        worker.line(heard if STALE[verb] == SETTLING else "is lost")
    crew.dismiss(*(worker for verb, worker in stale.items() if verb != "release"))
    if "release" in stale:  # it was told before
        assert stale["release"].exit_code() == 0, stale["release"].output
    # What could not be renewed, told or saved is the end of its run, whose outcome is refused, too.
    assert {verb: counted(worker) for verb, worker in stale.items()} == dict.fromkeys(stale, 1)


@pytest.mark.quick
def test_what_stopped_workers_settle_after_others_have_ended_their_jobs_changes_nothing(
    crew, record_property
):
    """Nor what they renew, tell or save."""
    crew.open()
    jobs, stale, took = outrun(crew, *STALE)
    record_property("reserved_after", took)
    crew.ended(*jobs.values())
    before = {verb: everything(job) for verb, job in jobs.items()}
    let_go_on(crew, stale, WHEN_IT_HAS_ENDED)
    assert {verb: everything(job) for verb, job in jobs.items()} == before
    # What is taken back although somebody wants it cancelled is not run again.
    expected = dict.fromkeys(jobs, ("done", 2, 0, 1)) | {"cancel": ("cancelled", 1, 0, 0)}
    assert {verb: counts(job) for verb, job in jobs.items()} == expected
    assert {job.result for verb, job in jobs.items() if verb != "cancel"} == {"second"}
    assert not crew.history.lines("SAVED")
    crew.finish()


def test_what_stopped_workers_write_while_others_run_their_jobs_changes_nothing(
    crew, record_property
):
    verbs = [verb for verb in STALE if verb != "cancel"]
    jobs, stale, took = outrun(crew, *verbs)
    record_property("reserved_after", took)
    for job in jobs.values():
        crew.signed("READY", job=job)
        wait_until(lambda job=job: job.refresh().progress == 77, what="its progress")
    before = {verb: everything(job) for verb, job in jobs.items()}
    let_go_on(crew, stale, WHILE_IT_RUNS)
    assert {verb: everything(job) for verb, job in jobs.items()} == before
    crew.open()
    crew.ended(*jobs.values())
    assert {verb: counts(job) for verb, job in jobs.items()} == dict.fromkeys(
        verbs, ("done", 2, 0, 1)
    )
    assert {job.result for job in jobs.values()} == {"second"}
    assert set(Job.objects.values_list("progress_message", flat=True)) == {"second"}
    assert not crew.history.lines("SAVED")
    crew.finish()


def test_what_stopped_workers_write_past_the_lease_is_refused_before_anybody_has_the_job(
    crew, record_property
):
    """A lease that is over is over, for a heartbeat too, although its row is still there."""
    jobs, stale = stop_each(crew, "ack", "retry", "fail", "snooze", "release", "heartbeat")
    wait_until(lambda: not leases_that_may_stand().exists(), what="the end of all leases")
    assert Lease.objects.count() == len(jobs)
    let_go_on(crew, stale, WHEN_IT_IS_FREE, heard=DROPPED)  # it tries no longer than it holds
    assert {counts(job) for job in jobs.values()} == {("inflight", 1, 0, 0)}
    crew.open()
    crew.start(threads=len(jobs), lease=30).ready()
    record_property("reserved_after", crew.taken_over(*jobs.values(), since=time.time()))
    crew.ended(*jobs.values())
    assert {verb: counts(job) for verb, job in jobs.items()} == dict.fromkeys(
        jobs, ("done", 2, 0, 1)
    )
    assert {job.result for job in jobs.values()} == {"second"}
    crew.finish()


def leases_that_may_stand():
    """Also by the clock of a worker, which may be a little behind."""
    now = driver_for("default").now() - timedelta(seconds=SLACK)
    return Lease.objects.filter(expires_at__gt=now)


@pytest.mark.postgresql  # on SQLite whoever stops in a transaction stops everybody
@pytest.mark.mariadb
def test_what_a_stopped_worker_did_in_an_atomic_task_is_undone_when_its_ack_comes_too_late(
    crew, record_property
):
    job = crew.enqueue(tasks.book, queue="atomic")
    stale = crew.start(queue="atomic", threads=1, failpoints="atomic.called=stop")
    stopped(stale)
    crew.start(lease=30).ready()
    record_property("reserved_after", crew.taken_over(job, since=time.time()))
    crew.ended(job)
    before = everything(job)
    stale.send(signal.SIGCONT)
    assert refused(stale) == "JobNotInflight"
    crew.dismiss(stale)
    assert counted(stale) == 1
    assert everything(job) == before
    assert counts(job) == ("done", 2, 0, 1)
    assert set(Trail.objects.values_list("fence", flat=True)) == {2}
    crew.finish()


@but_mariadb
def test_a_job_that_was_reserved_and_lost_before_it_began_does_not_begin(crew):
    jobs = {task.name: crew.enqueue(task, queue=task.name) for task in (tasks.touch, tasks.atouch)}
    stale = [crew.start(queue=name, failpoints="worker.taken=stop") for name in jobs]
    for worker in stale:
        stopped(worker)
    crew.start()
    crew.ended(*jobs.values())
    for worker in stale:
        worker.send(signal.SIGCONT)
        worker.line(f"{TOO_LATE}|{DROPPED}")
    crew.dismiss(*stale)
    assert [counted(worker) for worker in stale] == [1, 1]
    assert [line.fence for line in crew.history.lines("START")] == [2, 2]
    assert {counts(job) for job in jobs.values()} == {("done", 2, 0, 1)}
    crew.finish()


@but_mariadb
def test_a_job_whose_lease_is_lost_while_its_child_starts_does_not_begin(crew):
    job = crew.enqueue(tasks.touch_apart, queue="apart")
    door = crew.go.with_name("door")
    stale = crew.start(queue="apart", TASKHARBOR_DOOR=str(door))
    knock = door.with_suffix(".knocked")
    wait_until(knock.exists, what="the child")
    freeze(stale)
    crew.start()
    crew.ended(job)
    before = everything(job)
    door.touch()
    threads = Path(f"/proc/{knock.read_text()}/task")
    wait_until(lambda: len([*threads.iterdir()]) > 1, what="a child that is ready and listens")
    stale.send(signal.SIGCONT)
    stale.line(f"{TOO_LATE}|{DROPPED}")
    crew.dismiss(stale)
    assert [line.fence for line in crew.history.lines("START")] == [2]
    assert everything(job) == before
    assert counts(job) == ("done", 2, 0, 1)
    crew.finish()


HOLDERS = (tasks.hold, tasks.ahold, tasks.hold_apart)


def hold_each(crew):
    """A job that holds in each pool, all in one worker; returns when they run."""
    jobs = [crew.enqueue(task, str(crew.go)) for task in HOLDERS]
    worker = crew.start(lease=6)
    crew.signed("START", times=3)
    return jobs, worker


@but_mariadb
def test_handlers_whose_worker_was_stopped_past_the_lease_are_made_to_stop(crew, record_property):
    jobs, stale = hold_each(crew)
    crew.start().ready()
    freeze(stale)
    record_property("reserved_after_stop", crew.taken_over(*jobs, since=time.time(), lease=6))
    crew.signed("START", times=6)
    stale.send(signal.SIGCONT)
    stale.line("is lost")
    crew.dismiss(stale)  # with a grace of 30 s: it has nothing left to wait for
    assert counted(stale) == len(jobs)
    crew.open()
    crew.ended(*jobs)
    assert [line.fence for line in crew.history.lines("END")] == [2, 2, 2]
    assert {counts(job) for job in jobs} == {("done", 2, 0, 1)}
    crew.finish()


def test_a_worker_stopped_for_less_than_its_lease_loses_nothing(crew):
    jobs, worker = hold_each(crew)
    crew.start().ready()
    freeze_for(worker, 2.5)
    crew.open()
    crew.ended(*jobs)
    assert {counts(job) for job in jobs} == {("done", 1, 0, 0)}
    crew.finish()


# -- poison --------------------------------------------------------------------------------------


def bystanders(crew, queue="default"):
    return [crew.enqueue(tasks.hold, str(crew.go), queue=queue) for _ in range(3)]


def test_a_poisonous_job_is_buried_and_its_neighbours_are_done(crew):
    hows = ("kill", "exit", "segfault")
    others = [job for how in hows for job in bystanders(crew, how)]
    poisons = [crew.enqueue(tasks.poison, how, company=3, queue=how) for how in hows]
    codes = dict(zip(hows, (-signal.SIGKILL, 3, -signal.SIGSEGV), strict=True))
    victims = [crew.start(queue=how, ends={code}) for how, code in codes.items()]
    assert [victim.exit_code() for victim in victims] == list(codes.values())
    crew.open()
    crew.start()
    crew.ended(*poisons, *others)
    assert {counts(job) for job in poisons} == {("dead", 3, 2, 1)}
    assert set(DeadLetter.objects.values_list("reason", flat=True)) == {"exhausted"}
    assert set(Attempt.objects.values_list("category", flat=True)) == {"system"}
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
    assert len(supervisor.lines(r"process \d+ .* died")) == 1
    crew.finish()


@but_mariadb
def test_poison_in_other_pools_is_found_out_too(crew):
    """A coroutine takes its worker with it, an isolated handler hurts nobody else."""
    coroutine = crew.enqueue(tasks.apoison, "exit", queue="async")
    assert crew.start(queue="async", ends={3}).exit_code() == 3
    others = bystanders(crew)
    poisons = [crew.enqueue(tasks.poison_apart, how) for how in ("exit", "kill", "segfault")]
    worker = crew.start(threads=8)
    crew.ended(coroutine, *poisons)
    crew.open()
    crew.ended(*others)
    assert counts(coroutine) == ("dead", 3, 2, 1)
    assert {counts(job) for job in poisons} == {("dead", 2, 2, 0)}
    codes = [job.refresh().failure_code for job in (*poisons, coroutine)]
    assert codes == ["exit:3", "signal:SIGKILL", "signal:SIGSEGV", "exit:3"]
    assert {counts(job) for job in others} == {("done", 1, 0, 0)}
    assert worker.alive
    crew.finish()


@but_mariadb
def test_a_job_that_takes_its_worker_down_even_from_quarantine_is_buried_by_its_losses(crew):
    poison = crew.enqueue(tasks.poison, "everything")
    supervisor = crew.start("--processes", "2", lease=30)
    crew.ended(poison, timeout=180)  # three processes, and a child in two of them, have to start
    assert counts(poison) == ("dead", 3, 0, 3)
    assert DeadLetter.objects.get().reason == "lease_lost"
    assert len(supervisor.lines("died: killed by SIGKILL")) == 3
    crew.finish()


# -- endless loops -------------------------------------------------------------------------------


def test_an_endless_loop_ends_at_its_timeout_in_each_pool(crew, record_property):
    jobs = [crew.enqueue(task) for task in (tasks.spin, tasks.aspin, tasks.spin_apart)]
    crew.start(threads=2)
    crew.ended(*jobs)
    assert {counts(job) for job in jobs} == {("dead", 1, 1, 0)}
    assert set(Attempt.objects.values_list("category", flat=True)) == {"timeout"}
    began = [crew.signed("START", job=job).at for job in jobs]
    ends = [job.refresh().finished_at.timestamp() for job in jobs]
    timeout = tasks.short["timeout"]
    took = [in_time([end], at, lease=timeout) for at, end in zip(began, ends, strict=True)]
    record_property("ended_after", took)
    after = [crew.enqueue(task) for task in (tasks.touch, tasks.atouch, tasks.touch_apart)]
    crew.ended(*after)
    assert Worker.objects.count() == 1
    crew.finish()


@but_mariadb
@pytest.mark.parametrize("task", [tasks.ablock, pytest.param(tasks.ablock_in_c, marks=slow)])
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


@but_mariadb
def test_a_transaction_that_a_coroutine_left_open_stops_nobody_and_is_undone(crew):
    leak = crew.enqueue(tasks.aleak)
    crew.start(threads=1)
    crew.ended(leak)
    crew.ended(crew.enqueue(tasks.touch), timeout=15)  # SQLite would wait 30 s for the lock
    assert not Ledger.objects.exists()
    crew.finish()


# -- the end of a process ------------------------------------------------------------------------


def test_a_worker_told_to_stop_gives_back_what_it_does_not_finish(crew):
    """Neither an attempt nor a loss is charged, and nobody has to wait for a lease to expire."""
    jobs = [crew.enqueue(task, str(crew.go)) for task in HOLDERS]
    worker = crew.start("--grace", "0.1", lease=60)
    crew.signed("START", times=len(jobs))
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0, worker.output
    assert {counts(job) for job in jobs} == {("ready", 1, 0, 0)}
    assert not Lease.objects.exists()
    crew.open()
    crew.start()
    crew.ended(*jobs)
    assert {counts(job) for job in jobs} == {("done", 2, 0, 0)}
    crew.finish()


def test_a_worker_told_to_stop_twice_leaves_its_job_to_another_in_time(crew, record_property):
    """The second time it gives nothing back: it is as if it had been killed."""
    job = crew.enqueue(tasks.hold, str(crew.go))
    hasty = crew.start("--grace", "60", ends={128 + signal.SIGTERM})
    crew.signed("START")
    crew.start().ready()
    hasty.send(signal.SIGTERM)
    hasty.line("stops: SIGTERM")
    told_again = time.time()
    hasty.send(signal.SIGTERM)
    assert hasty.exit_code() == 128 + signal.SIGTERM
    record_property("reserved_after", crew.taken_over(job, since=told_again))
    crew.open()
    crew.ended(job)
    assert counts(job) == ("done", 2, 0, 1)
    crew.finish()


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
    worker = crew.start("--max-memory", "140", threads=2, lease=15.0)
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
