"""A row of numbers as the path of a small picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..operations.figures import Minute

WIDTH, HEIGHT = 120, 28


@dataclass(frozen=True, kw_only=True, slots=True)
class Sparkline:
    """Two areas over the same minutes: all that ended a run, and of these what failed."""

    all: str
    failed: str
    most: int
    width: int = WIDTH
    height: int = HEIGHT


def sparkline(minutes: Sequence[Minute]) -> Sparkline:
    totals = [sum(minute) for minute in minutes]
    failures = [minute.failed + minute.dead for minute in minutes]
    most = max(totals, default=0)
    return Sparkline(all=_area(totals, most), failed=_area(failures, most), most=most)


def _area(numbers: Sequence[int], most: int) -> str:
    """One step for each number, from the ground and back to it; nothing at all for zeros."""
    if not any(numbers):
        return ""
    step = WIDTH / len(numbers)
    parts = [f"M0 {HEIGHT}"]
    for place, number in enumerate(numbers):
        # What happened at all is seen: at least one unit high.
        top = HEIGHT - (max(1.0, (HEIGHT - 1) * number / most) if number else 0)
        parts.append(f"V{top:.1f}H{(place + 1) * step:.1f}")
    return "".join([*parts, f"V{HEIGHT}Z"])
