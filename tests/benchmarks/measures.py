"""What is measured, and the goal of each figure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What a figure should be: at least, or at most."""

    least: float | None = None
    most: float | None = None

    def __str__(self):
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"

    def is_met(self, value):
        return value >= self.least if self.least is not None else value <= self.most


@dataclass(kw_only=True, slots=True)
class Figure:
    """One number, measured several times."""

    name: str
    unit: str = "ratio"
    goal: Goal | None = None
    values: list[float] = field(default_factory=list)

    @property
    def median(self):
        return median(self.values)

    @property
    def met(self):
        return None if self.goal is None else self.goal.is_met(self.median)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How much of everything: whole, or a quick look that shows that it works."""

    rounds: int = 3
    jobs: int = 20_000
    singles: int = 2_000
    many: int = 50_000
    flood: int = 1_000_000
    backlog: int = 1_000_000
    pickups: int = 200
    hold: float = 120.0
    held_leases: int = 10_000


QUICK = Sizes(
    rounds=1,
    jobs=2_000,
    singles=100,
    many=2_000,
    flood=20_000,
    backlog=5_000,
    pickups=10,
    hold=4.0,
    held_leases=1_000,
)

Values = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A function that measures once, and the figures that it gives."""

    name: str
    title: str
    run: Callable[..., Values]
    figures: tuple[Figure, ...]
    rounds: int | None = None

    def figure(self, name):
        return next(figure for figure in self.figures if figure.name == name)


MEASURES: dict[str, Measure] = {}


def measure(title, *, rounds=None, **figures):
    """Register a function that returns a value for each of these figures."""

    def register(run):
        made = tuple(
            Figure(name=name, unit=unit, goal=goal) for name, (unit, goal) in figures.items()
        )
        name = run.__name__
        MEASURES[name] = Measure(name=name, title=title, run=run, figures=made, rounds=rounds)
        return run

    return register


def ratio(*, least=None, most=None):
    return "ratio", Goal(least=least, most=most)


def fact(unit):
    """A figure without a goal, shown for what it is."""
    return unit, None


def limit(unit, *, most):
    return unit, Goal(most=most)
