"""
schedules: put them in step with the code; make, pause, resume, run now.

Locks:  run now waits for the schedule's row; the others are single statements.
Fence:  a tick moves a cursor only from where it saw it, so a change made here wins or comes after.
Repeat: safe; running now twice enqueues twice, unless overlap forbids it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, connections, router, transaction
from django.db.models import F, Q

from .. import payload
from ..conf import get_settings
from ..drivers import DatabaseDriver
from ..drivers.transient import repeat
from ..exceptions import InvalidSchedule, PayloadCorrupt, TaskHarborError, UnknownSchedule
from ..models import Schedule
from ..schedules import Declared, by_decorator, refuse_arguments
from ..tasks import Task, registry
from ..timing import Overlap, ScheduleKind, Timing
from ..values import is_storable, shown
from .handle import JobHandle
from .notify import notify_on_commit
from .storage import alias_of, aliases, default_alias, driver_for
from .tick import open_job, record_for

logger = logging.getLogger(__name__)

# An old process of a rolling deploy may disable what the next new one enables again.
FLAP = timedelta(hours=1)
_TIMING = ("kind", "cron", "time_zone", "interval", "anchor")


@dataclass(frozen=True, kw_only=True, slots=True)
class InStep:
    """The names of schedules that were added, changed and disabled."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()


# -- what code declares --------------------------------------------------------------------------


def declared_schedules() -> list[Declared]:
    """What @schedule and the settings declare; a name in both is the settings'."""
    declared = {it.name: it for it in by_decorator()}
    return list((declared | dict(get_settings().schedules)).values())


def checked(declared: Declared) -> dict[str, Any]:
    """The columns of a schedule; raises what is wrong with its task, queue or arguments."""
    task: Task[Any, Any] = registry.get(declared.task)
    refuse_arguments(declared, task)
    settings, timing = get_settings(), declared.timing
    data = payload.encode_call(
        declared.args,
        dict(declared.kwargs),
        max_bytes=settings.payload_max_bytes,
        codec=settings.payload_codec,
    )
    return {
        "task": task.name,
        "queue": declared.queue,
        "priority": declared.priority,
        "payload": data,
        **{name: getattr(timing, name) for name in _TIMING},
        "catch_up": declared.catch_up,
        "overlap": declared.overlap,
        "jitter": declared.jitter,
    }


def home_of(declared: Declared) -> str:
    """The database of the schedule's queue; its row is kept beside its jobs."""
    task: Task[Any, Any] = registry.get(declared.task)
    return alias_of(declared.queue or task.queue or get_settings().queue)


def put_in_step(driver: DatabaseDriver) -> InStep:
    """Make the rows say what the code declares; those made by hand are left alone."""
    wanted = dict(_here(declared_schedules(), driver.using))
    rows = Schedule.objects.using(driver.using)
    known = {row.name: row for row in rows.filter(name__in=list(wanted))}
    now = driver.now()
    new = [
        Schedule(name=name, declared=True, created_at=now, **made)
        for name, made in wanted.items()
        if name not in known and made
    ]
    for row in new:
        row.next_at = first_slot(row.timing, now)
    rows.bulk_create(new, ignore_conflicts=True)  # others may be starting too
    changed = [row.name for row in known.values() if _change(row, wanted[row.name], now)]
    gone = rows.filter(declared=True, disabled_at__isnull=True).exclude(name__in=list(wanted))
    disabled = list(gone.values_list("name", flat=True))
    if disabled:
        rows.filter(name__in=disabled, declared=True).update(disabled_at=now)
    made = InStep(
        added=tuple(row.name for row in new), changed=tuple(changed), disabled=tuple(disabled)
    )
    return _told(made)


def _here(declared: Iterable[Declared], using: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """Names and columns of those that live here; a broken one keeps its row, and gets no other."""
    for it in declared:
        try:
            if home_of(it) == using:
                yield it.name, checked(it)
        except TaskHarborError as problem:
            facts = {"schedule": it.name}
            logger.warning("schedule %s is left as it is: %s", it.name, problem, extra=facts)
            yield it.name, {}


def _change(row: Schedule, made: dict[str, Any], now: datetime) -> bool:
    """Write what differs into a declared row."""
    if not made or not row.declared:
        if made:
            logger.warning("schedule %s was made by hand: give the declared one a name=", row.name)
        return False
    columns = {name: value for name, value in made.items() if _differs(row, name, value)}
    if not columns and row.disabled_at is None and not row.problem:
        return False
    late = row.disabled_at is not None and now - row.disabled_at > FLAP
    if late or row.next_at is None or any(name in columns for name in _TIMING):
        timing = Timing(**{name: made[name] for name in _TIMING})
        columns["next_at"] = first_slot(timing, now)
    row_now = Schedule.objects.using(row._state.db).filter(pk=row.pk)
    return bool(row_now.update(disabled_at=None, problem="", **columns))


def _differs(row: Schedule, name: str, value: Any) -> bool:
    if name != "payload":
        return bool(getattr(row, name) != value)
    # A codec that encrypts never makes the same bytes twice.
    codec = get_settings().payload_codec
    wanted = payload.digest(value, codec=codec)
    try:
        return not row.payload or payload.digest(bytes(row.payload), codec=codec) != wanted
    except PayloadCorrupt:  # written by another codec or key: no reason not to start
        return True


def _told(made: InStep) -> InStep:
    for what in ("added", "changed", "disabled"):
        if getattr(made, what):
            logger.info("schedules %s: %s", what, ", ".join(getattr(made, what)))
    return made


def first_slot(timing: Timing, now: datetime) -> datetime | None:
    """Where a new cursor stands; a fixed delay begins with one delay."""
    if timing.kind == ScheduleKind.FIXED_DELAY and timing.interval is not None:
        return now + timing.interval
    return timing.after(now)


def after_migrate(*, using: str, **_: Any) -> None:
    """Receive post_migrate; before the first migration and after the last there is no table."""
    if not router.allow_migrate_model(using, Schedule):
        return
    connection = connections[using]
    table = Schedule._meta.db_table
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            return
        there = connection.introspection.get_table_description(cursor, table)
    if {field.column for field in Schedule._meta.concrete_fields} <= {it.name for it in there}:
        put_in_step(driver_for(using))


# -- by hand -------------------------------------------------------------------------------------


def create_schedule(declared: Declared) -> Schedule:
    """Make a schedule by hand, of a registered task with arguments that fit it."""
    made, using = checked(declared), home_of(declared)
    now = driver_for(using).now()
    row = Schedule(name=declared.name, created_at=now, **made)
    row.next_at = first_slot(row.timing, now)
    with _its_own_name(declared.name, using):
        row.save(using=using, force_insert=True)
    return row


@contextmanager
def _its_own_name(name: str, using: str) -> Iterator[None]:
    """Refuse a name that is taken; the caller's transaction can go on."""
    try:
        with transaction.atomic(using=using):
            yield
    except IntegrityError:
        raise InvalidSchedule(f"there is a schedule {name!r} already") from None


def change_schedule(schedule: Schedule, declared: Declared) -> None:
    """Change a schedule that was made by hand; another timing starts from now."""
    if schedule.declared:
        raise InvalidSchedule(f"{schedule.name} is declared in code: change it there")
    using = schedule._state.db or default_alias()
    if home_of(declared) != using:
        raise InvalidSchedule(f"{schedule.name}: queues of another database need a new schedule")
    made, now = checked(declared), driver_for(using).now()
    columns = made | {"name": declared.name, "problem": ""}
    if schedule.problem or any(_differs(schedule, name, made[name]) for name in _TIMING):
        columns["next_at"] = first_slot(declared.timing, now)
    with _its_own_name(declared.name, using):
        Schedule.objects.using(using).filter(pk=schedule.pk).update(**columns)


def pause_schedule(schedule: Schedule | str, *, using: str | None = None) -> bool:
    """Let no slot come until it is resumed; False when it was paused already."""
    row = find(schedule, using=using)
    rows = Schedule.objects.using(row._state.db).filter(pk=row.pk, paused_at__isnull=True)
    return bool(rows.update(paused_at=driver_for(str(row._state.db)).now()))


def resume_schedule(schedule: Schedule | str, *, using: str | None = None) -> bool:
    """Go on with the next slot from now, after a pause or a problem; what fell into it is left."""
    row = find(schedule, using=using)
    driver = driver_for(str(row._state.db))
    stopped = Q(paused_at__isnull=False) | ~Q(problem="")
    rows = Schedule.objects.using(driver.using).filter(stopped, pk=row.pk)
    next_at = first_slot(row.timing, driver.now())
    return bool(rows.update(paused_at=None, problem="", next_at=next_at))


def run_schedule_now(schedule: Schedule | str, *, using: str | None = None) -> JobHandle:
    """Enqueue its job beside the slots; with overlap="skip" an open one is the answer."""
    row = find(schedule, using=using)
    driver = driver_for(str(row._state.db))
    return repeat(driver.using, lambda: _run_now(driver, row.pk))


def _run_now(driver: DatabaseDriver, pk: int) -> JobHandle:
    rows = Schedule.objects.using(driver.using).filter(pk=pk)
    with driver.transaction():
        with driver.short_waits():
            row = driver.waiting_for(rows).get()
        running = open_job(driver, row) if row.overlap == Overlap.SKIP else None
        if running is not None:
            return JobHandle(id=running, using=driver.using, created=False)
        record = replace(record_for(row), schedule=row.pk)
        driver.enqueue(record)
        moved: dict[str, Any] = {}
        if row.kind == ScheduleKind.FIXED_DELAY:
            moved = {"next_at": first_slot(row.timing, driver.now())}
        rows.update(last_job=record.id, enqueued=F("enqueued") + 1, **moved)
        notify_on_commit([record.queue], driver.using)
    return JobHandle(id=record.id, using=driver.using)


def find(schedule: Schedule | str, *, using: str | None = None) -> Schedule:
    """The row as it is now, of a name or of a row that was read before."""
    if isinstance(schedule, str) and not is_storable(schedule):
        raise UnknownSchedule(f"There is no schedule {shown(schedule)}.")
    if isinstance(schedule, Schedule):
        stored = Schedule.objects.using(schedule._state.db).filter(pk=schedule.pk)
        found = list(stored)
    else:
        known = [using] if using else aliases()
        found = [row for it in known for row in Schedule.objects.using(it).filter(name=schedule)]
    # One that moved with its queue has left a disabled row behind.
    found.sort(key=lambda row: row.disabled_at is not None)
    if not found:
        raise UnknownSchedule(f"There is no schedule {schedule}.")
    return found[0]
