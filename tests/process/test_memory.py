"""`--max-memory` with tasks that keep what they take: a new process goes on."""

import signal

from taskharbor_django.models import Job, Lease, Worker
from tests.testapp.process_tasks import grow

from .harness import pids_in, wait_until

# An idle worker takes about 60 MB: the second job is over the limit.
LIMIT, EACH, JOBS = "160", 60, 6


def all_done():
    return Job.objects.filter(state="done").count() == JOBS


def assert_unharmed():
    counted = set(Job.objects.values_list("executions", "attempts", "lease_losses"))
    assert counted == {(1, 0, 0)}
    assert not Lease.objects.exists()


def test_a_process_that_grows_is_replaced_by_its_supervisor(processes, files):
    said, _ = files
    for _ in range(JOBS):
        grow.enqueue(str(said), EACH)
    crew = processes.start("--processes", "2", "--threads", "1", "--max-memory", LIMIT)
    wait_until(all_done, what="all jobs done")
    crew.line(r"stops: memory: [\d,]+ MB \(--max-memory\)")
    crew.line("makes way for a new one")
    assert len(pids_in(said)) == JOBS
    assert len(set(pids_in(said))) > 2
    assert crew.stop(signal.SIGTERM)[0] == 0
    assert not crew.lines("died")
    assert_unharmed()


def test_a_single_process_that_grows_starts_its_command_anew(processes, files):
    said, _ = files
    for _ in range(JOBS):
        grow.enqueue(str(said), EACH)
    worker = processes.start("--threads", "1", "--max-memory", LIMIT)
    wait_until(all_done, what="all jobs done")
    worker.ready(times=2)
    assert worker.lines(r"stops: memory: [\d,]+ MB \(--max-memory\)")
    assert set(pids_in(said)) == {worker.pid}
    assert len(pids_in(said)) == JOBS
    # One process could not have held it all.
    assert Worker.objects.count() >= 2
    assert worker.stop()[0] == 0
    assert_unharmed()
