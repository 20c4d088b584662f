"""How a subcommand announces itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..output import Output

Options = dict[str, Any]
Run = Callable[[Options, Output], int]

AWAY = 3  # exit code where the database cannot be asked; 2 is argparse's own for a wrong line


class Adding:
    """Adds subcommands to a parser, each with --json, --database and the function that runs it."""

    def __init__(self, subparsers: Any, parents: list[Any]) -> None:
        self._subparsers = subparsers
        self._parents = parents

    def command(self, name: str, run: Run, text: str) -> Any:
        parser = self._subparsers.add_parser(
            name, help=text, description=text, parents=self._parents
        )
        parser.set_defaults(run=run)
        return parser

    def group(self, name: str, run: Run, text: str, metavar: str) -> Adding:
        """A subcommand with subcommands; without one it is `run`."""
        parser = self.command(name, run, text)
        below = parser.add_subparsers(metavar=metavar, title="subcommands")
        return Adding(below, self._parents)
