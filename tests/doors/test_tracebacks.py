"""What a handler had in its hands when it failed is kept nowhere: no traceback has locals."""

import logging

import pytest
from django.apps import apps

from taskharbor_django import registry, task
from taskharbor_django.models import Attempt, DeadLetter
from tests.testapp.tasks import aadd, add
from tests.worker.conftest import drain

pytestmark = pytest.mark.django_db(transaction=True)

# Given from the end, so that the one that is looked for is a local variable and nothing else.
SECRET = "xyzzy-5f0c"
GIVEN = SECRET[::-1]


def stored():
    """All that the app has in its tables, but for the arguments themselves."""
    for model in apps.get_app_config("taskharbor").get_models():
        fields = [field.attname for field in model._meta.concrete_fields if field.name != "payload"]
        for row in model.objects.values_list(*fields):
            yield from (str(bytes(it) if isinstance(it, memoryview) else it) for it in row)


def written(caplog, capfd):
    """All that was logged, as text and as records have it, or printed."""
    form = logging.Formatter().format
    said = [text for it in caplog.records for text in (form(it), str(it.args), str(it.exc_text))]
    return [*said, *capfd.readouterr()]


def assert_nothing_tells(caplog, capfd):
    for text in (*stored(), *written(caplog, capfd)):
        assert SECRET not in text
        assert GIVEN not in text


def opened(key):
    return {"opened": key}[len(key)]


def deeper(box):
    """The exception that a handler meets and the one that it makes of it, each with its frames."""
    key = box[::-1]
    try:
        return opened(key)
    except KeyError as error:
        raise RuntimeError("it did not open") from error


async def awaited(box):
    return deeper(box)


@pytest.mark.parametrize("handler", [deeper, awaited])
@pytest.mark.parametrize("attempts", [1, 2], ids=["dead", "tried again"])
def test_no_local_variable_of_a_handler_is_stored_or_logged(
    monkeypatch, caplog, capfd, handler, attempts
):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    caplog.set_level(logging.DEBUG, "taskharbor_django")
    job = task(name="tests.locals", max_attempts=attempts)(handler).enqueue(GIVEN)
    drain()
    (attempt,) = Attempt.objects.filter(job=job.id)
    assert "in opened" in attempt.traceback
    assert "in deeper" in attempt.traceback
    assert "RuntimeError: it did not open" in job.refresh().last_error
    assert DeadLetter.objects.count() == (attempts == 1)
    assert str(job.id) in caplog.text
    assert_nothing_tells(caplog, capfd)


@pytest.mark.parametrize("task", [add, aadd], ids=["function", "coroutine"])
def test_nor_of_one_in_a_process_of_its_own(caplog, capfd, task):
    job = task.using(max_attempts=1).enqueue(GIVEN, 1)
    drain(isolate_all=True)
    (attempt,) = Attempt.objects.filter(job=job.id)
    assert "return left + right" in attempt.traceback
    assert "TypeError" in DeadLetter.objects.get(job=job.id).traceback
    assert_nothing_tells(caplog, capfd)
