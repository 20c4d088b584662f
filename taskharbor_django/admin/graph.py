"""Where the boxes and lines of a workflow's picture stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from django.utils.translation import ngettext

from ..lifecycle import JobState
from ..operations.drawing import Drawing, Node

WIDTH, HEIGHT = 172, 44
GAP_X, GAP_Y = 52, 16
MARGIN, INDENT = 12, 10
BAR = 6
# More jobs than this that wait for the same and are waited for by the same share a box.
PILE = 8
CELL, CELLS = 15, 10
TALL = 800
# The state that a box with several jobs shows: the one that an operator should look at first.
WORST = (
    JobState.DEAD,
    JobState.INFLIGHT,
    JobState.READY,
    JobState.SCHEDULED,
    JobState.BLOCKED,
    JobState.CANCELLED,
    JobState.DONE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One job of a pile, or the share of one state in a box of many."""

    x: int
    y: int
    width: int
    height: int
    state: JobState
    node: Node | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """One job, a pile of jobs that are drawn one by one, or many that are only counted."""

    nodes: tuple[Node, ...]
    x: int
    y: int
    width: int = WIDTH

    @property
    def height(self) -> int:
        return _height(self.nodes)

    @property
    def job(self) -> Node | None:
        """The only job, if it is one."""
        return self.nodes[0] if len(self.nodes) == 1 and self.nodes[0].job else None

    @property
    def states(self) -> dict[JobState, int]:
        """How many of its jobs are in each state, what is worst first."""
        found = {state: sum(node.states.get(state, 0) for node in self.nodes) for state in WORST}
        return {state: number for state, number in found.items() if number}

    @property
    def state(self) -> JobState:
        return next(iter(self.states))

    @property
    def task(self) -> str:
        return self.nodes[0].task

    @property
    def name(self) -> str:
        """The last part of the task's path, short enough for the box."""
        short = self.task.rpartition(".")[2]
        return short if len(short) <= 22 else f"{short[:21]}…"

    @property
    def words(self) -> str:
        """What stands below the name: a state, or how many jobs there are."""
        number = sum(self.states.values())
        if len(self.states) == 1:
            return str(self.state.label) if number == 1 else f"{number} {self.state.label}"
        return ngettext("%(n)d job", "%(n)d jobs", number) % {"n": number}

    @property
    def cells(self) -> list[Cell]:
        if self.job:
            return []
        return self._pile() if len(self.nodes) > 1 else self._bar()

    def _pile(self) -> list[Cell]:
        """A small square for each job, in rows."""
        size = CELL - 3
        return [
            Cell(
                x=self.text_x + place % CELLS * CELL,
                y=self.y + HEIGHT + place // CELLS * CELL,
                width=size,
                height=size,
                state=next(iter(node.states)),
                node=node,
            )
            for place, node in enumerate(self.nodes)
        ]

    def _bar(self) -> list[Cell]:
        """A line in which each state has its share; what is there at all is seen."""
        number, cells, x = sum(self.states.values()), [], self.text_x
        for state, count in self.states.items():
            share = max(2, (WIDTH - 2 * INDENT) * count // number)
            cells.append(Cell(x=x, y=self.y + HEIGHT - 2, width=share, height=BAR, state=state))
            x += share
        return cells

    @property
    def text_x(self) -> int:
        return self.x + INDENT

    @property
    def name_y(self) -> int:
        return self.y + 18

    @property
    def words_y(self) -> int:
        return self.y + 34

    @property
    def middle(self) -> int:
        return self.y + self.height // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrow:
    """One line with its way."""

    kind: str
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The whole picture."""

    boxes: list[Box]
    arrows: list[Arrow]
    width: int
    height: int
    collapsed: bool
    left_out: int


def graph(drawing: Drawing) -> Graph:
    """Lay a drawing out: a column for each depth, each box beside those that it waits for."""
    piles = _piles(drawing)
    pile_of = {node.id: name for name, nodes in piles.items() for node in nodes}
    lines = {
        (pile_of[line.source], pile_of[line.target], line.kind): None for line in drawing.lines
    }
    boxes = _placed(piles, lines)
    arrows = [
        Arrow(kind=kind, path=_path(boxes[source], boxes[target])) for source, target, kind in lines
    ]
    return Graph(
        boxes=list(boxes.values()),
        arrows=arrows,
        width=max((box.x for box in boxes.values()), default=MARGIN) + WIDTH + MARGIN,
        height=max((box.y + box.height for box in boxes.values()), default=0) + MARGIN,
        collapsed=drawing.collapsed,
        left_out=drawing.left_out,
    )


Piles = dict[str, tuple[Node, ...]]  # the id of the first -> what stands in one box


def _piles(drawing: Drawing) -> Piles:
    """Put jobs together that differ in nothing that lines could show, where they are many."""
    around: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for line in drawing.lines:
        around[line.source].add(("", line.target, line.kind))
        around[line.target].add((line.source, "", line.kind))
    alike: dict[tuple[object, ...], list[Node]] = defaultdict(list)
    for node in drawing.nodes:
        alike[node.depth, node.task, frozenset(around[node.id])].append(node)
    piles: Piles = {}
    for nodes in alike.values():
        each = [tuple(nodes)] if len(nodes) > PILE else [(node,) for node in nodes]
        piles |= {pile[0].id: pile for pile in each}
    return piles


def _height(nodes: tuple[Node, ...]) -> int:
    if len(nodes) > 1:
        return HEIGHT + -(-len(nodes) // CELLS) * CELL + INDENT - 3
    return HEIGHT if nodes[0].job else HEIGHT + BAR + 4


def _placed(piles: Piles, lines: Iterable[tuple[str, str, str]]) -> dict[str, Box]:
    """Give each its place, column by column; in a tall picture all begins at the top."""
    columns: dict[int, list[str]] = defaultdict(list)
    for name, nodes in piles.items():
        columns[nodes[0].depth].append(name)
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target, _ in lines:
        sources[target].append(source)
    heights = {name: _height(nodes) for name, nodes in piles.items()}
    tall = any(sum(heights[it] + GAP_Y for it in names) > TALL for names in columns.values())
    boxes: dict[str, Box] = {}
    for depth in sorted(columns):
        wishes = {
            name: _wish(heights[name], [boxes[it] for it in sources[name]], tall=tall)
            for name in columns[depth]
        }
        for name, y in _stacked(wishes, heights, centred=not tall).items():
            x = MARGIN + (depth - 1) * (WIDTH + GAP_X)
            boxes[name] = Box(nodes=piles[name], x=x, y=y)
    top = min((box.y for box in boxes.values()), default=0)
    return {name: replace(box, y=box.y - top + MARGIN) for name, box in boxes.items()}


def _wish(height: int, before: list[Box], *, tall: bool) -> int:
    """Where a box would stand alone: in the middle of those before it, or level with the first."""
    if not before:
        return 0
    if tall:
        return min(box.y for box in before)
    return sum(box.middle for box in before) // len(before) - height // 2


def _stacked(wishes: dict[str, int], heights: dict[str, int], *, centred: bool) -> dict[str, int]:
    """Keep boxes apart, in the order of their wishes and as near to these as may be."""
    places: dict[str, int] = {}
    free = min(wishes.values())
    for name in sorted(wishes, key=lambda each: wishes[each]):
        places[name] = max(wishes[name], free)
        free = places[name] + heights[name] + GAP_Y
    shift = sum(places[it] - wishes[it] for it in places) // len(places) if centred else 0
    return {name: y - shift for name, y in places.items()}


def _path(source: Box, target: Box) -> str:
    """A curve from the right side of one box to the left side of the other."""
    x1, y1 = source.x + WIDTH, source.middle
    x2, y2 = target.x, target.middle
    bend = (x2 - x1) // 2
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
