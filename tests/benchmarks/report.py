"""What was measured: as a table and as JSON."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version

from rich.table import Table


def words(name):
    return name.replace("_", " ")


def amount(value):
    """A number with as many digits as it deserves."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def table(measures):
    made = Table(title="Medians and ranges; ratios are of figures of the same round")
    for heading in ("measure", "figure", "median", "range", "unit", "goal", ""):
        made.add_column(heading, justify="right" if heading in {"median", "range"} else "left")
    for measure in measures:
        title = measure.title
        for figure in measure.figures:
            if figure.values:
                made.add_row(title, *cells(figure))
                title = ""
        made.add_section()
    return made


def cells(figure):
    span = f"{amount(min(figure.values))} to {amount(max(figure.values))}"
    goal = "" if figure.goal is None else str(figure.goal)
    met = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[figure.met]
    return words(figure.name), amount(figure.median), span, figure.unit, goal, met


def as_json(measures, sizes):
    """Everything, with the machine it was measured on."""
    return json.dumps(
        {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {
                "cpus": os.cpu_count(),
                "load": os.getloadavg(),
                "python": platform.python_version(),
                "django": version("django"),
                "psycopg": version("psycopg"),
                "system": f"{platform.system()} {platform.machine()}",
            },
            "jobs": sizes.jobs,
            "measures": {
                measure.name: {
                    figure.name: {
                        "unit": figure.unit,
                        "values": figure.values,
                        "median": figure.median,
                        "goal": figure.goal and str(figure.goal),
                        "met": figure.met,
                    }
                    for figure in measure.figures
                    if figure.values
                }
                for measure in measures
            },
        },
        indent=2,
    )
