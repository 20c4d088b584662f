"""Around a handler: its name on log lines, and no connection that it did not ask for."""

import logging
import threading

import pytest
from django.db.backends.signals import connection_created

from taskharbor_django.context import JobFilter
from taskharbor_django.lifecycle import JobState
from tests.testapp import worker_tasks as tasks
from tests.testapp.tasks import add

from .conftest import drain, working

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh():
    tasks.reset()


@pytest.fixture
def spoken(caplog):
    """The records that handlers made through a logger of their own, as a project shows them."""
    caplog.set_level(logging.INFO, tasks.speech.name)
    caplog.handler.addFilter(names := JobFilter())
    yield lambda: [record for record in caplog.records if record.name == tasks.speech.name]
    caplog.handler.removeFilter(names)


@pytest.mark.parametrize("task", [tasks.speak, tasks.aspeak])
def test_every_line_from_inside_a_job_names_the_job_and_its_correlation_id(spoken, task):
    """Also where two of them run side by side, in threads or in one event loop."""
    one, two = (task.using(correlation_id=text).enqueue(text) for text in ("order 7", "order 8"))
    drain(threads=2)
    said = {(record.getMessage(), record.job_id, record.correlation_id) for record in spoken()}
    assert said == {("order 7", str(one.id), "order 7"), ("order 8", str(two.id), "order 8")}


def test_a_job_without_a_correlation_id_is_its_own(spoken):
    handle = tasks.speak.enqueue("alone")
    tasks.speak.enqueue("not alone")
    drain(threads=2)
    (record,) = [each for each in spoken() if each.getMessage() == "alone"]
    assert record.correlation_id == record.job_id == str(handle.id)


def test_outside_a_job_a_line_names_none(spoken):
    tasks.speech.info("nobody")
    (record,) = spoken()
    assert (record.job_id, record.correlation_id) == ("", "")


@pytest.fixture
def connected():
    """The names of the threads that have opened connections since."""
    names = []

    def note(**_):
        names.append(threading.current_thread().name)

    connection_created.connect(note)
    yield names
    connection_created.disconnect(note)


@pytest.mark.parametrize(
    ("task", "other", "thread"),
    [(add, tasks.session, "taskharbor-0"), (tasks.anothing, tasks.acount, "ThreadPoolExecutor")],
)
def test_a_task_that_uses_no_database_costs_no_connection(connected, task, other, thread):
    """Its thread has none; that of a coroutine is the one where Django's async calls run."""
    with working(threads=1):
        handles = [task.enqueue(1, 1) for _ in range(3)]
        assert {handle.wait(20).state for handle in handles} == {JobState.DONE}
        assert not [name for name in connected if name.startswith(thread)]
        other.enqueue().wait(20)
        assert [name for name in connected if name.startswith(thread)]
