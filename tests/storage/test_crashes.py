"""A verb that is split between any two of its steps: nothing half done, nothing lost."""

import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

import taskharbor_django
from taskharbor_django import failpoints
from taskharbor_django.failpoints import FailpointReached
from taskharbor_django.lifecycle import STATE_RULES, JobState
from taskharbor_django.models import DeadLetter, Job, Lease

from .crashes import PLACES, Scene
from .drivers import everything
from .sessions import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)

PACKAGE = Path(taskharbor_django.__file__).parent
PROJECT = PACKAGE.parent

SCRIPT = """
import sys, django; django.setup()
from tests.storage.crashes import play; play(sys.argv[1], sys.stdin.buffer)
"""


def places(*names):
    """Each place with each form of the driver that passes it, on the databases that have it."""
    return [
        pytest.param(name, form, id=f"{name}-{form}", marks=marks(form))
        for name in names or PLACES
        for form in PLACES[name][1]
    ]


def marks(form):
    return [pytest.mark.postgresql] if form == "set-based" else []


def crash():
    raise FailpointReached


def assert_legal():
    """Every invariant that is about more than one row; the others are constraints."""
    for job in Job.objects.all():
        rule = STATE_RULES[JobState(job.state)]
        assert all(getattr(job, column) is None for column in rule.empty)
        assert all(getattr(job, column) is not None for column in rule.filled)
        letters = DeadLetter.objects.filter(open_for=job.pk).count()
        assert letters == (1 if job.state == JobState.DEAD else 0)
    held = Job.objects.inflight().values_list("lease", flat=True)
    assert set(held) <= set(Lease.objects.values_list("pk", flat=True))


class TestARaise:
    @pytest.mark.parametrize(("name", "form"), places())
    def test_all_or_nothing_and_then_again(self, name, form):
        verb = PLACES[name][0]()
        driver = Scene(form).driver
        facts = verb.prepare(driver)
        before = everything()
        with failpoints.armed(name, crash), pytest.raises(FailpointReached):
            verb.act(driver, facts)
        assert (everything() == before) is not verb.survives
        verb.recover(driver, facts)
        assert_legal()

    def test_every_place_has_a_scene(self):
        sources = [*PACKAGE.glob("drivers/*.py"), PACKAGE / "operations" / "cancel.py"]
        reached = {
            name for file in sources for name in re.findall(r'reach\("(.+?)"\)', file.read_text())
        }
        assert reached == set(PLACES)


class TestAKill:
    @pytest.mark.parametrize(
        ("name", "form"),
        places(
            "enqueue.keys_taken",
            "claim.leased",
            "claim.done",
            "settle.acked",
            "settle.moved",
            "reclaim.leases_locked",
            "reclaim.jobs_moved",
        ),
    )
    def test_a_killed_process_leaves_a_legal_state_and_the_job_to_others(self, name, form):
        verb = PLACES[name][0]()
        driver = Scene(form).driver
        facts = verb.prepare(driver)
        before = everything()
        killed = subprocess.run(
            [sys.executable, "-c", SCRIPT, name],
            input=pickle.dumps(Scene(form, facts)),
            env={**os.environ, "TASKHARBOR_FAILPOINTS": f"{name}=kill", **address()},
            cwd=PROJECT,
            timeout=PATIENCE * 3,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        until(nobody_else)
        assert (everything() == before) is not verb.survives
        verb.recover(driver, facts)
        assert_legal()


def address():
    """Where a process of its own finds the database of this test."""
    given = connection.settings_dict
    scheme = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite"}[connection.vendor]
    login = f"{given['USER']}:{given['PASSWORD']}@{given['HOST']}:{given['PORT']}"
    where = "" if scheme == "sqlite" else login
    return {
        "DATABASE_URL": f"{scheme}://{where}/{given['NAME']}",
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }


def nobody_else():
    """Whether the server has noticed that the killed process is gone."""
    sessions = {
        # A pooler keeps sessions that are idle.
        "postgresql": "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend'"
        " AND state <> 'idle'",
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE()",
    }
    if connection.vendor not in sessions:
        return True
    with connection.cursor() as cursor:
        cursor.execute(sessions[connection.vendor])
        return cursor.fetchone()[0] == 1
