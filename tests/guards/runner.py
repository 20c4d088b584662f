"""Run guards in a copy of the tree: first the tests as they are, then each with its change."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers import KINDS

from . import ROOT, Guard
from .outcomes import FILE

COPIED = ("taskharbor_django", "tests", "example_project", "manage.py", "pyproject.toml")
PATIENCE = 600.0  # seconds, for one run of pytest
WIDTH = 100  # characters of a failure that are shown
OPTIONS = ("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "pytest_django.plugin")

Say = Callable[[str], None]


@dataclass(slots=True)
class Run:
    """What one run of pytest made of the tests: outcome and message for each case of each."""

    cases: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    said: str = ""

    def of(self, test: str) -> list[tuple[str, str]]:
        """What became of a test, of all its cases if it is named without a parameter."""
        return [
            found
            for case, outcomes in self.cases.items()
            if case == test or case.startswith(f"{test}[")
            for found in outcomes
        ]

    def is_green(self, test: str) -> bool:
        found = self.of(test)
        return bool(found) and all(outcome == "passed" for outcome, _ in found)

    def failure(self, test: str) -> str | None:
        """What it failed with; None when it did not, or could not be run."""
        failed = [message for outcome, message in self.of(test) if outcome == "failed"]
        return failed[0] if failed else None

    def word(self, test: str) -> str:
        return " and ".join(sorted({outcome for outcome, _ in self.of(test)})) or "not run"


class Tree:
    """A copy of what the tests need, with a database for them; the tree itself is never touched."""

    def __init__(self, path: Path, database: str, url: str) -> None:
        self.path = path
        self.environment = os.environ | {
            "TASKHARBOR_TEST_DATABASE": database,
            "DATABASE_URL": url,
            # Plugins that no test needs take longer to import than most of the tests to run.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            FILE: str(path / "outcomes"),
        }
        self.environment.pop("PYTEST_ADDOPTS", None)
        for name in COPIED:
            _copy(ROOT / name, path / name)

    @contextlib.contextmanager
    def changed(self, guard: Guard) -> Iterator[None]:
        texts = {change.file: (self.path / change.file).read_text() for change in guard.changes}
        try:
            for change in guard.changes:
                self._write(change.file, change.made_in((self.path / change.file).read_text()))
            yield
        finally:
            for file, text in texts.items():
                self._write(file, text)

    def _write(self, file: str, text: str) -> None:
        (self.path / file).write_text(text)
        # What was compiled from a text of the same second and size would be taken for this one.
        Path(cache_from_source(self.path / file)).unlink(missing_ok=True)

    def run(self, tests: Iterable[str]) -> Run:
        told = Path(self.environment[FILE])
        told.write_text("")
        command = [sys.executable, "-m", "pytest", "-p", "tests.guards.outcomes", *OPTIONS, *tests]
        run = Run(said=_output(command, self.path, self.environment))
        for line in told.read_text().splitlines():
            case, *found = json.loads(line)
            run.cases.setdefault(case, []).append(tuple(found))
        return run


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _output(command: list[str], path: Path, environment: dict[str, str]) -> str:
    """All that pytest says; one that hangs is ended, and what it had found out by then counts."""
    with subprocess.Popen(
        command, cwd=path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            return process.communicate(timeout=PATIENCE)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.terminate()
            said = process.communicate()[0].decode(errors="replace")
            return f"{said}\nIt was ended after {PATIENCE:.0f} s."
        except BaseException:
            process.terminate()
            raise


def check(guards: Sequence[Guard], say: Say) -> bool:
    """Try each guard on each of its databases; say whether all of them hold."""
    total = sum(len(guard.on) for guard in guards)
    places = (f"{number:3}/{total}" for number in itertools.count(1))
    held = left_out = 0
    for database, server in KINDS.items():
        here = [guard for guard in guards if database in guard.on]
        if here and (reason := server.missing()):
            say(reason)
            left_out += len(here)
        elif here:
            held += _check_on(database, here, places, say)
    say(f"{held} of {total} turned their tests red, {left_out} were left out.")
    return held + (0 if os.environ.get("TASKHARBOR_TEST_STRICT") else left_out) == total


def _check_on(database: str, guards: Sequence[Guard], places: Iterator[str], say: Say) -> int:
    """Try these on one database; return how many hold."""
    held = 0
    with TemporaryDirectory(prefix="taskharbor-guards-") as scratch, KINDS[database]() as server:
        tree = Tree(Path(scratch), database, server.url)
        before = _before(tree, guards, database, say)
        for guard in guards:
            holds, lines = judge(tree, guard, before)
            held += holds
            word = "red" if holds else "NOT RED"
            say(f"{next(places)} {word:<7} {database:<10} {guard.name}: {lines[0]}")
            for line in lines[1:]:
                say(f"{'':15} {line}")
    return held


def _before(tree: Tree, guards: Sequence[Guard], database: str, say: Say) -> Run:
    tests = list(dict.fromkeys(test for guard in guards for test in guard.tests))
    run = tree.run(tests)
    green = sum(map(run.is_green, tests))
    say(f"{green} of {len(tests)} tests are green on {database} without a change.")
    if green < len(tests):
        say(run.said)
    return run


def judge(tree: Tree, guard: Guard, before: Run) -> tuple[bool, list[str]]:
    """Whether all of its tests turn red, and what the first failed with, or what is wrong."""
    wrong = [problem for change in guard.changes if (problem := change.problem(tree.path))]
    wrong += [
        f"{before.word(test)} without the change: {test}"
        for test in guard.tests
        if not before.is_green(test)
    ]
    if wrong:
        return False, wrong
    with tree.changed(guard):
        run = tree.run(guard.tests)
    failures = {test: run.failure(test) for test in guard.tests}
    wrong = [
        f"{run.word(test)} with the change: {test}"
        for test, failure in failures.items()
        if failure is None
    ]
    return not wrong, wrong or [str(failures[guard.tests[0]])[:WIDTH]]
