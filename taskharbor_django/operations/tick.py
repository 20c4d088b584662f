"""
tick: slots that have come -> jobs; the cursors of their schedules move past them.

Locks:  due schedules, SKIP LOCKED; jobs are read without a lock, and inserted.
Fence:  a compare-and-set of each cursor in the transaction of the inserts; behind it the unique
        (schedule, slot).
Repeat: safe; once committed, the cursor is ahead.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Min

from ..conf import get_settings
from ..drivers import DatabaseDriver
from ..drivers.transient import repeat
from ..exceptions import InvalidSchedule
from ..failpoints import reach
from ..lifecycle import ENDED
from ..models import Job, Schedule
from ..payload import decode_call, describe_exception, mask_text, sanitise_text
from ..tasks import registry
from ..timing import CatchUp, Overlap, ScheduleKind
from ..values import JobRecord, new_id
from .logs import fault
from .notify import notify_on_commit
from .records import record_of
from .storage import alias_of

logger = logging.getLogger(__name__)

BATCH = 100
CATCH_UP_MOST = 100
PROBLEM_MAX_CHARS = 1_000

Slots = set[tuple[int, datetime | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LastJob:
    """How a schedule's latest job stands."""

    is_open: bool
    finished_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What one tick makes of one schedule."""

    schedule: Schedule
    slots: Sequence[datetime] = ()
    record: JobRecord | None = None
    changes: dict[str, Any]


def first_due(driver: DatabaseDriver) -> datetime | None:
    """The smallest cursor: all that an idle worker asks."""
    schedules = Schedule.objects.using(driver.using).active()
    first: datetime | None = schedules.aggregate(first=Min("next_at"))["first"]
    return first


def tick(driver: DatabaseDriver, *, now: datetime) -> int:
    """Enqueue what has come; return how many schedules were looked after, at most BATCH."""
    return repeat(driver.using, lambda: _tick(driver, now))


def _tick(driver: DatabaseDriver, now: datetime) -> int:
    due = Schedule.objects.using(driver.using).due(now).filter(task__in=registry.names())
    with driver.transaction():
        schedules = list(driver.locked(due)[:BATCH])
        reach("tick.locked")
        lasts = last_jobs(driver, schedules)
        turns = [_turn(schedule, lasts.get(schedule.last_job), now) for schedule in schedules]
        taken = _taken(driver, turns)
        records = [record for turn in turns for record in _moved(driver, turn, taken)]
        reach("tick.moved")
        if records:
            driver.enqueue_many(records)
            notify_on_commit({record.queue for record in records}, driver.using)
        reach("tick.enqueued")
    return len(schedules)


def last_jobs(driver: DatabaseDriver, schedules: Iterable[Schedule]) -> dict[Any, LastJob]:
    """How the latest jobs of these schedules stand; those that are gone are left out."""
    ids = [schedule.last_job for schedule in schedules if schedule.last_job is not None]
    rows = Job.objects.using(driver.using).filter(pk__in=ids) if ids else Job.objects.none()
    return {
        pk: LastJob(is_open=state not in ENDED, finished_at=finished_at)
        for pk, state, finished_at in rows.values_list("pk", "state", "finished_at")
    }


def _taken(driver: DatabaseDriver, turns: Iterable[Turn]) -> Slots:
    """Slots that have a job already: somebody moved a cursor back."""
    slots = [slot for turn in turns for slot in turn.slots]
    if not slots:
        return set()
    schedules = [turn.schedule.pk for turn in turns if turn.slots]
    jobs = Job.objects.using(driver.using).filter(schedule__in=schedules, schedule_slot__in=slots)
    return set(jobs.values_list("schedule", "schedule_slot"))


def _moved(driver: DatabaseDriver, turn: Turn, taken: Slots) -> list[JobRecord]:
    """Move the cursor from where it was seen; return the jobs that this makes."""
    schedule = turn.schedule
    slots = [slot for slot in turn.slots if (schedule.pk, slot) not in taken]
    records = [_at(turn.record, schedule, slot) for slot in slots if turn.record is not None]
    changes = dict(turn.changes)
    if records:
        changes |= {
            "last_slot": records[-1].schedule_slot,
            "last_job": records[-1].id,
            "enqueued": F("enqueued") + len(records),
        }
    seen = Schedule.objects.using(driver.using).filter(pk=schedule.pk, next_at=schedule.next_at)
    return records if seen.update(**changes) else []


def _at(record: JobRecord, schedule: Schedule, slot: datetime) -> JobRecord:
    jitter = schedule.jitter or timedelta(0)
    return replace(
        record,
        id=new_id(),
        schedule=schedule.pk,
        schedule_slot=slot,
        delay=jitter * random.random() if jitter else None,  # noqa: S311  no secret
    )


# -- which slots have come -----------------------------------------------------------------------


def _turn(schedule: Schedule, last: LastJob | None, now: datetime) -> Turn:
    try:
        if schedule.kind == ScheduleKind.FIXED_DELAY:
            return _after_the_last(schedule, last, now)
        return _by_the_clock(schedule, last, now)
    except Exception as error:  # noqa: BLE001  one that cannot be enqueued must not stop the others
        return _stopped(schedule, error)


def _stopped(schedule: Schedule, error: Exception) -> Turn:
    text, facts = "schedule %s stops: it cannot be enqueued", {"task": schedule.task}
    fault(logger, error, text, schedule.name, schedule=schedule.name, **facts)
    said = mask_text(describe_exception(error), get_settings().masked_keys)
    problem = sanitise_text(said, PROBLEM_MAX_CHARS)
    return Turn(schedule=schedule, changes={"problem": problem or type(error).__name__})


def _by_the_clock(schedule: Schedule, last: LastJob | None, now: datetime) -> Turn:
    timing = schedule.timing
    moved = {"next_at": timing.after(now)}
    if schedule.overlap == Overlap.SKIP and last is not None and last.is_open:
        return Turn(schedule=schedule, changes=moved | {"skipped": F("skipped") + 1})
    most = CATCH_UP_MOST if schedule.catch_up == CatchUp.ALL else 1
    slots = timing.come(_cursor(schedule), now, most)
    return Turn(schedule=schedule, slots=slots, record=record_for(schedule), changes=moved)


def _after_the_last(schedule: Schedule, last: LastJob | None, now: datetime) -> Turn:
    """
    Fixed delay: the slot is the end of the last job plus the delay.

    While that job is open its end is still ahead, so nothing can be due before now + delay.
    """
    delay = schedule.interval or timedelta(0)
    slot = _cursor(schedule)
    if last is not None and last.is_open:
        return Turn(schedule=schedule, changes={"next_at": now + delay})
    if last is not None and last.finished_at is not None:
        slot = last.finished_at + delay
    if slot > now:
        return Turn(schedule=schedule, changes={"next_at": slot})
    record = record_for(schedule)
    return Turn(schedule=schedule, slots=[slot], record=record, changes={"next_at": now + delay})


def _cursor(schedule: Schedule) -> datetime:
    assert schedule.next_at is not None  # noqa: S101  due() has asked for it
    return schedule.next_at


def record_for(schedule: Schedule) -> JobRecord:
    """The job that a schedule enqueues, or why it cannot."""
    task = registry.get(schedule.task)
    asked = {"queue": schedule.queue or None, "priority": schedule.priority}
    args, kwargs = decode_call(bytes(schedule.payload), codec=get_settings().payload_codec)
    record = record_of(task.using(**asked).call(*args, **kwargs))
    home, using = alias_of(record.queue), schedule._state.db
    if home != using:
        raise InvalidSchedule(
            f"{schedule.name}: its queue {record.queue} is kept in {home}, the schedule in {using}"
        )
    record.validate()  # here, where it stops this schedule alone
    return record


def open_job(driver: DatabaseDriver, schedule: Schedule) -> UUID | None:
    """The schedule's latest job if it has not ended."""
    last = last_jobs(driver, [schedule]).get(schedule.last_job)
    return schedule.last_job if last is not None and last.is_open else None
