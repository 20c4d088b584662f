"""Random verbs of workers, operators and chores: every driver does what the model says."""

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import Machine
from .operated import OperatedMachine
from .stands import InDatabase, InMemory

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def so_many(examples, steps, **more):
    return settings(
        max_examples=examples, stateful_step_count=steps, suppress_health_check=SLOW, **more
    )


def test_the_driver_for_tests_does_what_the_model_says():
    few = so_many(20, 30, derandomize=True)
    run_state_machine_as_test(lambda: Machine(InMemory()), settings=few)


@pytest.mark.django_db
def test_the_database_does_what_the_model_says(monkeypatch):
    """The same examples each time; `tests/faults` has others each time."""
    stand = InDatabase(monkeypatch)
    few = so_many(14, 25, database=None)
    run_state_machine_as_test(seed(1)(lambda: OperatedMachine(stand)), settings=few)
