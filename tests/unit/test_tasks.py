"""Tasks: what the decorator takes and refuses, what stays callable, and what a name resolves to."""

import asyncio
import functools
import importlib
import inspect
import subprocess
import sys
import types
from datetime import timedelta
from textwrap import dedent

import pytest
from asgiref.sync import markcoroutinefunction

from taskharbor_django import tasks
from taskharbor_django.backoff import Backoff
from taskharbor_django.exceptions import (
    InvalidJob,
    InvalidTask,
    PermanentError,
    TemporaryError,
    UnknownTask,
)
from taskharbor_django.lifecycle import FailureCategory, Priority
from taskharbor_django.task_options import DEFAULT
from taskharbor_django.tasks import Call, Registry, Submission, Task, registry, task
from tests.testapp import tasks as testapp_tasks
from tests.testapp.tasks import add, remember, report, write


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test declares is gone after it."""
    own = Registry()
    monkeypatch.setattr(tasks, "registry", own)
    return own


def plain(left, right=0):
    """Add.

    And say more below.
    """
    return left + right


async def coroutine(value):
    return value


@markcoroutinefunction
def marked(value):
    """Not written with async, but it gives something to await."""
    return coroutine(value)


# -- declaring ----------------------------------------------------------------------------------


def test_a_bare_task_has_its_dotted_path_as_its_name(own_registry):
    made = task(plain)
    assert isinstance(made, Task)
    assert made.name == "tests.unit.test_tasks.plain"
    assert own_registry.get("tests.unit.test_tasks.plain") is made


def test_a_bare_task_leaves_everything_to_the_settings():
    made = task(plain)
    assert (made.queue, made.priority, made.max_attempts) == (None, Priority.NORMAL, None)
    assert (made.timeout, made.lifetime, made.result_ttl) == (DEFAULT, DEFAULT, DEFAULT)
    assert (made.backoff, made.retry_on, made.bury_on) == (None, (), ())
    assert (made.atomic, made.isolation, made.takes_context, made.keep) == (
        False,
        None,
        False,
        True,
    )
    assert (made.aliases, made.submission) == ((), Submission())


def test_options_are_kept_in_the_form_that_the_worker_reads():
    made = task(
        name="shop.total",
        queue="mail",
        priority=Priority.LOW,
        max_attempts=7,
        timeout=90,
        backoff="linear",
        retry_on=[TemporaryError, "timeout"],
        bury_on=PermanentError,
        atomic=True,
        isolation="process",
        lifetime=timedelta(hours=2),
        result_ttl=0,
        keep=False,
        aliases="shop.sum",
        description="Adds up.",
    )(plain)
    assert (made.name, made.queue, made.priority, made.max_attempts) == (
        "shop.total",
        "mail",
        50,
        7,
    )
    assert (made.timeout, made.lifetime) == (timedelta(seconds=90), timedelta(hours=2))
    assert made.result_ttl == timedelta(0)
    assert isinstance(made.backoff, Backoff)
    assert made.backoff.strategy == "linear"
    assert (made.retry_on, made.bury_on) == ((TemporaryError, "timeout"), (PermanentError,))
    assert (made.atomic, made.isolation, made.keep) == (True, "process", False)
    assert (made.aliases, made.description) == (("shop.sum",), "Adds up.")


def test_empty_brackets_are_the_same_as_none():
    assert task()(plain).name == task(plain).name


@pytest.mark.parametrize("option", ["timeout", "lifetime", "result_ttl"])
def test_a_limit_of_none_is_no_limit_and_not_the_default(option):
    assert getattr(task(**{option: None})(plain), option) is None


@pytest.mark.parametrize(
    ("option", "default"),
    [
        *(("queue", None), ("priority", 0), ("max_attempts", None), ("backoff", None)),
        *(("retry_on", ()), ("bury_on", ()), ("aliases", ()), ("isolation", None)),
        *(("atomic", False), ("takes_context", False), ("keep", True), ("description", "Add.")),
        ("name", "tests.unit.test_tasks.plain"),
    ],
)
def test_any_other_option_of_none_is_as_if_it_had_not_been_given(option, default):
    assert getattr(task(**{option: None})(plain), option) == default


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (9, 10)])
def test_retries_are_attempts_less_one(retries, attempts):
    assert task(max_retries=retries)(plain).max_attempts == attempts


def test_zero_attempts_are_left_to_the_settings():
    assert not task(max_attempts=0)(plain).max_attempts


def test_the_first_line_of_the_docstring_describes_the_task():
    assert task(plain).description == "Add."
    assert task(coroutine).description == ""
    assert task(description="Else.")(plain).description == "Else."


# option, value, a part of the text
REFUSED = [
    ("queue", "two words", "queue must be a queue name, not 'two words'"),
    ("queue", "", "queue must be a queue name, not ''"),
    ("queue", 7, "queue must be a queue name"),
    ("priority", -101, "priority must be a Priority or a rank from -100 to 100, not -101"),
    ("priority", 101, "priority must be"),
    ("priority", "high", "priority must be"),
    ("priority", True, "priority must be"),
    ("max_attempts", -1, "max_attempts must be a whole number from 0, not -1"),
    ("max_attempts", 2**31 - 1, "max_attempts must be"),
    ("max_attempts", 1.5, "max_attempts must be"),
    ("max_attempts", True, "max_attempts must be"),
    ("max_retries", -1, "max_retries must be a whole number from 0, not -1"),
    ("max_retries", 2**31 - 1, "max_retries must be"),
    ("max_retries", "1", "max_retries must be"),
    ("timeout", -1, "timeout: -1 s is negative"),
    ("timeout", "1 h", "timeout: must be a timedelta, not str"),
    ("timeout", True, "timeout: must be a timedelta, not bool"),
    ("lifetime", 1e300, r"lifetime: 1e\+300 seconds is no duration"),
    ("lifetime", timedelta(days=36_501), "lifetime: .* is longer than a century"),
    ("result_ttl", float("nan"), "result_ttl: nan seconds is no duration"),
    ("timeout", 0, "timeout: must be more than zero; None means no limit"),
    ("lifetime", timedelta(0), "lifetime: must be more than zero"),
    ("backoff", "sideways", "backoff: .*sideways"),
    ("backoff", {"initial": -1}, "backoff: "),
    ("retry_on", "sometimes", "retry_on must be exception classes or failure categories"),
    ("retry_on", [TemporaryError, int], "retry_on must be"),
    ("retry_on", TemporaryError("made"), "retry_on must be"),
    ("bury_on", ["permanent", None], "bury_on must be"),
    ("atomic", 1, "atomic must be True or False, not 1"),
    ("takes_context", "yes", "takes_context must be True or False"),
    ("keep", 0, "keep must be True or False"),
    ("isolation", "thread", "isolation must be 'process' or None, not 'thread'"),
    ("isolation", True, "isolation must be"),
    ("aliases", [""], "aliases must be task names"),
    ("aliases", ["fine", 7], "aliases must be task names"),
    ("aliases", ["x" * 256], "aliases must be task names"),
    ("aliases", {"a": "b"}, "aliases must be task names"),
    ("description", 7, "description must be text, not 7"),
    ("name", "", "a task's name must have 1-255 characters: ''"),
    ("name", "x" * 256, "a task's name must have 1-255 characters"),
    ("name", "x" * 10_000, "a task's name must have 1-255 characters"),
    ("name", "nul\0", "a task's name must have"),
    ("name", "\ud800", "a task's name must have"),
    ("name", 7, "a task's name must have 1-255 characters: 7"),
    ("colour", "red", "@task has no option 'colour'; there are aliases, atomic, "),
    ("function", plain, "@task has no option 'function'"),
    ("submission", Submission(), "@task has no option 'submission'"),
    ("run_at", None, "@task has no option 'run_at'"),
]


@pytest.mark.parametrize(
    ("option", "value", "text"),
    REFUSED,
    ids=[f"{option}, {text:.40}" for option, _, text in REFUSED],
)
def test_an_option_that_does_not_fit_is_refused_where_the_task_is_declared(
    own_registry, option, value, text
):
    with pytest.raises(InvalidTask, match=text) as caught:
        task(**{option: value})(plain)
    assert len(str(caught.value)) < 400
    assert list(own_registry) == []


def test_attempts_and_retries_together_are_refused():
    with pytest.raises(InvalidTask, match="max_attempts or max_retries, not both"):
        task(max_attempts=3, max_retries=2)(plain)


@pytest.mark.parametrize("function", [coroutine, marked])
def test_an_async_task_cannot_be_atomic(function):
    """Django's transactions belong to a thread, and an event loop has one for all its tasks."""
    with pytest.raises(InvalidTask, match="t: an async task cannot be atomic"):
        task(name="t", atomic=True)(function)
    assert task(name="t", atomic=False)(function).is_async


@pytest.mark.parametrize("name", ["x", "x" * 255, "☕", testapp_tasks.ODD_NAME])
def test_a_name_may_be_any_text_of_255_characters(own_registry, name):
    made = task(name=name)(plain)
    assert own_registry.get(name) is made


def test_a_function_without_a_path_needs_a_name(own_registry):
    def local():
        return 7

    for nameless in (local, lambda: 7):
        with pytest.raises(InvalidTask, match="is a lambda or local function; give it a name="):
            task(nameless)
    assert task(name="local")(local)() == 7


class Callable_:  # noqa: N801  the thing itself, not its name, is refused
    def __call__(self):
        return 7


@pytest.mark.parametrize(
    "thing",
    [7, "tests.testapp.tasks.add", Callable_, Callable_(), functools.partial(plain, 1), add],
    ids=["number", "path", "class", "object", "partial", "task"],
)
def test_only_a_function_can_be_a_task(thing):
    with pytest.raises(InvalidTask, match="a task must be a function, not "):
        task(name="thing")(thing)


# -- a task stays a function --------------------------------------------------------------------


def test_a_task_can_be_called_like_the_function_it_was():
    assert add(2, right=3) == 5
    assert asyncio.run(testapp_tasks.aadd(2, 3)) == 5


def test_a_task_looks_like_the_function_it_was():
    made = task(plain)
    assert (made.__name__, made.__module__, made.__doc__) == (
        plain.__name__,
        plain.__module__,
        plain.__doc__,
    )
    assert inspect.unwrap(made) is plain
    assert inspect.signature(made) == inspect.signature(plain)
    assert repr(made) == "<Task tests.unit.test_tasks.plain>"


def test_a_task_does_not_change():
    with pytest.raises(AttributeError):
        add.queue = "other"


@pytest.mark.parametrize(
    ("function", "is_async"), [(plain, False), (coroutine, True), (marked, True)]
)
def test_a_task_knows_whether_it_is_async(function, is_async):
    assert task(name="t")(function).is_async is is_async


# -- what a caller passes -----------------------------------------------------------------------


def test_a_caller_does_not_pass_the_context():
    assert list(remember.signature.parameters) == ["key"]
    assert list(add.signature.parameters) == ["left", "right"]


def test_a_star_takes_the_context_and_what_follows():
    made = task(name="t", takes_context=True)(lambda *args: args)
    made.signature.bind(1, 2, 3)


@pytest.mark.parametrize("function", [lambda: 0, lambda *, key: key, lambda **keys: keys])
def test_a_task_that_takes_the_context_must_have_an_argument_for_it(function):
    with pytest.raises(InvalidTask, match="t: takes_context, but there is no argument to take it"):
        task(name="t", takes_context=True)(function)


# -- using --------------------------------------------------------------------------------------


def test_using_gives_a_changed_copy_and_leaves_the_task_as_it_was():
    before = add.submission
    hurried = add.using(queue="fast", priority=Priority.CRITICAL, delay=90, tags={"a": "b"})
    assert add.submission is before == Submission()
    assert hurried is not add
    assert (hurried.name, hurried(2, 3)) == (add.name, 5)
    assert hurried.submission == Submission(
        queue="fast", priority=Priority.CRITICAL, delay=timedelta(seconds=90), tags={"a": "b"}
    )


def test_using_again_keeps_what_was_asked_before():
    once = add.using(queue="fast", correlation_id="c")
    twice = once.using(queue="slow")
    assert (twice.submission.queue, twice.submission.correlation_id) == ("slow", "c")
    assert once.submission.queue == "fast"


def test_a_copy_is_not_registered(own_registry):
    made = task(plain)
    made.using(queue="fast")
    assert own_registry.get(made.name) is made


@pytest.mark.parametrize("option", ["delay", "timeout", "lifetime", "idempotency_ttl"])
def test_using_reads_durations_as_timedeltas_or_seconds(option):
    for given in (90, 90.0, timedelta(seconds=90)):
        assert getattr(add.using(**{option: given}).submission, option) == timedelta(seconds=90)
    assert getattr(add.using(**{option: None}).submission, option) is None
    with pytest.raises(InvalidJob, match=f"{option}: must be a timedelta, not str") as caught:
        add.using(**{option: "soon"})
    assert caught.value.field == option


def test_using_can_go_back_to_what_the_settings_say():
    assert report.using(timeout=5).using(timeout=DEFAULT).submission.timeout is DEFAULT
    assert repr(DEFAULT) == "DEFAULT"


@pytest.mark.parametrize("option", ["id", "colour", "max_retries", "task", "payload"])
def test_using_refuses_what_is_no_option(option):
    with pytest.raises(InvalidJob, match=f"has no option '{option}'; there are after, ") as caught:
        add.using(**{option: "x"})
    assert caught.value.field == option


@pytest.mark.parametrize("queue", ["", "two words", "100%", "it's", "q" * 129, 7, ["mail"]])
def test_using_refuses_what_is_no_queue_name(queue):
    with pytest.raises(InvalidJob, match=r"queue: .* is no queue name; use 1-128 of ") as caught:
        add.using(queue=queue)
    assert caught.value.field == "queue"


def test_using_refuses_run_at_beside_delay_also_in_two_steps():
    moment = object()
    for make in (
        lambda: add.using(run_at=moment, delay=1),
        lambda: add.using(run_at=moment).using(delay=1),
    ):
        with pytest.raises(InvalidJob, match="give run_at or delay, not both") as caught:
            make()
        assert caught.value.field == "delay"
    assert add.using(run_at=moment).using(run_at=None, delay=1).submission.run_at is None


def test_a_call_is_a_task_with_its_arguments():
    assert add.call(1, right=2) == Call(add, (1,), {"right": 2})


# -- the registry -------------------------------------------------------------------------------


def test_an_alias_resolves_to_the_task(own_registry):
    made = task(name="new", aliases=["old", "older"])(plain)
    assert own_registry.get("old") is own_registry.get("older") is made
    assert "old" in own_registry
    assert [name for name, _ in own_registry] == ["new"]


def test_the_registry_lists_tasks_by_name(own_registry):
    second, first = task(name="b")(plain), task(name="a")(coroutine)
    assert list(own_registry) == [("a", first), ("b", second)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"name": "t"}, {"name": "t"}),
        ({"name": "t"}, {"name": "u", "aliases": ["t"]}),
        ({"name": "u", "aliases": ["t"]}, {"name": "t"}),
        ({"name": "u", "aliases": ["t"]}, {"name": "v", "aliases": ["w", "t"]}),
    ],
    ids=["names", "alias of a name", "name of an alias", "aliases"],
)
def test_two_tasks_of_one_name_are_refused_and_both_places_named(own_registry, first, second):
    made = task(**first)(plain)
    places = "'t': tests.unit.test_tasks.plain, tests.unit.test_tasks.coroutine"
    with pytest.raises(InvalidTask, match=f"two tasks are called {places}"):
        task(**second)(coroutine)
    assert own_registry.get("t") is made
    assert [name for name, _ in own_registry] == [made.name]
    assert "w" not in own_registry


def test_a_module_that_is_loaded_again_replaces_its_own_tasks(own_registry, monkeypatch, tmp_path):
    source = tmp_path / "reloaded_tasks.py"
    source.write_text("from taskharbor_django import task\n@task\ndef t(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded_tasks")
    source.write_text("from taskharbor_django import task\n@task\ndef t(): return 'again'\n")
    importlib.reload(module)
    assert own_registry.get("reloaded_tasks.t")() == "again"
    monkeypatch.delitem(sys.modules, "reloaded_tasks")


@pytest.mark.parametrize(
    "name", ["os.system", "tests.testapp.tasks.add", "antigravity", "no.such.module", "", "x" * 999]
)
def test_a_name_that_nobody_registered_is_unknown_and_imports_nothing(own_registry, name):
    before = set(sys.modules)
    with pytest.raises(UnknownTask, match="; the module tasks of each is imported") as caught:
        own_registry.get(name)
    assert set(sys.modules) == before
    assert "antigravity" not in sys.modules
    assert len(str(caught.value)) < 400
    assert name not in own_registry


def test_looking_a_name_up_never_imports_even_a_module_of_ours(tmp_path):
    """In a Python of its own, where nothing else could have imported it before."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    program = dedent("""
        import sys
        from taskharbor_django import registry
        from taskharbor_django.exceptions import UnknownTask
        for name in ("trap", "trap.run", "os.system"):
            try:
                registry.get(name)
            except UnknownTask:
                continue
            raise SystemExit(name)
        raise SystemExit("trap" in sys.modules)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_tasks_of_installed_apps_are_registered_when_the_apps_are_ready():
    assert registry.get("tests.testapp.tasks.add") is add
    assert registry.get("testapp.old_write") is registry.get("testapp.write") is write
    declared = {value for value in vars(testapp_tasks).values() if isinstance(value, Task)}
    assert declared <= {made for _, made in registry}


def test_a_failure_category_may_be_its_enum_member():
    made = task(retry_on=[FailureCategory.TIMEOUT])(plain)
    assert made.retry_on == ("timeout",)


def test_nothing_can_be_enqueued_before_something_stores(monkeypatch):
    monkeypatch.setattr(tasks, "_submitter", None)
    with pytest.raises(UnknownTask, match="before Django's apps are ready"):
        add.enqueue(1)


def test_a_submitter_is_handed_the_call_and_its_answer_is_the_caller_s(monkeypatch):
    stored = types.SimpleNamespace(enqueue=lambda call: ("stored", call))
    monkeypatch.setattr(tasks, "_submitter", None)
    tasks.submit_through(stored)
    assert add.enqueue(1, right=2) == ("stored", Call(add, (1,), {"right": 2}))


@pytest.mark.parametrize("name", ["self", "function", "args", "task", "call"])
def test_an_argument_may_have_any_name(monkeypatch, name):
    """A parameter of the machinery in between would swallow or refuse it."""
    namespace = {}
    exec(f"def named({name}): return {name}", namespace)  # noqa: S102  the name is the test
    made = task(name="named")(namespace["named"])
    monkeypatch.setattr(
        tasks, "_submitter", types.SimpleNamespace(enqueue=lambda call: call.kwargs)
    )
    assert made.call(**{name: 7}).kwargs == made.enqueue(**{name: 7}) == {name: 7}
    assert asyncio.run(made.aenqueue(**{name: 7})) == {name: 7}
