"""The package as a stranger meets it: its names, when they can be imported, and its types."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

import taskharbor_django
from tests.programs import run_program

PACKAGE = Path(taskharbor_django.__file__).parent

# What a project may import from the package itself; the rest is imported from its module.
PUBLIC = {
    *("Call", "DEFAULT", "Task", "enqueue_many", "registry", "task"),
    *("Priority", "JobState", "FailureCategory", "DeadReason", "Backoff"),
    *("TaskHarborError", "TemporaryError", "PermanentError", "Snooze"),
    *("JobHandle", "Moved", "Selection"),
    *("bury", "cancel", "discard", "erase", "pause", "replay", "requeue", "resume"),
    *("run_now", "update"),
}
NEEDS_MODELS = {
    name for name, module in taskharbor_django._PUBLIC.items() if module == "operations"
}


def run(program, *arguments):
    return json.loads(run_program(program, *arguments))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_the_one_of_its_module(name):
    module = importlib.import_module(f"taskharbor_django.{taskharbor_django._PUBLIC[name]}")
    assert getattr(taskharbor_django, name) is getattr(module, name)


def test_the_public_names_are_listed():
    assert set(taskharbor_django.__all__) >= PUBLIC
    assert dir(taskharbor_django) == sorted(taskharbor_django.__all__)
    assert "__version__" in dir(taskharbor_django)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'taskharbor_django' has no attribute 'nothing'"):
        taskharbor_django.nothing  # noqa: B018  reading it is the test


def test_a_star_import_brings_every_public_name():
    program = """
import json, django
from django.conf import settings
settings.configure(INSTALLED_APPS=[
    "django.contrib.auth", "django.contrib.contenttypes", "taskharbor_django"])
django.setup()
from taskharbor_django import *
print(json.dumps(sorted(name for name in globals() if not name.startswith("_"))))
"""
    assert set(run(program)) >= PUBLIC


def test_importing_the_package_imports_neither_django_nor_its_own_modules():
    program = """
import json, sys, taskharbor_django
print(json.dumps([m for m in sys.modules if m.startswith(("django", "taskharbor_django."))]))
"""
    assert run(program) == []


def test_what_settings_and_tasks_modules_need_is_there_before_the_apps_are_ready():
    names = sorted(PUBLIC - NEEDS_MODELS)
    program = """
import json, sys, taskharbor_django
from django.apps import apps
from django.conf import settings
found = [name for name in sys.argv[1:] if getattr(taskharbor_django, name) is not None]
print(json.dumps([found, apps.ready, settings.configured]))
"""
    assert run(program, *names) == [names, False, False]


def test_a_task_can_be_declared_before_the_apps_are_ready_but_not_enqueued():
    program = """
import json
from taskharbor_django import registry, task
from taskharbor_django.exceptions import UnknownTask
@task(name="early")
def early(): return 7
try:
    early.enqueue()
except UnknownTask as error:
    print(json.dumps([early(), "early" in registry, str(error)]))
"""
    said = "Nothing can be enqueued before Django's apps are ready."
    assert run(program) == [7, True, said]


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").read_text() == ""


def test_every_public_function_of_the_vocabulary_says_its_types():
    untyped = []
    for path in [*PACKAGE.glob("*.py"), *(PACKAGE / "operations").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and not node.name.startswith("_") and node.returns is None:
                untyped.append(f"{path.name}:{node.name}")
    assert untyped == []


def test_the_version_is_one_that_installers_can_order():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|a\d+|b\d+|rc\d+)?", taskharbor_django.__version__)
