"""
When a schedule's slots are: pure functions of its definition.

A slot depends on the definition alone, so that any process at any time computes the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _

from .exceptions import InvalidSchedule
from .values import TIME_FIRST, TIME_LAST, as_duration, shown

CRON_MAX_CHARS = 200
CRON_FIELDS = 5
SHORTEST = timedelta(seconds=1)
OF_THE_MACHINE = ("localtime", "posixrules")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ScheduleKind(TextChoices):
    CRON = "cron", _("cron")
    FIXED_RATE = "fixed_rate", _("fixed rate")
    FIXED_DELAY = "fixed_delay", _("fixed delay")


class CatchUp(TextChoices):
    """What becomes of slots that passed while no worker ticked."""

    SKIP = "skip", _("one job for all")
    ALL = "all", _("a job for each")


class Overlap(TextChoices):
    """What becomes of a slot that comes while the last job is still open."""

    SKIP = "skip", _("skip the slot")
    ALLOW = "allow", _("enqueue it")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """A checked definition; made by `timing_of`."""

    kind: ScheduleKind
    cron: str = ""
    time_zone: str = ""
    interval: timedelta | None = None
    anchor: datetime | None = None

    def after(self, moment: datetime) -> datetime | None:
        """The first slot after a moment; None when there is none, or only a job's end tells."""
        return next(self.slots(moment), None)

    def slots(self, moment: datetime) -> Iterator[datetime]:
        """The slots after a moment, in UTC."""
        if self.kind == ScheduleKind.CRON:
            yield from _cron_slots(self.cron, self.time_zone, moment)
        elif self.kind == ScheduleKind.FIXED_RATE:
            yield from _multiples(self.anchor or EPOCH, self.interval or SHORTEST, moment)

    def come(self, first: datetime, now: datetime, most: int) -> list[datetime]:
        """
        The latest slots from `first` to `now`, no more than `most`.

        Between the two may lie years of minutes: what is too much is skipped by bisection.
        """
        earlier, later = first - SHORTEST, now
        found = self._between(earlier, now, most + 1)
        if len(found) <= most:
            return found
        while later - earlier > SHORTEST / 2:
            middle = earlier + (later - earlier) / 2
            if len(self._between(middle, now, most + 1)) > most:
                earlier = middle
            else:
                later = middle
        return self._between(later, now, most)

    def _between(self, after: datetime, now: datetime, most: int) -> list[datetime]:
        return list(islice(takewhile(lambda slot: slot <= now, self.slots(after)), most))


def _cron_slots(cron: str, time_zone: str, moment: datetime) -> Iterator[datetime]:
    previous = moment
    try:
        for local in CronSim(cron, moment.astimezone(_zone_info(time_zone))):
            slot = local.astimezone(UTC)
            # Where clocks change, several local times are one slot, and the first of two equal
            # local times may lie before the moment.
            if slot > previous:
                yield slot
                previous = slot
    except OverflowError:  # the end of Python's calendar
        return


def _multiples(anchor: datetime, interval: timedelta, moment: datetime) -> Iterator[datetime]:
    number = (moment - anchor) // interval
    while True:
        number += 1
        try:
            yield anchor + number * interval
        except OverflowError:
            return


def timing_of(
    *,
    cron: Any = None,
    fixed_rate: Any = None,
    fixed_delay: Any = None,
    time_zone: Any = None,
    anchor: Any = None,
) -> Timing:
    """Read a definition, or raise ValueError saying what is wrong with it."""
    given = {"cron": cron, "fixed_rate": fixed_rate, "fixed_delay": fixed_delay}
    kinds = [name for name, value in given.items() if value is not None]
    if len(kinds) != 1:
        raise ValueError("give one of cron, fixed_rate and fixed_delay")
    kind = ScheduleKind(kinds[0])
    if time_zone is not None and kind != ScheduleKind.CRON:
        raise ValueError("time_zone: only cron has one; intervals count real time")
    if anchor is not None and kind != ScheduleKind.FIXED_RATE:
        raise ValueError("anchor: only fixed_rate has one")
    if kind == ScheduleKind.CRON:
        zone = _zone(time_zone)
        return Timing(kind=kind, cron=_cron(cron, zone), time_zone=zone)
    return Timing(kind=kind, interval=_interval(kind, given[kind]), anchor=_anchor(anchor))


def _zone(name: Any) -> str:
    from django.conf import settings

    zone = settings.TIME_ZONE if name is None else name
    return _zone_info(zone).key


def _zone_info(name: Any) -> ZoneInfo:
    """The zone of a name; names of files that are another zone on each machine are refused."""
    try:
        if name not in OF_THE_MACHINE:
            return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        pass
    raise InvalidSchedule(f"time_zone: there is no time zone {shown(name)}")


def _cron(cron: Any, zone: str) -> str:
    if not isinstance(cron, str) or len(cron) > CRON_MAX_CHARS:
        raise ValueError(f"cron: must be text of at most {CRON_MAX_CHARS} characters")
    text = " ".join(cron.split())
    if len(text.split()) != CRON_FIELDS:
        raise ValueError(
            f"cron: {shown(cron)} has not the five fields minute, hour, day, month and weekday"
        )
    try:
        CronSim(text, EPOCH)
    # A number too long for int(), or a step behind what takes none.
    except (CronSimError, ValueError, AssertionError, TypeError) as problem:
        raise ValueError(f"cron: {shown(cron)} cannot be read: {problem}") from None
    if next(_cron_slots(text, zone, datetime.now(UTC)), None) is None:
        raise ValueError(f"cron: {shown(cron)} never comes")
    return text


def _interval(kind: str, value: Any) -> timedelta:
    try:
        interval = as_duration(value)
    except ValueError as problem:
        raise ValueError(f"{kind}: {problem}") from None
    if interval < SHORTEST:
        raise ValueError(f"{kind}: must be a second or more, not {interval}")
    return interval


def _anchor(value: Any) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ValueError(f"anchor: must be a datetime with a time zone, not {shown(value)}")
    if not TIME_FIRST <= value <= TIME_LAST:
        raise ValueError(f"anchor: {shown(value)} is outside the years 1000 to 9898")
    return value.astimezone(UTC)
