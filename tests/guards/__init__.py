"""
Guards against tests that only look green.

A guard takes one promise out of the code, and names the tests that must turn red for it. A test
that stays green then shows nothing, however often it has passed.

    python -m tests.guards [--list] [--only NAME]

`storage`, `worker` and `workflows` have the guards, `runner` runs them in a copy of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Change:
    """A piece of a file, which must occur there exactly once, and what takes its place."""

    file: str
    before: str
    after: str

    def problem(self, tree: Path = ROOT) -> str:
        """Say why it cannot be made in this tree; empty when it can."""
        found = (tree / self.file).read_text().count(self.before)
        return "" if found == 1 else f"{self.file} has it {found} times: {self.before.strip()}"

    def made_in(self, text: str) -> str:
        return text.replace(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Guard:
    """
    A change, or the several that belong together, and the tests that must fail with it.

    A test is a node id of pytest. Without a parameter, it is enough that one of its cases fails.
    """

    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    on: tuple[str, ...]


def guard(name: str, *changes: Change, red: list[str], on: str = "postgresql") -> Guard:
    """A guard that is seen on the databases of `on`, which are named with blanks between them."""
    return Guard(name, changes, tuple(red), tuple(on.split()))
