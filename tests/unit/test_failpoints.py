"""Named places: nothing when off, what the test wants when armed, by hand or by environment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taskharbor_django import failpoints
from taskharbor_django.failpoints import FailpointReached, arm_from_environment, armed, reach

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def disarmed(monkeypatch):
    monkeypatch.setattr(failpoints, "_armed", {})


def test_a_place_that_nobody_armed_does_nothing():
    assert reach("settle.moved") is None


def test_an_armed_place_runs_its_action_each_time_it_is_reached():
    reached = []
    with armed("settle.moved", lambda: reached.append("moved")):
        reach("settle.moved")
        reach("settle.locked")
        reach("settle.moved")
    assert reached == ["moved", "moved"]


def test_a_place_is_disarmed_after_the_block_also_when_the_action_raised():
    def stumble():
        raise LookupError

    with pytest.raises(LookupError), armed("settle.moved", stumble):
        reach("settle.moved")
    reach("settle.moved")


def test_a_place_armed_twice_has_its_first_action_back_after_the_inner_block():
    reached = []
    with armed("place", lambda: reached.append("outer")):
        with armed("place", lambda: reached.append("inner")):
            reach("place")
        reach("place")
    reach("place")
    assert reached == ["inner", "outer"]


def test_the_environment_arms_several_places(monkeypatch):
    monkeypatch.setenv("TASKHARBOR_FAILPOINTS", "settle.moved=raise, claim.done = raise, ")
    arm_from_environment()
    for name in ("settle.moved", "claim.done"):
        with pytest.raises(FailpointReached):
            reach(name)
    reach("settle.locked")


def test_an_empty_environment_arms_nothing(monkeypatch):
    monkeypatch.delenv("TASKHARBOR_FAILPOINTS", raising=False)
    arm_from_environment()
    assert failpoints._armed == {}


@pytest.mark.parametrize("value", ["settle.moved=explode", "settle.moved"])
def test_an_action_that_does_not_exist_is_refused_with_those_that_do(value):
    with pytest.raises(ValueError, match=f"{value}.*exit, kill, raise, stop"):
        arm_from_environment(value)


def reach_in_a_child(action):
    """Start a process of its own that is armed by its environment and reaches the place."""
    program = (
        "from taskharbor_django.failpoints import arm_from_environment, reach\n"
        "arm_from_environment()\n"
        "reach('here')\n"
        "print('went on', flush=True)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"TASKHARBOR_FAILPOINTS": f"here={action}"},
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize(("action", "code"), [("exit", 70), ("kill", -signal.SIGKILL)])
def test_a_child_process_ends_where_it_is_told_to(action, code):
    with reach_in_a_child(action) as child:
        said, _ = child.communicate(timeout=60)
    assert (said, child.returncode) == (b"", code)


def test_a_child_process_stops_where_it_is_told_to_and_goes_on_when_continued():
    with reach_in_a_child("stop") as child:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        child.send_signal(signal.SIGCONT)
        said, _ = child.communicate(timeout=60)
    assert (said, child.returncode) == (b"went on\n", 0)
