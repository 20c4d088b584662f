"""`manage.py taskharbor`: the door for operators and scripts."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from argparse import SUPPRESS
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error as DatabaseTrouble
from django.db import InterfaceError, OperationalError, connections

from ...exceptions import TaskHarborError
from ...operations.storage import default_alias
from ...values import is_storable
from ..filters import UsageError
from ..output import Output
from ..subcommands import GROUPS
from ..subcommands.parsing import AWAY, Adding
from ..tables import require_tables


class Command(BaseCommand):
    help = "Looks after jobs, dead letters, queues, workers and schedules."

    def add_arguments(self, parser: CommandParser) -> None:
        # A subcommand that is not given an option must not undo what was given before it.
        common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
        common.add_argument("--json", action="store_true", default=SUPPRESS, help="Print JSON.")
        common.add_argument("--database", metavar="ALIAS", help="Where the jobs are.")
        add_django_options(common)
        parser.set_defaults(json=False, database=None)
        below = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
        for group in GROUPS:
            group.add(Adding(below, [common]))

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002  Django's signature
        if options["database"] and options["database"] not in connections:
            known = ", ".join(connections)
            raise UsageError(f"DATABASES has no alias {options['database']!r}; there is {known}.")
        _refuse_bytes(options)
        out = Output(self.stdout, self.stderr, as_json=options["json"])
        try:
            code = options["run"](options, out)
            self.stdout.flush()
        except BrokenPipeError:
            # Who read has gone, as `head` does; what is left to flush at the end goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 128 + signal.SIGPIPE
        except (TaskHarborError, ImproperlyConfigured) as problem:
            raise CommandError(str(problem)) from problem
        except DatabaseTrouble as problem:
            require_tables(options["database"] or default_alias(), returncode=2)
            if not isinstance(problem, OperationalError | InterfaceError):
                raise
            text = " ".join(str(problem).split())
            raise CommandError(
                f"The database cannot be asked: {text}", returncode=AWAY
            ) from problem
        if code:
            raise SystemExit(code)


def add_django_options(parser: argparse.ArgumentParser) -> None:
    """Take behind a subcommand, too, what Django takes before it."""
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, help=SUPPRESS)
    parser.add_argument("-v", "--verbosity", type=int, choices=range(4), help=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(name, action="store_true", default=SUPPRESS, help=SUPPRESS)


def _refuse_bytes(options: Mapping[str, Any]) -> None:
    """Refuse what was no UTF-8 on the command line: Python hands it on as lone surrogates."""
    for value in options.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not is_storable(text):
                raise UsageError(f"{text!a} is no text in UTF-8.")
