"""How long to wait before the next attempt. Pure: the random number is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from inspect import iscoroutinefunction
from random import random as random_fraction
from typing import Any

from .values import DURATION_MAX

Strategy = Callable[[int, timedelta, timedelta], timedelta | float]

# -- the strategies: attempt, initial, maximum -> delay ---------------------------------------


def constant(attempt: int, initial: timedelta, maximum: timedelta) -> timedelta:  # noqa: ARG001  the signature of all strategies
    """Wait the same time before every retry."""
    return min(initial, maximum)


def linear(attempt: int, initial: timedelta, maximum: timedelta) -> timedelta:
    """Wait one `initial` more before each retry."""
    return _grown(initial, lambda: attempt, maximum)


def exponential(
    attempt: int, initial: timedelta, maximum: timedelta, *, multiplier: float = 2.0
) -> timedelta:
    """Wait `multiplier` times longer before each retry."""
    return _grown(initial, lambda: multiplier ** (attempt - 1), maximum)


def _grown(initial: timedelta, factor: Callable[[], float], maximum: timedelta) -> timedelta:
    try:
        seconds = initial.total_seconds() * factor()
    except OverflowError:
        # The factor alone left the range of a float; nothing times that is still nothing.
        seconds = math.inf if initial else 0.0
    return _capped(seconds, maximum)


def _capped(seconds: float, maximum: timedelta) -> timedelta:
    # Compare before building: a timedelta cannot hold what a float can.
    if seconds >= maximum.total_seconds():
        return maximum
    return min(timedelta(seconds=seconds), maximum)


STRATEGIES: Mapping[str, Callable[..., timedelta]] = {
    "constant": constant,
    "linear": linear,
    "exponential": exponential,
}

# -- the policy -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """A strategy with its numbers; durations may be given in seconds and are kept as timedelta."""

    strategy: str | Strategy = "exponential"
    initial: timedelta = timedelta(seconds=1)
    multiplier: float = 2.0
    maximum: timedelta = timedelta(hours=1)
    jitter: float | str = 0.1

    def __post_init__(self) -> None:
        _check_strategy(self.strategy)
        for name in ("initial", "maximum"):
            object.__setattr__(self, name, _duration(name, getattr(self, name)))
        if self.initial > self.maximum:
            raise ValueError(f"initial {self.initial} is longer than maximum {self.maximum}")
        if not _is_number(self.multiplier) or not 1 <= self.multiplier < math.inf:
            raise ValueError(f"multiplier {self.multiplier!r} is not a number from 1 up")
        object.__setattr__(self, "jitter", _jitter(self.jitter))

    def delay(self, attempt: int, random: Callable[[], float] = random_fraction) -> timedelta:
        """Return the wait after failure number `attempt`; the first failure is attempt 1."""
        if attempt < 1:
            raise ValueError(f"attempt {attempt!r} is below 1: attempts are counted from one")
        seconds = self._without_jitter(attempt).total_seconds()
        if self.jitter == "full":
            seconds *= random()
        elif self.jitter:
            seconds *= 1 + float(self.jitter) * (2 * random() - 1)
        return _capped(seconds, self.maximum)

    def _without_jitter(self, attempt: int) -> timedelta:
        if not isinstance(self.strategy, str):
            return self._custom(self.strategy, attempt)
        options = {"multiplier": self.multiplier} if self.strategy == "exponential" else {}
        return STRATEGIES[self.strategy](attempt, self.initial, self.maximum, **options)

    def _custom(self, function: Strategy, attempt: int) -> timedelta:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        try:
            answer = function(attempt, self.initial, self.maximum)
        except Exception as error:
            raise ValueError(f"backoff function {name} raised {type(error).__name__}") from error
        try:
            return _capped(_seconds(answer), self.maximum)
        except ValueError:
            raise ValueError(
                f"backoff function {name} returned {answer!r:.200} for attempt {attempt}, "
                "not a timedelta or seconds from 0 up"
            ) from None


def parse(value: Any) -> Backoff:
    """Read a policy from a Backoff, the name of a strategy, a dict of its fields or a function."""
    if isinstance(value, Backoff):
        return value
    if isinstance(value, Mapping):
        known = [field.name for field in fields(Backoff)]
        if unknown := [key for key in value if key not in known]:
            raise ValueError(f"unknown backoff option {unknown[0]!r}: use {', '.join(known)}")
        return Backoff(**value)
    return Backoff(strategy=value)


# -- what the fields accept -------------------------------------------------------------------


def _check_strategy(value: Any) -> None:
    if isinstance(value, str) and value in STRATEGIES:
        return
    # A class would be called as a constructor, a coroutine function would never be awaited.
    if callable(value) and not isinstance(value, type) and not iscoroutinefunction(value):
        return
    names = ", ".join(STRATEGIES)
    raise ValueError(
        f"backoff strategy {value!r:.200} is none of {names}, "
        "nor a function (attempt, initial, maximum) -> delay"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(value: Any) -> float:
    """Read a delay; one longer than a century is for ever, which a cap can still cut."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not _is_number(value) or not 0 <= value < math.inf:
        raise ValueError
    return float(value) if value <= DURATION_MAX.total_seconds() else math.inf


def _duration(name: str, value: Any) -> timedelta:
    try:
        seconds = _seconds(value)
    except ValueError:
        raise ValueError(f"{name} {value!r:.200} is not a timedelta or seconds from 0 up") from None
    if seconds == math.inf:
        raise ValueError(f"{name} {value!r:.200} is longer than a century")
    return timedelta(seconds=seconds)


def _jitter(value: Any) -> float | str:
    if isinstance(value, str):
        if value in ("none", "full"):
            return 0.0 if value == "none" else value
    elif _is_number(value) and 0 <= value <= 1:
        return float(value)
    raise ValueError(f"jitter {value!r:.200} is not 'none', 'full' or a ratio from 0 to 1")
