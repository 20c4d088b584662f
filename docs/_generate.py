"""
Write the parts of the docs that are made from code.

A part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->` in any page; PARTS says
which function makes it, and FILES which files are made whole. Run without arguments to rewrite what
is out of date, with --check to name it (and fail).
"""  # noqa: INP001  a script beside the pages, not a package

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

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


# -- the picture of the moves --------------------------------------------------------------------

PICTURE = DOCS / "_static" / "lifecycle.svg"
PICTURE_WIDTH, PICTURE_HEIGHT = 756, 540
START_X, START_Y = 180, 24
BOX_HEIGHT = 38
LINE_HEIGHT = 17

# The middle and the width of the box of each state, and its colour.
BOXES = {
    "blocked": (180, 118, 150, "waiting"),
    "scheduled": (180, 214, 150, "waiting"),
    "ready": (180, 310, 150, "waiting"),
    "inflight": (464, 310, 110, "inflight"),
    "done": (652, 214, 110, "done"),
    "dead": (464, 448, 110, "dead"),
    "cancelled": (652, 448, 110, "cancelled"),
}
WAITING = ("blocked", "scheduled", "ready")
OPEN = (*WAITING, "inflight")


class Frame(NamedTuple):
    """A frame around several states, with a word in one of its upper corners."""

    x: int
    y: int
    width: int
    height: int
    title: str
    title_x: int
    anchor: str


FRAMES = [
    Frame(12, 50, 524, 310, "open", 522, "end"),
    Frame(24, 64, 286, 284, "waiting", 38, "start"),
]


class Route(NamedTuple):
    """
    Lines from states to states; their verbs are those that make every one of these moves.

    A verb that an earlier route has made is left out, so those from a frame come first.
    """

    origins: tuple[str | None, ...]
    targets: tuple[str, ...]
    lines: tuple[str, ...]
    label: tuple[int, int, str]
    """where the verbs stand, and whether that is their start, middle or end"""
    in_a_row: int = 3
    style: str = "usual"
    joins: tuple[int, int] | None = None
    """where it runs into another line, instead of an arrow"""


ROUTES = [
    Route((None,), WAITING, ("M180 30 V62",), (189, 45, "start")),
    Route(OPEN, ("dead",), ("M444 360 V427",), (435, 399, "end")),
    Route(OPEN, ("cancelled",), ("M536 340 H607 Q617 340 617 350 V427",), (609, 399, "end")),
    Route(("dead",), WAITING, ("M409 448 H190 Q180 448 180 438 V350",), (298, 439, "middle")),
    Route(("blocked",), ("scheduled",), ("M125 137 V193",), (134, 170, "start")),
    Route(
        ("blocked",),
        ("ready",),
        ("M105 118 Q93 118 93 130 V298 Q93 310 103 310",),
        (86, 170, "end"),
    ),
    Route(("scheduled",), ("ready",), ("M125 233 V289",), (134, 258, "start"), 1),
    Route(("ready",), ("scheduled",), ("M219 291 V235",), (228, 267, "start"), 1),
    Route(("ready",), ("inflight",), ("M255 300 H407",), (361, 292, "middle")),
    Route(("inflight",), ("ready",), ("M409 320 H257",), (361, 338, "middle"), 2),
    Route(
        ("inflight",),
        ("scheduled",),
        ("M464 291 V224 Q464 214 454 214 H257",),
        (361, 206, "middle"),
    ),
    Route(("inflight",), ("done",), ("M519 302 H642 Q652 302 652 292 V235",), (588, 294, "middle")),
    Route(("inflight",), ("dead",), ("M484 329 V427",), (493, 390, "start"), 1),
    Route(
        ("inflight",),
        ("cancelled",),
        ("M519 318 H654 Q664 318 664 328 V427",),
        (673, 368, "start"),
        1,
    ),
    Route(("dead",), ("cancelled",), ("M519 448 H595",), (557, 440, "middle")),
    Route(
        (None,),
        ("cancelled", "dead"),
        (
            "M186 24 H732 Q742 24 742 34 V438 Q742 448 732 448 H709",
            "M742 438 V496 Q742 506 732 506 H474 Q464 506 464 496 V469",
        ),
        (320, 17, "start"),
        style="rare",
    ),
    Route(
        ("blocked",),
        ("cancelled", "dead"),
        ("M255 118 H742",),
        (320, 110, "start"),
        style="rare",
        joins=(742, 118),
    ),
]
REMARKS = [
    (729, 137, "when a job it waits for", "end"),
    (729, 154, "is dead or cancelled", "end"),
]

PICTURE_STYLE = """
  svg { --paper: #fcfcfd; --edge: #d8dbe2; --ink: #1d2230; --line: #596273; --faint: #667080;
    --frame: #f1f3f7; --inner: #ffffff;
    --waiting: #e2ebfb; --waiting-edge: #3f70c9; --inflight: #fdefcd; --inflight-edge: #b27a0c;
    --done: #daf2e1; --done-edge: #2f8a50; --dead: #fbe0e0; --dead-edge: #c53f3f;
    --cancelled: #e8e9ee; --cancelled-edge: #767d89; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #17191d; --edge: #363a43; --ink: #e8eaee; --line: #a5adba; --faint: #9aa2b0;
      --frame: #1f2228; --inner: #282c34;
      --waiting: #22345a; --waiting-edge: #7ea6f2; --inflight: #46381a; --inflight-edge: #e2b34f;
      --done: #1c3d29; --done-edge: #63c688; --dead: #4c2426; --dead-edge: #f08484;
      --cancelled: #3a3f49; --cancelled-edge: #9ca4b1; }
  }
  text { fill: var(--ink); font: 13.5px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
  .state { font: 600 15px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
  .remark { fill: var(--faint); font-size: 13px; font-style: italic; }
  .paper { fill: var(--paper); stroke: var(--edge); }
  .frame { fill: var(--frame); stroke: var(--edge); }
  .frame ~ .frame { fill: var(--inner); }
  .line { fill: none; stroke: var(--line); stroke-width: 1.5; }
  .rare { stroke-width: 1.2; stroke-dasharray: 5 4; }
  .head, .dot { fill: var(--line); }
"""
ARROW_HEAD = """\
<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9"
  markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 1 10 5 0 9Z"/></marker>"""


def picture() -> str:
    """Draw the moves: where things stand is said above, what moves where by TRANSITIONS."""
    width, height = PICTURE_WIDTH, PICTURE_HEIGHT
    colours = "".join(
        f"  .{name} {{ fill: var(--{name}); stroke: var(--{name}-edge); stroke-width: 1.5; }}\n"
        for name in sorted({colour for *_, colour in BOXES.values()})
    )
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    lines, staying = _lines()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Moves of a job">',
        f"<style>{PICTURE_STYLE}{colours}</style>",
        ARROW_HEAD,
        f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        *(_rect("frame", *frame[:4]) for frame in FRAMES),
        *(_text(it.title_x, it.y + 20, it.title, it.anchor, "remark") for it in FRAMES),
        *lines,
        _dot(START_X, START_Y, 6),
        *(part for state, place in BOXES.items() for part in _box(state, *place)),
        *(_text(*remark, "remark") for remark in REMARKS),
        _text(24, height - 15, staying, "start", "remark"),
        "</svg>",
    ]
    return "".join(f"{part}\n" for part in parts)


def _lines() -> tuple[list[str], str]:
    """All lines with their verbs, and a sentence about moves that stay where they are."""
    from taskharbor_django.lifecycle import TRANSITIONS

    moves = [
        (verb.value, before and before.value, after.value)
        for verb, table in TRANSITIONS.items()
        for before, targets in table.items()
        for after in targets
    ]
    left = {move for move in moves if move[1] != move[2]}
    drawn: list[str] = []
    for route in ROUTES:
        pairs = [(before, after) for before in route.origins for after in route.targets]
        verbs = [verb.value for verb in TRANSITIONS if all((verb.value, *p) in left for p in pairs)]
        if not verbs:
            raise SystemExit(f"ROUTES: no verb is left from {route.origins} to {route.targets}.")
        left -= {(verb, *pair) for verb in verbs for pair in pairs}
        drawn += _line(route, verbs)
    if left:
        raise SystemExit(f"ROUTES has no line for {sorted(left, key=str)}.")
    return drawn, _staying([move for move in moves if move[1] == move[2]])


def _staying(moves: list[tuple[str, str | None, str]]) -> str:
    verbs = " and ".join(sorted({verb for verb, *_ in moves}))
    *states, last = [state for state in BOXES if state in {after for *_, after in moves}]
    return f"{verbs} may also leave a job {', '.join(states)} or {last}, as it was"


def _line(route: Route, verbs: list[str]) -> list[str]:
    arrow = "" if route.joins else ' marker-end="url(#head)"'
    drawn = [f'<path class="line {route.style}" d="{line}"{arrow}/>' for line in route.lines]
    if route.joins:
        drawn.append(_dot(*route.joins, 3))
    x, y, anchor = route.label
    starts = range(0, len(verbs), route.in_a_row)
    rows = ",\n".join(", ".join(verbs[start : start + route.in_a_row]) for start in starts)
    for number, row in enumerate(rows.split("\n")):
        drawn.append(_text(x, y + LINE_HEIGHT * number, row, anchor, "verb"))
    return drawn


def _box(state: str, x: int, y: int, width: int, colour: str) -> list[str]:
    corner = x - width // 2, y - BOX_HEIGHT // 2
    return [
        _rect(colour, *corner, width, BOX_HEIGHT),
        _text(x, y + 5, state, "middle", "state"),
    ]


def _rect(style: str, x: int, y: int, width: int, height: int) -> str:
    return f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}" rx="9"/>'


def _dot(x: int, y: int, radius: int) -> str:
    return f'<circle class="dot" cx="{x}" cy="{y}" r="{radius}"/>'


def _text(x: int, y: int, text: str, anchor: str, style: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def diagram() -> str:
    """Show the picture, in the colours that the reader chose where the theme has a switch."""
    place = f"../{PICTURE.relative_to(DOCS).as_posix()}"
    scheme = "body[data-theme=light]%20img{color-scheme:light}"
    scheme += "body[data-theme=dark]%20img{color-scheme:dark}"
    told = "The states as boxes, the verbs as arrows; the table below has the same moves."
    return f'<link rel="stylesheet" href="data:text/css,{scheme}">\n\n![{told}]({place})\n'


def left_table() -> str:
    from taskharbor_django.operations import Left

    return table(("Reason", "Jobs that were"), ((f"`{it.value}`", str(it.label)) for it in Left))


def signals_table() -> str:
    from taskharbor_django import signals

    names = {id(signal): name for name, signal in vars(signals).items()}
    return table(
        ("Signal", "Verb", "Sent when", "More facts"),
        (
            (
                f"`{names[id(signal)]}`",
                verb,
                signal.meaning,
                ", ".join(f"`{fact}`" for fact in signal.facts),
            )
            for verb, signal in signals.SIGNALS.items()
        ),
    )


def metrics_table() -> str:
    from taskharbor_django import metrics

    counted = [
        it for it in vars(metrics).values() if isinstance(it, metrics.Counter | metrics.Histogram)
    ]
    rows = [(f"taskharbor_{name}", "gauge", *more) for name, *more in metrics._GAUGES]
    rows += [
        (it._name + "_total" * (it._type == "counter"), it._type, it._documentation, it._labelnames)
        for it in counted
    ]
    return table(
        ("Metric", "Kind", "Meaning", "Labels"),
        (
            (f"`{name}`", kind, text, ", ".join(f"`{label}`" for label in labels))
            for name, kind, text, labels in rows
        ),
    )


def permissions_table() -> str:
    from django.apps import apps

    return table(
        ("Permission", "Allows"),
        (
            (f"`taskharbor.{code}`", str(text))
            for model in apps.get_app_config("taskharbor").get_models()
            for code, text in model._meta.permissions
        ),
    )


def models_tables() -> str:
    # Imported by name and from here: a test may have loaded this file from its path.
    sys.path.insert(0, str(DOCS))
    columns = importlib.import_module("_columns")
    sys.path.remove(str(DOCS))
    made: str = columns.tables(table)
    return made


def screens_table() -> str:
    """What a user must be allowed to see and add each model in the admin."""
    from django.contrib.admin import site

    from taskharbor_django.admin.screen import Screen

    def forms(screen: Any) -> str:
        name, own = screen.model._meta.model_name, vars(type(screen))
        verbs = [it for it in ("add", "change", "delete") if f"has_{it}_permission" in own]
        return ", ".join(f"`taskharbor.{verb}_{name}`" for verb in verbs) or "nothing"

    return table(
        ("Page", "Seen with", "Edited as a form with"),
        sorted(
            (
                str(screen.opts.verbose_name_plural),
                f"`taskharbor.view_{screen.opts.model_name}`",
                forms(screen),
            )
            for screen in site._registry.values()
            if isinstance(screen, Screen)
        ),
    )


def exceptions_tables() -> str:
    """One table for each section of the module."""
    from taskharbor_django import exceptions

    sections = re.split(r"# -- (.+?) -+\n", inspect.getsource(exceptions))
    found = [("The root", sections[0])]
    found += [(f"{it[0].upper()}{it[1:]}", code) for it, code in _pairs(sections[1:])]
    parts = []
    for title, code in found:
        names = re.findall(r"^class (\w+)", code, re.M)
        rows = (_exception(getattr(exceptions, name)) for name in names)
        head = ("Exception", "Is also", "Message, unless another is given", "Attributes")
        parts.append(f"## {title}\n\n{table(head, rows)}")
    return "\n".join(parts)


def _pairs(items: list[str]) -> Iterable[tuple[str, str]]:
    return zip(items[::2], items[1::2], strict=True)


def _exception(kind: type[BaseException]) -> tuple[str, str, str, str]:
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not Exception)
    text = (kind.__doc__ or "").partition("\n")[0]
    return f"`{kind.__name__}`", bases, text, ", ".join(f"`{it}`" for it in _facts(kind))


def _facts(kind: type[BaseException]) -> list[str]:
    return [name for base in kind.__mro__ for name in inspect.get_annotations(base)]


PARTS: dict[str, Callable[[], str]] = {
    "diagram": diagram,
    "moves": moves_table,
    "rules": rules_table,
    "dialects": dialects_table,
    "settings": settings_table,
    "checks": checks_table,
    "left": left_table,
    "permissions": permissions_table,
    "signals": signals_table,
    "metrics": metrics_table,
    "models": models_tables,
    "screens": screens_table,
    "exceptions": exceptions_tables,
}
FILES: dict[Path, Callable[[], str]] = {PICTURE: picture}


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


def made(path: Path) -> str:
    """Return what a page or a generated file should be."""
    return FILES[path]() if path in FILES else render(path.read_text("utf-8"))


def is_stale(path: Path) -> bool:
    return not path.exists() or made(path) != path.read_text("utf-8")


def stale(paths: Iterable[Path] | None = None) -> list[Path]:
    """Return the pages and files, all of them unless told, that are out of date."""
    chosen = [*FILES, *sorted(DOCS.rglob("*.md"))] if paths is None else paths
    return [path for path in chosen if is_stale(path)]


def set_up() -> None:
    sys.path.insert(0, str(DOCS.parent))
    import django
    from django.conf import settings
    from django.contrib import admin

    contrib = [f"django.contrib.{it}" for it in ("admin", "auth", "contenttypes", "messages")]
    settings.configure(
        INSTALLED_APPS=[*contrib, "django.contrib.sessions", "taskharbor_django"], USE_TZ=True
    )
    django.setup()
    admin.autodiscover()


def main(arguments: list[str]) -> int:
    set_up()
    found = stale()
    for path in found:
        sys.stdout.write(f"{path.relative_to(DOCS)}\n")
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made(path), "utf-8")
    return int(bool(found) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
