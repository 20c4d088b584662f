"""
Measure the product against raw SQL, on a server of its own.

Ratios are between figures of one round, because machines drift. With --peers other queues that
are installed are measured in the same run.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# Each of these registers what it measures.
from . import (
    against,
    backlogs,  # noqa: F401
    chart,
    drains,  # noqa: F401
    enqueues,  # noqa: F401
    latencies,  # noqa: F401
    leases,  # noqa: F401
    processes,  # noqa: F401
    report,
    scaling,  # noqa: F401
    sleepers,  # noqa: F401
)
from .ground import on_postgresql
from .measures import MEASURES, QUICK, Sizes

WIDTH = 120  # where no terminal says how wide it is


def arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--rounds", type=int, help="how often each is measured (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the rates of --peers")
    parser.add_argument("--peers", action="store_true", help="measure other queues, and only those")
    asked = parser.parse_args(argv)
    if unknown := [name for name in asked.measures if name not in MEASURES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    return asked


def main(argv=None):
    asked = arguments(argv)
    sizes = QUICK if asked.quick else Sizes()
    if asked.peers:
        chosen = [against.comparison(database) for database in ("postgresql", "sqlite")]
    else:
        chosen = [MEASURES[name] for name in asked.measures or MEASURES]
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with on_postgresql() as ground:
        failed = run_all(chosen, ground, sizes, asked.rounds or sizes.rounds, console)
    console.print(report.table(chosen))
    if asked.json:
        asked.json.write_text(report.as_json(chosen, sizes))
    if asked.chart and asked.peers:
        title = "No-op jobs per second, one worker process, PostgreSQL 18"
        asked.chart.write_text(chart.bar_chart(title, against.bars(chosen[0])))
    return 1 if failed else 0


def run_all(chosen, ground, sizes, rounds, console):
    """Measure each so many times; return those that failed, which do not stop the others."""
    failed = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bars = [progress.add_task(it.title, total=it.rounds or rounds) for it in chosen]
        for measure, bar in zip(chosen, bars, strict=True):
            for _ in range(measure.rounds or rounds):
                try:
                    run_once(measure, ground, sizes)
                except Exception:  # noqa: BLE001  shown, and the rest goes on
                    console.print_exception()
                    failed.append(measure)
                progress.advance(bar)
    return failed


def run_once(measure, ground, sizes):
    ground.clear()
    for name, value in measure.run(ground, sizes).items():
        measure.figure(name).values.append(value)


if __name__ == "__main__":
    sys.exit(main())
