"""A name that comes from the database is looked up, and nothing else."""

import sys

import pytest

from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.worker import executor

from .conftest import NOW, reservation


@pytest.mark.parametrize("name", ["this.c", "os.system", "this:c", "../this", "__import__('this')"])
def test_a_name_that_is_no_task_is_never_imported(name):
    sys.modules.pop("this", None)
    outcome = executor.prepare(reservation(task=name), NOW)
    assert (outcome.kind, outcome.missed) == (OutcomeKind.RELEASE, True)
    assert "this" not in sys.modules
