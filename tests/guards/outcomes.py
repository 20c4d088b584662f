"""The pytest plugin that writes down what became of each test, a line for each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FILE = "TASKHARBOR_GUARDS_OUTCOMES"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Only a test that ran can fail; what goes wrong around it is an error."""
    if report.when != "call" and report.passed:
        return
    outcome = "error" if report.failed and report.when != "call" else report.outcome
    crash = getattr(report.longrepr, "reprcrash", None)
    line = [report.nodeid, outcome, crash.message.partition("\n")[0] if crash else ""]
    with Path(os.environ[FILE]).open("a") as told:
        told.write(json.dumps(line) + "\n")
