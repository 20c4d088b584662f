"""What the pages show is true: Python runs, sessions answer as printed, commands exist."""

import doctest
import re
import sys
from types import ModuleType

import pytest

from taskharbor_django import registry

from .commands import Command, commands, problem
from .pages import (
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
    pytest.param(words, id=f"{snippet}-{' '.join(words)}")
    for page in PAGES
    for snippet in snippets(page, SHELL)
    for command in commands(snippet)
    for words in command.parts()
]


@pytest.fixture
def own_registry(monkeypatch):
    """Tasks of the pages are forgotten after the test."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


def run_page(page, monkeypatch):
    """Run the Python of a page in its order; return the names that it leaves behind."""
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


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_is_shown_exists(words):
    assert problem(words) == ""


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


def test_commands_are_read_with_their_output():
    session = shown("console", "$ one\nsays this\nand that\n$ two \\\n  --three\n")
    assert commands(session) == [Command("one", "says this\nand that"), Command("two    --three")]
    script = shown("sh", "# a comment\nX=1 one && two\n\nthree\n")
    assert [command.parts() for command in commands(script)] == [[["one"], ["two"]], [["three"]]]
