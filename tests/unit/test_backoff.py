"""Delays between attempts: the strategies, the cap, the jitter and what settings may say."""

from __future__ import annotations

import copy
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskharbor_django.backoff import Backoff, constant, exponential, linear, parse

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
JUST_BELOW_ONE = 1 - 2**-53

attempts = st.integers(1, 200) | st.integers(1, 10**9) | st.sampled_from([10_000, 2**10_000])
fractions = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, JUST_BELOW_ONE])
lengths = st.timedeltas(timedelta(0), timedelta(days=30))
jitters = st.floats(0, 1) | st.sampled_from(["none", "full", 0, 1])


@st.composite
def policies(draw, *, jitter=jitters):
    shorter, longer = sorted([draw(lengths), draw(lengths)])
    return Backoff(
        strategy=draw(st.sampled_from(["constant", "linear", "exponential"])),
        initial=shorter,
        maximum=longer,
        multiplier=draw(st.floats(1, 1e6)),
        jitter=draw(jitter),
    )


def delays(policy, count):
    return [policy.delay(attempt).total_seconds() for attempt in range(1, count + 1)]


# -- the strategies ---------------------------------------------------------------------------


def test_the_default_is_one_second_doubling_up_to_an_hour_give_or_take_a_tenth():
    assert Backoff() == Backoff(
        strategy="exponential", initial=SECOND, multiplier=2.0, maximum=HOUR, jitter=0.1
    )


def test_exponential_multiplies_from_the_initial_delay_until_the_cap():
    policy = Backoff(initial=1, multiplier=3, maximum=60, jitter="none")
    assert delays(policy, 6) == [1, 3, 9, 27, 60, 60]


def test_linear_adds_the_initial_delay_until_the_cap():
    policy = Backoff(strategy="linear", initial=20, maximum=70, jitter="none")
    assert delays(policy, 5) == [20, 40, 60, 70, 70]


def test_constant_waits_the_same_every_time():
    policy = Backoff(strategy="constant", initial=20, jitter="none")
    assert delays(policy, 3) == [20, 20, 20]


def test_the_strategies_can_be_called_from_a_function_of_ones_own():
    assert constant(9, SECOND, HOUR) == SECOND
    assert constant(9, HOUR, SECOND) == SECOND
    assert linear(9, SECOND, HOUR) == timedelta(seconds=9)
    assert exponential(4, SECOND, HOUR) == timedelta(seconds=8)
    assert exponential(4, SECOND, HOUR, multiplier=10) == timedelta(seconds=1000)


@given(policies(), attempts, fractions)
@example(Backoff(jitter=1), 2**10_000, JUST_BELOW_ONE)
@example(Backoff(strategy="linear", initial=0), 2**10_000, 0.0)
@example(Backoff(initial=0), 2**10_000, 0.0)
def test_a_delay_is_never_negative_and_never_over_the_cap(policy, attempt, fraction):
    assert timedelta(0) <= policy.delay(attempt, lambda: fraction) <= policy.maximum


@given(policies(jitter=st.just("none")), attempts)
def test_without_jitter_delays_never_shrink(policy, attempt):
    assert policy.delay(1) == policy.initial
    assert policy.delay(attempt) <= policy.delay(attempt + 1)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_an_initial_delay_of_zero_stays_zero_however_often_it_fails(strategy):
    policy = Backoff(strategy=strategy, initial=0)
    assert policy.delay(2**10_000) == timedelta(0)


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_counted_from_one(attempt):
    with pytest.raises(ValueError, match=f"attempt {attempt} is below 1"):
        Backoff().delay(attempt)


# -- jitter -----------------------------------------------------------------------------------


@given(policies(jitter=st.floats(0, 1)), attempts, fractions)
def test_a_ratio_moves_the_delay_by_that_part_at_most(policy, attempt, fraction):
    plain = Backoff(
        strategy=policy.strategy,
        initial=policy.initial,
        multiplier=policy.multiplier,
        maximum=policy.maximum,
        jitter="none",
    ).delay(attempt)
    off = plain.total_seconds() * policy.jitter + 1e-6
    moved = policy.delay(attempt, lambda: fraction)
    assert abs((moved - plain).total_seconds()) <= off


@pytest.mark.parametrize(
    ("fraction", "seconds"), [(0.0, 90), (0.25, 95), (0.5, 100), (JUST_BELOW_ONE, 110)]
)
def test_a_ratio_spreads_delays_evenly_to_both_sides(fraction, seconds):
    policy = Backoff(strategy="constant", initial=100, jitter=0.1)
    assert policy.delay(1, lambda: fraction) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("fraction", "seconds"), [(0.0, 0), (0.5, 50), (JUST_BELOW_ONE, 100)])
def test_full_jitter_spreads_delays_from_zero_to_the_whole_delay(fraction, seconds):
    policy = Backoff(strategy="constant", initial=100, jitter="full")
    assert policy.delay(1, lambda: fraction) == timedelta(seconds=seconds)


def test_the_cap_holds_after_jitter():
    policy = Backoff(strategy="constant", initial=100, maximum=105, jitter=0.1)
    assert policy.delay(1, lambda: JUST_BELOW_ONE) == timedelta(seconds=105)


def test_without_jitter_no_random_number_is_drawn():
    assert Backoff(jitter=0).delay(1, lambda: pytest.fail("drawn")) == SECOND


def test_two_policies_draw_different_delays():
    assert len({Backoff(jitter="full").delay(10) for _ in range(20)}) > 1


def test_full_jitter_from_half_a_second_up_to_half_a_minute_can_be_said():
    policy = parse({"initial": 0.5, "maximum": 30, "jitter": "full"})
    highest = [policy.delay(attempt, lambda: JUST_BELOW_ONE) for attempt in range(1, 9)]
    assert [delay.total_seconds() for delay in highest] == [0.5, 1, 2, 4, 8, 16, 30, 30]


# -- a function of the project's own ----------------------------------------------------------


def test_a_function_gets_attempt_initial_and_maximum():
    seen = []

    def patient(attempt, initial, maximum):
        seen.append((attempt, initial, maximum))
        return initial * attempt**2

    policy = Backoff(strategy=patient, initial=2, jitter="none")
    assert policy.delay(3) == timedelta(seconds=18)
    assert seen == [(3, timedelta(seconds=2), HOUR)]


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(5, 5), (2.5, 2.5), (timedelta(minutes=1), 60), (0, 0), (1e300, 3600), (10**400, 3600)],
)
def test_a_function_may_answer_in_seconds_and_is_capped(answer, seconds):
    policy = Backoff(strategy=lambda *_: answer, jitter="none")
    assert policy.delay(1).total_seconds() == seconds


def test_jitter_applies_to_the_answer_of_a_function_too():
    policy = Backoff(strategy=lambda *_: 10, jitter="full")
    assert policy.delay(1, lambda: 0.5) == timedelta(seconds=5)


@pytest.mark.parametrize(
    "answer",
    [-1, timedelta(seconds=-1), float("nan"), float("inf"), None, "5", True],
)
def test_nonsense_from_a_function_is_an_error_that_names_it(answer):
    def hasty(attempt, initial, maximum):
        return answer

    with pytest.raises(ValueError, match=r"backoff function .*hasty returned .* for attempt 4"):
        Backoff(strategy=hasty).delay(4)


def test_a_function_that_raises_is_an_error_that_names_it_and_keeps_the_cause():
    def broken(attempt, initial, maximum):
        raise KeyError(attempt)

    with pytest.raises(ValueError, match=r"backoff function .*broken raised KeyError") as caught:
        Backoff(strategy=broken).delay(1)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_callable_without_a_name_is_named_by_its_type():
    with pytest.raises(ValueError, match="backoff function partial raised TypeError"):
        Backoff(strategy=partial(int, base=0, nonsense=1)).delay(1)


# -- reading ----------------------------------------------------------------------------------


def twice(attempt, initial, maximum):
    return 2 * initial


class Fussy:
    def __call__(self, attempt, initial, maximum):
        return initial


def test_parse_takes_a_policy_a_name_a_dict_or_a_function():
    policy = Backoff(jitter="full")
    assert parse(policy) is policy
    assert parse("linear") == Backoff(strategy="linear")
    assert parse({"strategy": "constant", "initial": 5}) == Backoff(strategy="constant", initial=5)
    assert parse({}) == Backoff()
    assert parse(twice).strategy is twice
    assert parse(Fussy()).delay(1, lambda: 0.5) == SECOND


def test_durations_in_seconds_are_kept_as_timedelta():
    policy = Backoff(initial=0.25, maximum=10)
    assert policy.initial == timedelta(milliseconds=250)
    assert policy.maximum == timedelta(seconds=10)


def test_no_jitter_can_be_said_in_three_ways():
    assert Backoff(jitter="none") == Backoff(jitter=0) == Backoff(jitter=0.0)


async def later(attempt, initial, maximum):
    return initial


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("fibonacci", r"strategy 'fibonacci' is none of constant, linear, exponential"),
        (None, r"strategy None is none of"),
        (30, r"strategy 30 is none of"),
        (timedelta, r"strategy <class 'datetime.timedelta'> is none of"),
        (later, r"strategy <function later .*> is none of"),
        ({"strategy": ["linear"]}, r"strategy \['linear'\] is none of"),
        ({"inital": 5}, r"unknown backoff option 'inital': use strategy, initial, multiplier"),
        ({"initial": "5"}, r"initial '5' is not a timedelta or seconds"),
        ({"initial": -1}, r"initial -1 is not"),
        ({"initial": True}, r"initial True is not"),
        ({"maximum": float("nan")}, r"maximum nan is not"),
        ({"maximum": float("inf")}, r"maximum inf is not"),
        ({"maximum": timedelta(days=36_501)}, r"maximum .* is longer than a century"),
        ({"maximum": 10**400}, r"maximum 1000.* is longer than a century"),
        ({"initial": 7200}, r"initial 2:00:00 is longer than maximum 1:00:00"),
        ({"multiplier": 0.5}, r"multiplier 0.5 is not a number from 1"),
        ({"multiplier": float("inf")}, r"multiplier inf is not"),
        ({"multiplier": "2"}, r"multiplier '2' is not"),
        ({"multiplier": True}, r"multiplier True is not"),
        ({"jitter": 1.1}, r"jitter 1.1 is not 'none', 'full' or a ratio from 0 to 1"),
        ({"jitter": -0.1}, r"jitter -0.1 is not"),
        ({"jitter": "some"}, r"jitter 'some' is not"),
        ({"jitter": True}, r"jitter True is not"),
        ({"jitter": None}, r"jitter None is not"),
    ],
)
def test_a_bad_policy_is_refused_with_the_value_that_is_wrong(value, text):
    with pytest.raises(ValueError, match=text):
        parse(value)


def test_a_century_is_the_longest_cap():
    assert Backoff(maximum=timedelta(days=36_500), jitter=0).delay(10**6) == timedelta(days=36_500)


def test_a_policy_can_be_copied_but_not_changed():
    policy = Backoff(strategy=twice)
    with pytest.raises(AttributeError):
        policy.initial = HOUR
    assert copy.deepcopy(policy) == policy
    assert hash(copy.copy(policy)) == hash(policy)
