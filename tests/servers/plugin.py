"""
The pytest plugin that gives a run its database.

It is named in `addopts` because Django's settings are read before any conftest is. The process
that pytest was started as owns the server; the workers of pytest-xdist inherit DATABASE_URL.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from typing import NoReturn

import pytest

from . import PgBouncer, Server, chosen

# Where the server itself listens, if there is a pooler in front of it.
DIRECT_PORT = "TASKHARBOR_TEST_DIRECT_PORT"
VENDORS = {"postgresql": "postgresql", "sqlite": "sqlite", "mariadb": "mysql"}

server_key = pytest.StashKey[Server]()
deselected_key = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    options = early_config.known_args_namespace
    if not (os.environ.get("DATABASE_URL") or options.help or options.version):
        server = chosen()
        if reason := server.missing():
            leave(reason)
        early_config.add_cleanup(server.remove)
        early_config.stash[server_key] = server.start()
        os.environ["DATABASE_URL"] = server.url
        if isinstance(server, PgBouncer):
            os.environ[DIRECT_PORT] = str(server.behind.port)
        early_config.add_cleanup(forget)
    return (yield)


def forget() -> None:
    os.environ.pop("DATABASE_URL", None)
    os.environ.pop(DIRECT_PORT, None)


def leave(reason: str) -> NoReturn:
    """End the run well, unless TASKHARBOR_TEST_STRICT says that nothing may be skipped."""
    print(reason)
    raise SystemExit(1 if os.environ.get("TASKHARBOR_TEST_STRICT") else 0)


def go_without(reason: str) -> NoReturn:
    """Skip the test that wants what is not here; where nothing may be skipped, it fails."""
    if os.environ.get("TASKHARBOR_TEST_STRICT"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_report_header(config: pytest.Config) -> str:
    from django.db import DatabaseError, connection
    from pytest_django.plugin import blocking_manager_key

    origin = "started by the tests" if server_key in config.stash else "from DATABASE_URL"
    try:
        with config.stash[blocking_manager_key].unblock():
            version = ".".join(map(str, connection.get_database_version()))
            name = connection.display_name
            connection.close()
    except DatabaseError as error:
        return f"database: {connection.vendor}, {origin}, does not answer: {error}"
    return f"database: {name} {version}, {origin}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are marked for other databases only, or not for a pooler."""
    from django.db import connection

    elsewhere: Counter[str] = Counter()
    kept = []
    left_out = []
    for item in items:
        wanted = [name for name in VENDORS if item.get_closest_marker(name)]
        if os.environ.get(DIRECT_PORT) and item.get_closest_marker("session"):
            left_out.append(item)
            elsewhere["sessions without a pooler"] += 1
        elif not wanted or connection.vendor in {VENDORS[name] for name in wanted}:
            kept.append(item)
        else:
            left_out.append(item)
            elsewhere[" or ".join(wanted)] += 1
    config.stash[deselected_key] = dict(elsewhere)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take over what one worker left out; each worker collects the same tests."""
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    output = getattr(node, "workeroutput", {})
    config.stash[deselected_key] = output.get("deselected", {})


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["deselected"] = session.config.stash.get(deselected_key, {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for names, number in sorted(config.stash.get(deselected_key, {}).items()):
        terminalreporter.write_line(f"left out: {number} for {names} only")
