"""The page of faults names tests that are there, and leaves out none of those that do something."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "faults.md"
DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)


def defined(*patterns):
    files = [path for pattern in patterns for path in (ROOT / "tests").glob(pattern)]
    return {name for path in files for name in DEFINED.findall(path.read_text("utf-8"))}


def test_each_test_that_it_names_is_there():
    named = set(re.findall(r"`(test_\w+)", PAGE.read_text("utf-8")))
    assert len(named) > 40
    assert not named - defined("**/*.py")


def test_each_test_of_a_fault_is_named():
    """But those of the checker and of the model, in which nothing is broken."""
    page = PAGE.read_text("utf-8")
    own = defined("faults/test_history.py", "faults/test_model.py")
    told = defined("faults/test_*.py") - own
    assert len(told) > 60
    assert sorted(name for name in told if not re.search(rf"`…?{name}\b", page)) == []
