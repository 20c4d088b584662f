"""What the pages show is true: Python runs, sessions answer as printed, commands exist."""

import doctest
import importlib
import re
import sys
from configparser import ConfigParser
from types import ModuleType

import django
import pytest

from taskharbor_django import context, registry, schedules, signals

from .commands import OF_OTHERS, Command, commands, configured, mentioned_problem, problem
from .pages import (
    CONFIG,
    PAGES,
    PYTHON,
    README,
    ROOT,
    SESSION,
    SHELL,
    TUTORIALS,
    Snippet,
    fences,
    name,
    snippets,
)

ANSWERS_MAY_VARY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Tutorials are walked through in a project of their own, see test_tutorial.
RUN_HERE = [page for page in PAGES if page not in TUTORIALS and snippets(page, PYTHON | SESSION)]
FENCES = [snippet for page in PAGES for snippet in fences(page)]
COMMANDS = [
    pytest.param(words, bool(snippet.not_run), id=f"{snippet}-{' '.join(words)}")
    for page in PAGES
    for snippet in snippets(page, SHELL)
    for command in commands(snippet)
    for words in command.parts()
]
CONFIGURED = [
    pytest.param(words, id=f"{snippet}-{' '.join(words)}")
    for page in PAGES
    for snippet in snippets(page, CONFIG)
    for words in configured(snippet)
]
# `manage.py runworker --burst` within a sentence.
MENTIONED = [
    pytest.param(Command(f"python {text}").parts()[0], id=f"{name(page)}-{text}")
    for page in PAGES
    for text in re.findall(r"`(?:python )?(manage\.py [^`]+)`", page.read_text("utf-8"))
    if text.split()[1] not in OF_OTHERS
]


@pytest.fixture
def own_registry(monkeypatch):
    """Tasks and receivers of the pages are forgotten after the test."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(context, "_carry", None)
    for signal in (*signals.SIGNALS.values(), signals.started, signals.stopped):
        monkeypatch.setattr(signal, "receivers", list(signal.receivers))
    monkeypatch.setattr(schedules, "_declared", dict(schedules._declared))


def run_page(page, monkeypatch):
    """Run the Python of a page in its order; return the names that it leaves behind."""
    if django.VERSION < (6, 0):  # the pages speak of Django's own task API
        monkeypatch.setitem(sys.modules, "django.tasks", importlib.import_module("django_tasks"))
        monkeypatch.setitem(
            sys.modules, "django.tasks.signals", importlib.import_module("django_tasks.signals")
        )
    names = {"__name__": "__main__"}
    for snippet in snippets(page, PYTHON | SESSION):
        if snippet.not_run:
            continue
        if snippet.language in SESSION:
            hold_session(snippet, names)
        else:
            exec(snippet.compiled(), place(snippet, names, monkeypatch))  # noqa: S102  our own pages
    return names


def place(snippet, names, monkeypatch):
    """Return where a snippet runs: a module of its own if its first line names one."""
    if not snippet.file:
        return names
    dotted = snippet.file.removesuffix(".py").replace("/", ".")
    package = dotted.rpartition(".")[0]
    for made in filter(None, (package, dotted)):
        if made not in sys.modules:
            module = ModuleType(made)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, made, module)
    module = sys.modules[dotted]
    module.__package__ = package
    return vars(module)


def hold_session(snippet, names):
    test = doctest.DocTestParser().get_doctest(
        snippet.code, names, str(snippet), str(snippet.page), snippet.line
    )
    said = []
    runner = doctest.DocTestRunner(optionflags=ANSWERS_MAY_VARY)
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert not runner.failures, "".join(said)


@pytest.mark.django_db
@pytest.mark.parametrize("page", RUN_HERE, ids=name)
def test_the_python_of_a_page_runs(page, own_registry, monkeypatch):
    run_page(page, monkeypatch)


@pytest.mark.parametrize("snippet", [it for it in FENCES if it.language in PYTHON], ids=str)
def test_python_that_is_shown_compiles(snippet):
    snippet.compiled()


@pytest.mark.parametrize(("words", "elsewhere"), COMMANDS)
def test_a_command_that_is_shown_exists(words, elsewhere):
    assert problem(words, elsewhere=elsewhere) == ""


@pytest.mark.parametrize("words", CONFIGURED)
def test_a_command_in_a_unit_or_a_manifest_exists(words):
    assert problem(words) == ""


@pytest.mark.parametrize("words", MENTIONED)
def test_a_command_in_a_sentence_exists(words):
    assert mentioned_problem(words) == ""


@pytest.mark.parametrize("snippet", [it for it in FENCES if it.language == "yaml"], ids=str)
def test_a_manifest_is_yaml(snippet):
    yaml = pytest.importorskip("yaml")
    assert all(isinstance(it, dict) for it in yaml.safe_load_all(snippet.code))


@pytest.mark.parametrize("snippet", [it for it in FENCES if it.language == "ini"], ids=str)
def test_a_unit_has_sections_and_entries(snippet):
    config = ConfigParser(interpolation=None, strict=False)
    config.read_string(snippet.code)
    assert all(dict(config[section]) for section in config.sections())


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_python_hides_from_these_tests(page):
    """Other spellings of the same would be shown alike and tested by nobody."""
    hidden = {"py", "python3", "Python", "{code-block} python", "{testcode}", "bash", "shell"}
    assert [str(snippet) for snippet in fences(page) if snippet.language in hidden] == []


@pytest.mark.django_db
def test_the_readme_stores_a_user_and_a_job(own_registry, monkeypatch, rf):
    run_page(README, monkeypatch)
    answer = sys.modules["accounts.views"].sign_up(
        rf.post("/", {"name": "ada", "email": "ada@harbor.example"})
    )
    assert b'"state": "ready"' in answer.content
    assert "accounts.tasks.send_welcome" in registry


def test_the_readme_begins_with_the_two_commands():
    first = next(fences(README))
    assert [command.text for command in commands(first)] == [
        'python -m pip install -e ".[example]" && python manage.py demo',
        "python -m pip install tox && tox",
    ]


def test_the_readme_points_at_what_is_there():
    targets = re.findall(r"\]\(([^)#:]+)\)", README.read_text("utf-8"))
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


# -- the tests of these pages can fail -----------------------------------------------------------


def shown(language, code, **facts):
    return Snippet(page=README, line=7, language=language, code=code, **facts)


def test_a_traceback_names_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as caught:
        exec(shown("python", "\n1 / 0\n").compiled(), {})  # noqa: S102  written above
    assert caught.traceback[-1].lineno + 1 == 9


def test_a_wrong_answer_in_a_session_fails():
    hold_session(shown("pycon", ">>> 1 + 1\n2\n"), {})
    with pytest.raises(AssertionError, match="Expected"):
        hold_session(shown("pycon", ">>> 1 + 1\n3\n"), {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("python manage.py mirgate", "there is no command mirgate"),
        ("python manage.py migrate --forcibly", "migrate: "),
        ("python -m pip install . && python -m tocks", "who has a module"),
        ("python missing.py", "there is no file missing.py"),
        ("X=1 no-such-program --help", "there is no program no-such-program"),
        ("tox -e sqlite,sqlight", "tox has no environment sqlight"),
    ],
)
def test_a_command_that_does_not_exist_is_found(text, complaint):
    assert complaint in " ".join(map(problem, Command(text).parts()))


@pytest.mark.parametrize(
    "line",
    [
        "ExecStart=/srv/venv/bin/python manage.py runworker --threds 4",
        'command: ["python", "manage.py", "runworker", "--threds", "4"]',
        "worker: python manage.py runworker --threds=4",
    ],
)
def test_a_wrong_option_in_a_configuration_is_found(line):
    (words,) = configured(shown("ini", f"{line}\n"))
    assert "--threds" in problem(words)


def test_what_is_typed_elsewhere_may_be_unknown_here_but_not_to_django():
    assert problem(["no-such-program"], elsewhere=True) == ""
    assert problem(["python", "manage.py", "mirgate"], elsewhere=True)
    assert problem(["python", "manage.py", "check", "--database", "metrics"], elsewhere=True) == ""
    assert problem(["python", "manage.py", "check", "--databse", "metrics"], elsewhere=True)


def test_a_name_alone_is_a_mention_and_no_command():
    assert mentioned_problem(["python", "manage.py", "taskharbor"]) == ""
    assert mentioned_problem(["python", "manage.py", "taskharbour"])
    assert problem(["python", "manage.py", "taskharbor"])


def test_commands_are_read_with_their_output():
    session = shown("console", "$ one\nsays this\nand that\n$ two \\\n  --three\n")
    assert commands(session) == [Command("one", "says this\nand that"), Command("two    --three")]
    script = shown("sh", "# a comment\nX=1 one && two\n\nthree\n")
    assert [command.parts() for command in commands(script)] == [[["one"], ["two"]], [["three"]]]
