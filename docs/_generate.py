"""
Write the parts of the docs that are made from code.

A part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->` in any page; PARTS says
which function makes it. Run without arguments to rewrite the pages, with --check to name the ones
that are out of date (and fail).
"""  # noqa: INP001  a script beside the pages, not a package

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->)\n.*?(<!-- end: (?P=name) -->)", re.S)


def settings_table() -> str:
    from taskharbor_django.conf import ENTRIES

    facts = {name: described.metadata for name, described in ENTRIES.items()}
    return table(
        ("Entry", "Default", "Accepts", "Meaning"),
        (
            (f"`{name}`", it["shown"] or shown(it["default"]), it["kind"].accepts, it["meaning"])
            for name, it in facts.items()
        ),
    )


def checks_table() -> str:
    from taskharbor_django.checks import CATALOGUE

    return table(
        ("Id", "Message", "Hint"),
        (
            (f"`taskharbor.{code}`", with_blanks(text.message), with_blanks(text.hint))
            for code, text in CATALOGUE.items()
        ),
    )


def moves_table() -> str:
    from taskharbor_django.lifecycle import TRANSITIONS, JobState

    def verbs(before: JobState | None, after: JobState) -> str:
        found = [verb for verb, moves in TRANSITIONS.items() if after in moves.get(before, ())]
        return ", ".join(found)

    return table(
        ("from \\ to", *(f"`{state}`" for state in JobState)),
        (
            (f"`{before}`" if before else "no job", *(verbs(before, after) for after in JobState))
            for before in (None, *JobState)
            if any(verbs(before, after) for after in JobState)
        ),
    )


def rules_table() -> str:
    from taskharbor_django.lifecycle import STATE_RULES

    def names(columns: Iterable[str]) -> str:
        return ", ".join(f"`{column}`" for column in columns)

    return table(
        ("State", "Empty", "Set", "Zero", "Above zero"),
        (
            (f"`{s}`", names(r.empty), names(r.filled), names(r.zero), names(r.positive))
            for s, r in STATE_RULES.items()
        ),
    )


def dialects_table() -> str:
    from taskharbor_django.lifecycle import DIALECTS, DeadReason, JobState, StateFacts, state_in

    facts = {
        "`blocked`": StateFacts(state=JobState.BLOCKED),
        "`scheduled`": StateFacts(state=JobState.SCHEDULED),
        "`scheduled`, after a failure": StateFacts(state=JobState.SCHEDULED, failures=1),
        "`ready`": StateFacts(state=JobState.READY),
        "`inflight`": StateFacts(state=JobState.INFLIGHT),
        "`inflight`, started": StateFacts(state=JobState.INFLIGHT, started=True),
        "`done`": StateFacts(state=JobState.DONE),
        "`dead`": StateFacts(state=JobState.DEAD),
        "`dead`, permanent": StateFacts(state=JobState.DEAD, reason=DeadReason.PERMANENT),
        "`cancelled`": StateFacts(state=JobState.CANCELLED),
    }
    return table(
        ("stored", *(f'`"{name}"`' for name in DIALECTS)),
        (
            (shown_as, *(state_in(name, known) or "none" for name in DIALECTS))
            for shown_as, known in facts.items()
        ),
    )


PARTS: dict[str, Callable[[], str]] = {
    "moves": moves_table,
    "rules": rules_table,
    "dialects": dialects_table,
    "settings": settings_table,
    "checks": checks_table,
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head)]
    lines += [["---"] * len(lines[0])]
    lines += [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_blanks(text: str) -> str:
    """Turn the placeholders of a format string into words that look like blanks."""
    return re.sub(r"\{(\w+)(!r)?\}", r"*\1*", text)


def shown(value: Any) -> str:
    from taskharbor_django.backoff import Backoff

    if isinstance(value, timedelta):
        return duration(value)
    if isinstance(value, Backoff):
        growth = f"{value.strategy} from {duration(value.initial)} by {value.multiplier:g}"
        return f"{growth} up to {duration(value.maximum)}, jitter {value.jitter}"
    if value and isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(item)}" for key, item in value.items())
    if value and isinstance(value, tuple):
        return ", ".join(value)
    if type(value) is int:
        return f"{value:,}"
    return f"`{value!r}`"


def duration(value: timedelta) -> str:
    for unit in ("days", "hours", "minutes", "seconds"):
        count = value / timedelta(**{unit: 1})
        if count >= 1 and count.is_integer():
            return f"{count:g} {unit if count > 1 else unit[:-1]}"
    return f"{value.total_seconds():g} seconds"


def render(text: str) -> str:
    """Return a page with every generated part made anew."""
    return PART.sub(lambda found: f"{found[1]}\n\n{part(found['name'])}\n{found[3]}", text)


def part(name: str) -> str:
    if name not in PARTS:
        raise SystemExit(f"No function makes the part {name!r}; PARTS has {', '.join(PARTS)}.")
    return PARTS[name]()


def stale(pages: Iterable[Path] | None = None) -> list[Path]:
    """Return the pages, all of them unless told, whose generated parts are out of date."""
    chosen = sorted(DOCS.rglob("*.md")) if pages is None else pages
    return [page for page in chosen if render(page.read_text("utf-8")) != page.read_text("utf-8")]


def set_up() -> None:
    sys.path.insert(0, str(DOCS.parent))
    import django
    from django.conf import settings

    apps = ["django.contrib.auth", "django.contrib.contenttypes", "taskharbor_django"]
    settings.configure(INSTALLED_APPS=apps)
    django.setup()


def main(arguments: list[str]) -> int:
    set_up()
    pages = stale()
    for page in pages:
        sys.stdout.write(f"{page.relative_to(DOCS)}\n")
        if "--check" not in arguments:
            page.write_text(render(page.read_text("utf-8")), "utf-8")
    return int(bool(pages) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
