"""A worker as a process: how soon it works, and how much memory it takes."""

import os
import subprocess
import sys
import time

import psutil

from .drains import load
from .ground import wait_for
from .measures import fact, limit, measure, ratio

DONE = "SELECT count(*) FROM taskharbor_job WHERE state = 'done'"


@measure(
    "From the start of runworker to its first job", of_check=ratio(most=1.5), seconds=fact("s")
)
def start_up(ground, sizes):
    from .tasks import noop

    checks, starts = [], []
    for _ in range(3):
        began = time.monotonic()
        ground.start("check").wait()
        checks.append(time.monotonic() - began)
        ground.clear()
        noop.enqueue(1)
        began = time.monotonic()
        with ground.worker(runs=1) as worker:
            starts.append(worker.reading().first - began)
    return {"of_check": sorted(starts)[1] / sorted(checks)[1], "seconds": sorted(starts)[1]}


@measure(
    "Memory of a worker over a million jobs",
    rounds=1,
    grown=limit("MB", most=5.0),
    of_a_shell=ratio(most=1.5),
    base=fact("MB"),
)
def memory(ground, sizes):
    from .tasks import noop

    ground.clear()
    shell = memory_of_a_shell(ground)
    with ground.worker() as worker:
        wait_for(lambda: ground.run("SELECT 1 FROM taskharbor_worker"))
        base = rss(worker.pid)
        early = late = 0
        for _ in range(10):
            load(noop, sizes.flood // 10)
            wait_for(lambda: ground.run(DONE)[0][0] == sizes.flood // 10, each=0.2)
            late = rss(worker.pid)
            early = early or late
            ground.run("DELETE FROM taskharbor_job")
            ground.run("VACUUM taskharbor_job")
    ground.clear()
    return {
        "grown": (late - early) / 2**20,
        "of_a_shell": base / shell,
        "base": base / 2**20,
    }


def rss(pid):
    return psutil.Process(pid).memory_info().rss


def memory_of_a_shell(ground):
    """What a Django process occupies that has set up and opened its database."""
    code = (
        "import django; django.setup()\n"
        "from django.db import connection; connection.ensure_connection()\n"
        "print('up', flush=True); input()"
    )
    environment = {
        "DATABASE_URL": ground.url,
        "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings",
    }
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment,
    ) as process:
        process.stdout.readline()
        occupied = rss(process.pid)
        process.stdin.close()
        process.kill()
    return occupied
