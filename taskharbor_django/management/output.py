"""What a command shows: tables for people, JSON for programs, a bar while it takes long."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils.timezone import localtime

GAP = "  "
NARROWEST, READABLE = 6, 12
BAR = 30


class Name(int):
    """A number that names something, as a process id does: its thousands are not set apart."""


class Output:
    """Writes what a subcommand found, in the form that was asked for."""

    def __init__(self, stdout: OutputWrapper, stderr: OutputWrapper, *, as_json: bool) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self.as_json = as_json

    def rows(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        after: str | None = None,
        spare: Sequence[str] = (),
    ) -> None:
        """
        A table; `after` is the cursor of the next page, None on the last.

        Columns of `spare` are left out, in this order, where a terminal has no room for them.
        """
        found = [list(row) for row in rows]
        if self.as_json:
            named = [dict(zip(columns, row, strict=True)) for row in found]
            self._json({"rows": named, "after": after})
            return
        lines, left_out = laid_out(columns, found, self._width(), spare)
        for line in lines:
            self._stdout.write(line)
        if left_out:
            self._stdout.write(f"\nno room for: {', '.join(left_out)}")
        if after is not None:
            self._stdout.write(f"\nmore: --after {after}")

    def facts(self, facts: Mapping[str, Any]) -> None:
        """One thing: a name and a value on each line."""
        if self.as_json:
            self._json(facts)
            return
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            first, *others = shown(value, lines=True).splitlines() or [""]
            self._stdout.write(f"{name:{width}}{GAP}{first}".rstrip())
            for line in others:
                self._stdout.write(f"{'':{width}}{GAP}{line}".rstrip())

    def say(self, line: str) -> None:
        """A line for people alone."""
        if not self.as_json:
            self._stdout.write(line)

    def progress(self, done: int, total: int) -> None:
        """Draw a bar, where a person watches."""
        if self.as_json or not self._stderr.isatty():
            return
        part = min(1.0, done / total) if total else 1.0
        bar = "#" * int(part * BAR)
        self._stderr.write(f"\r[{bar:{BAR}}] {done:,} of {total:,}", ending="")
        self._stderr.flush()

    def end_progress(self) -> None:
        if not self.as_json and self._stderr.isatty():
            self._stderr.write("")

    def _json(self, value: Any) -> None:
        self._stdout.write(json.dumps(value, default=plain, ensure_ascii=False))

    def _width(self) -> int | None:
        """How wide a line may be; None where nobody looks at it on a screen."""
        return shutil.get_terminal_size().columns if self._stdout.isatty() else None


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def shown(value: Any, *, lines: bool = False) -> str:
    """A value as people read it, and as no terminal obeys it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{localtime(value):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, timedelta):
        return ago(value)
    if isinstance(value, int) and not isinstance(value, Name):
        return f"{value:,}"
    if isinstance(value, dict | list | tuple):
        value = json.dumps(value, default=plain, ensure_ascii=False)
    kept = "\n" if lines else ""
    return "".join(
        c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in str(value)
    )


def ago(span: timedelta) -> str:
    """A span in its largest two units: 2 d 3 h, 5 min 10 s."""
    seconds = max(0, int(span.total_seconds()))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, seconds = divmod(seconds, size)
        if number or parts or unit == "s":
            parts.append(f"{number} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 ")) or "0 s"


class Column:
    """One column of a table: its cells, and how narrow it may become."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name = name
        self.right = bool(values) and all(isinstance(value, int | float | None) for value in values)
        self._cells = [name.upper(), *map(shown, values)]
        self.width = max(map(len, self._cells))
        # Half an id, a number or a time says nothing; half a text says something.
        is_text = any(isinstance(value, str) for value in values)
        self.least = min(self.width, max(len(name), READABLE)) if is_text else self.width

    def cell(self, place: int) -> str:
        text = self._cells[place]
        if len(text) > self.width:
            text = _cut(text, self.width)
        return text.rjust(self.width) if self.right else text.ljust(self.width)


def laid_out(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    width: int | None,
    spare: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """The lines of a table no wider than the terminal, and which spare columns it left out."""
    columns = [Column(name, [row[place] for row in rows]) for place, name in enumerate(names)]
    left_out: list[str] = []
    for name in spare:
        if width is None or _room(it.least for it in columns) <= width:
            break
        columns = [column for column in columns if column.name != name]
        left_out.append(name)
    _narrow(columns, width)
    lines = [GAP.join(it.cell(place) for it in columns) for place in range(len(rows) + 1)]
    return [line.rstrip() for line in lines], left_out


def _narrow(columns: list[Column], width: int | None) -> None:
    """Cut the widest until all fit: texts first, then whatever there is."""
    while width is not None and _room(it.width for it in columns) > width:
        wide = [it for it in columns if it.width > it.least]
        wide = wide or [it for it in columns if it.width > NARROWEST]
        if not wide:
            return
        max(wide, key=lambda it: it.width).width -= 1


def _room(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + len(GAP) * (len(each) - 1)


def _cut(text: str, width: int) -> str:
    """Cut a text at its end, and a dotted name at its beginning, which says least."""
    ellipsis = "\N{HORIZONTAL ELLIPSIS}"
    if "." in text and " " not in text:
        return ellipsis + text[len(text) - width + 1 :]
    return text[: width - 1] + ellipsis
