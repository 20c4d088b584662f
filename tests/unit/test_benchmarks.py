"""What the benchmarks make of their numbers; the measuring itself is `tox -e bench`."""

import json
import time
from xml.etree import ElementTree as ET

from tests.benchmarks.chart import bar_chart
from tests.benchmarks.measures import Figure, Goal
from tests.benchmarks.meter import Meter


def test_a_goal_is_met_at_exactly_its_bound():
    assert Goal(least=0.6).is_met(0.6)
    assert not Goal(least=0.6).is_met(0.59)
    assert Goal(most=1.3).is_met(1.3)
    assert not Goal(most=1.3).is_met(1.31)


def test_a_figure_is_judged_by_its_median():
    figure = Figure(name="rate", goal=Goal(least=10), values=[1.0, 11.0, 12.0])
    assert (figure.median, figure.met) == (11.0, True)


def test_a_meter_writes_when_the_last_run_begins(tmp_path):
    path = tmp_path / "meter.json"
    meter = Meter(path, 3)
    before = time.monotonic()
    meter.hit()
    meter.hit()
    assert not path.exists()
    meter.hit()
    read = json.loads(path.read_text())
    assert before <= read["first"] <= read["last"] <= time.monotonic()


def test_the_picture_is_well_formed_and_escapes_names():
    picture = ET.fromstring(  # noqa: S314  it is our own
        bar_chart("A & B", [("<ours>", 10.0, True), ("other", 5.0, False)])
    )
    texts = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["A & B", "<ours>", "10", "other", "5"]
    wide = [int(node.get("width")) for node in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert wide[0] == 2 * wide[1]
