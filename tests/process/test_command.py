"""`manage.py taskharbor` as probes and scripts call it: what the process answers and exits with."""

import json
import os
import signal
import subprocess
import sys

from taskharbor_django.models import Job
from tests.testapp.tasks import add

from .harness import PATIENCE, ROOT, database_url


def answer(processes, *arguments):
    process = processes.start(*arguments, command="taskharbor")
    return process.exit_code(), process.output


def test_a_probe_hears_by_the_exit_code_whether_all_is_well(processes):
    code, output = answer(processes, "health", "--json")
    assert code == 1
    assert {"check": "workers", "value": 0, "limit": 1, "ok": False} in json.loads(output)["rows"]
    worker = processes.start().ready()
    assert answer(processes, "health")[0] == 0
    assert worker.stop()[0] == 0


def test_a_script_enqueues_and_reads_what_became_of_it(processes):
    code, output = answer(processes, "enqueue", add.name, "--args", "[1, 2]", "--json")
    job = json.loads(output)["id"]
    assert code == 0
    assert processes.start("--burst").exit_code() == 0
    code, output = answer(processes, "inspect", job, "--json")
    facts = json.loads(output)
    assert (code, facts["state"], facts["result"]) == (0, "done", 3)


def test_what_cannot_be_done_exits_with_1_and_what_cannot_be_meant_with_2(processes):
    assert answer(processes, "enqueue", "no.such.task")[0] == 1
    assert answer(processes, "cancel")[0] == 2
    assert answer(processes, "list", "--state", "lost")[0] == 2
    assert answer(processes, "frobnicate")[0] == 2
    assert not Job.objects.exists()


def test_who_stops_reading_gets_no_traceback(transactional_db):
    reader, writer = os.pipe()
    os.close(reader)
    settings = {"DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    ended = subprocess.run(
        [sys.executable, "-m", "django", "taskharbor", "list", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | settings,
        timeout=PATIENCE,
        check=False,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")
