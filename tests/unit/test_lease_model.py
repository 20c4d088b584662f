"""The model of the lease: the protocol as it is cannot break, and each rule left out breaks it."""

from dataclasses import fields

import pytest

from .lease_model import Bounds, Protocol, explore

SMALL = Bounds(workers=2, reserves=2)
# Which rule is left out, what must break without it, and a step of the story that tells why.
LEFT_OUT = {
    "settle_checks_token": ("two leases are accepted at once", "worker 1 claims"),
    "settle_checks_state": ("a job ended twice", "and the answer is lost"),
    "settle_checks_expiry": ("did not hold the job was accepted", "worker 0 settles: ack"),
    "claim_checks_state": ("an ended job was given out", "worker 0 claims"),
    "reclaim_checks_under_lock": (
        "taken from one whose lease was valid",
        "the heartbeat of worker 0 arrives",
    ),
    "forced_cancel_takes_token": (
        "took the end that another made for its own",
        "somebody cancels by force",
    ),
    "reserve_raises_number": ("the fencing number did not rise", "worker 0 claims"),
    "sweep_finds_orphans": ("the job is stuck", "lease rows are lost"),
}


def test_no_order_of_things_breaks_the_protocol():
    found = explore(bounds=SMALL)
    assert (found.broken, found.story) == ("", ())
    assert found.states > 10_000, "the walk did not go far"


def test_every_rule_is_left_out_once():
    assert set(LEFT_OUT) == {field.name for field in fields(Protocol)}


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_a_protocol_without_one_of_its_rules_breaks(rule):
    broken, step = LEFT_OUT[rule]
    found = explore(Protocol(**{rule: False}))
    assert broken in found.broken
    assert any(step in told for told in found.story), found.story


def test_without_the_fence_a_stopped_worker_may_end_the_job_of_another():
    """The story that leases are known for, in which nothing is lost but time."""
    found = explore(
        Protocol(settle_checks_token=False), Bounds(answers_lost=False, rows_lost=False)
    )
    assert found.broken == "two leases are accepted at once"
    assert found.story == (
        "worker 0 sees the job ready",
        "worker 0 claims",
        "a tick",
        "a tick",
        "reclaim sees lease 1 expired",
        "reclaim takes lease 1 back",
        "worker 1 sees the job ready",
        "worker 1 claims",
    )
