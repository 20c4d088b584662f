"""
During a deploy the code of yesterday runs on the schema of today.

Migrations come first, then the new processes, one after the other. So for each migration but the
first, the tree as it was before that migration is taken out of git, and its own code takes jobs the
whole way on the schema of now, and once more when the migration is undone. The other way round, new
code on an old schema, is promised to nobody: it would know columns that are not there.
"""

import io
import os
import subprocess
import sys
import tarfile

import pytest
from django.core.management import call_command
from django.db.migrations.loader import MigrationLoader

from taskharbor_django import operations
from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import DeadLetter, Job
from tests.process.harness import ROOT, database_url
from tests.servers.plugin import go_without

from .drivers import acks, hold, outcome, take
from .raw import NOW

APP, FOLDER = "taskharbor", "taskharbor_django/migrations"
THE_WHOLE_WAY = """
import django
django.setup()
from tests.storage.test_upgrade import go_the_whole_way
go_the_whole_way()
"""
NOTHING_YET = "there is one migration: nothing to upgrade from, and so nothing was tried"


def go_the_whole_way():
    """Enqueue, reserve, ack and fail, requeue what is dead, and end it."""
    driver = DatabaseDriver()
    done, dead = hold(driver, 2)
    assert driver.settle([*acks([done]), outcome(OutcomeKind.FAIL, dead)], now=NOW) == []
    assert operations.requeue([dead.job.id]).moved == 1
    (again,) = take(driver, now=driver.now())
    assert driver.settle(acks([again]), now=driver.now()) == []
    jobs = Job.objects.filter(pk__in=[done.job.id, dead.job.id])
    assert list(jobs.values_list("state", flat=True)) == ["done", "done"]
    assert not DeadLetter.objects.exclude(open_for=None).exists()


def go_with_the_code_of(tree):
    """Do the same in a process of its own, by the code and the tests of a tree."""
    environment = {"DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", THE_WHOLE_WAY],
        cwd=tree,
        env=os.environ | environment | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# -- migrations, and what was before them --------------------------------------------------------


def migrations():
    """The names of all migrations, in their order."""
    graph = MigrationLoader(None).graph
    (leaf,) = graph.leaf_nodes(APP)
    return [name for app, name in graph.forwards_plan(leaf) if app == APP]


def later():
    """The migrations but the first."""
    skip = pytest.mark.skip(reason=NOTHING_YET)
    return migrations()[1:] or [pytest.param(None, marks=skip, id="none")]


def git(*words):
    """What git answers; nothing where there is no repository, or not so much of it."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    return b"" if done.returncode else done.stdout


@pytest.fixture
def tree_before(migration, tmp_path):
    """The tree as it was before the commit that brought a migration, which may still be to come."""
    file = f"{FOLDER}/{migration}.py"
    commit = git("log", "--diff-filter=A", "--format=%H", "--", file).decode().split()
    archive = git("archive", f"{commit[-1]}^" if commit else "HEAD", "taskharbor_django", "tests")
    if not archive:
        go_without(f"git does not know here what was before {file}: nothing was tried")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tmp_path, filter="data")
    return tmp_path


# -- the tests -----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("migration", later())
def test_code_from_before_a_migration_runs_on_the_schema_of_now(tree_before):
    go_with_the_code_of(tree_before)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("migration", later())
def test_code_from_before_a_migration_runs_when_that_is_undone(migration, tree_before):
    """Jobs that the code of now has stored stay, and stand in nobody's way."""
    go_the_whole_way()
    names = migrations()
    call_command("migrate", APP, names[names.index(migration) - 1], verbosity=0)
    try:
        go_with_the_code_of(tree_before)
    finally:
        call_command("migrate", APP, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_the_way_that_other_code_has_to_go_is_one_that_the_code_of_now_goes():
    """Or the tests above could not tell an old version that fails from a test that does."""
    go_with_the_code_of(ROOT)
