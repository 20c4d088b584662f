"""The guards against tests that only look green fit the code as it is, and are hard to please."""

import ast
import contextlib
from importlib import import_module
from operator import attrgetter

import pytest

from tests.guards import ROOT, Change, guard
from tests.guards.runner import Run, judge
from tests.guards.table import GUARDS

TEST = "tests/unit/test_x.py::test_it"


@pytest.mark.parametrize("each", GUARDS, ids=attrgetter("name"))
def test_what_a_guard_takes_out_is_there_once(each):
    assert [change.problem() for change in each.changes] == [""] * len(each.changes)


@pytest.mark.parametrize("each", GUARDS, ids=attrgetter("name"))
def test_what_a_guard_puts_in_its_place_is_python(each):
    for file in {change.file for change in each.changes}:
        text = before = (ROOT / file).read_text()
        for change in each.changes:
            text = change.made_in(text) if change.file == file else text
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))


@pytest.mark.parametrize("each", GUARDS, ids=attrgetter("name"))
def test_the_tests_that_a_guard_names_are_there(each):
    for test in each.tests:
        file, *names = test.partition("[")[0].split("::")
        module = import_module(file.removesuffix(".py").replace("/", "."))
        assert callable(attrgetter(".".join(names))(module))


def test_no_two_guards_have_the_same_name():
    assert len({each.name for each in GUARDS}) == len(GUARDS)


def test_what_is_not_there_once_is_a_problem(tmp_path):
    (tmp_path / "some.py").write_text("a = 1\nb = 1\n")
    found = [Change("some.py", text, "").problem(tmp_path) for text in ("a = 1", "c", "1")]
    assert found == ["", "some.py has it 0 times: c", "some.py has it 2 times: 1"]


def test_a_guard_may_be_seen_on_several_databases():
    assert guard("it", red=[TEST], on="postgresql sqlite").on == ("postgresql", "sqlite")


@pytest.mark.parametrize("outcomes", [[], ["passed"], ["error"], ["skipped"], ["passed", "error"]])
def test_only_a_test_that_failed_is_red(outcomes):
    run = Run(cases={TEST: [(outcome, "") for outcome in outcomes]})
    assert run.failure(TEST) is None


def test_one_failed_case_is_enough_unless_another_was_named():
    run = Run(cases={f"{TEST}[a]": [("passed", "")], f"{TEST}[b]": [("failed", "no")]})
    assert (run.failure(TEST), run.failure(f"{TEST}[a]")) == ("no", None)


@pytest.mark.parametrize("outcomes", [[], ["failed"], ["skipped"], ["passed", "error"]])
def test_only_a_test_that_passed_is_green(outcomes):
    assert Run(cases={TEST: [("passed", "")]}).is_green(TEST)
    assert not Run(cases={TEST: [(outcome, "") for outcome in outcomes]}).is_green(TEST)
    assert not Run(cases={f"{TEST}_too": [("passed", "")]}).is_green(TEST)


class Tree:
    """Stands for a copy of the tree in which the test ends as it is told to."""

    def __init__(self, path, outcome):
        self.path = path
        self._outcome = outcome
        (path / "some.py").write_text("a = 1\n")

    changed = contextlib.nullcontext

    def run(self, tests):
        return Run(cases={test: [(self._outcome, "no")] for test in tests})


@pytest.mark.parametrize(
    ("before", "after", "text", "verdict"),
    [
        ("passed", "failed", "a = 1", (True, ["no"])),
        ("passed", "passed", "a = 1", (False, [f"passed with the change: {TEST}"])),
        ("passed", "error", "a = 1", (False, [f"error with the change: {TEST}"])),
        ("failed", "failed", "a = 1", (False, [f"failed without the change: {TEST}"])),
        ("passed", "failed", "b = 1", (False, ["some.py has it 0 times: b = 1"])),
    ],
)
def test_a_guard_holds_when_its_test_was_green_and_fails(tmp_path, before, after, text, verdict):
    found = guard("it", Change("some.py", text, "a = 2"), red=[TEST])
    as_it_is = Run(cases={TEST: [(before, "")]})
    assert judge(Tree(tmp_path, after), found, as_it_is) == verdict
