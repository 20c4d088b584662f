"""What enqueue returns: a job's id, and what can be asked of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from ..clock import steady
from ..conf import get_settings
from ..exceptions import (
    JobCancelled,
    JobFailed,
    JobNotFound,
    ResultNotReady,
    ResultNotStored,
)
from ..lifecycle import ENDED, JobState
from ..models import Job
from ..payload import decode_call, decode_value
from ..values import as_duration
from .cancel import cancel
from .requeue import requeue
from .selection import as_id
from .storage import default_alias, driver_for
from .update import run_now, update

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
Timeout = timedelta | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobHandle:
    """A stored job; `created` is False when an idempotency key stood for an earlier one."""

    id: UUID
    using: str
    created: bool = True

    @classmethod
    def of(cls, job_id: UUID | str, *, using: str | None = None) -> JobHandle:
        """The handle of a job whose id was kept, as in a session or a URL."""
        return cls(id=as_id(job_id), using=using or default_alias(), created=False)

    def refresh(self) -> Job:
        """Read the job as it is now."""
        try:
            return Job.objects.using(self.using).get(pk=self.id)
        except Job.DoesNotExist:
            raise JobNotFound(f"There is no job {self.id}.") from None

    def wait(self, timeout: Timeout = None) -> Job:
        """Return the job once it has ended; raise TimeoutError when that takes too long."""
        waits = pauses(timeout)
        while (job := self.refresh()).state not in ENDED:
            time.sleep(next(waits))
        return job

    @property
    def state(self) -> JobState:
        return JobState(self.refresh().state)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the job was enqueued with, read back from storage."""
        return decode_call(bytes(self.refresh().payload), codec=get_settings().payload_codec)

    @property
    def result(self) -> Any:
        """What the handler returned; raises unless the job is done and its result is kept."""
        return result_of(self.refresh(), driver_for(self.using).now)

    def cancel(self, *, force: bool = False) -> bool:
        """Cancel the job, or ask it to stop; False when it had ended."""
        return not cancel([self.id], force=force, using=self.using).left

    def update(self, **columns: Any) -> bool:
        """Change priority, tags, callback_url, run_at or queue; False when the job has started."""
        return not update([self.id], using=self.using, **columns).left

    def run_now(self) -> bool:
        """Let a scheduled job run at once; False when it is not scheduled."""
        return not run_now([self.id], using=self.using).left

    def requeue(self, **options: Any) -> bool:
        """Let a dead job run again; False when it is not dead, or must not alone."""
        return not requeue([self.id], using=self.using, **options).left

    async def arefresh(self) -> Job:
        return await sync_to_async(self.refresh)()

    async def await_(self, timeout: Timeout = None) -> Job:
        waits = pauses(timeout)
        while (job := await self.arefresh()).state not in ENDED:  # noqa: ASYNC110  others end it
            await asyncio.sleep(next(waits))
        return job

    async def aresult(self) -> Any:
        return await sync_to_async(lambda: self.result)()

    async def acancel(self, *, force: bool = False) -> bool:
        return await sync_to_async(self.cancel)(force=force)


def result_of(job: Job, now: Callable[[], datetime]) -> Any:
    """What the handler of a job that was read returned, or raise why it cannot be said."""
    if job.state != JobState.DONE:
        raise _no_result(job)
    expires_at = job.result_expires_at
    # No bytes at all stand for a result that could not be stored, NULL for a returned None.
    if job.result == b"":
        raise ResultNotStored(f"What job {job.pk} returned could not be stored.")
    if expires_at and expires_at <= now():
        raise ResultNotStored(f"The result of job {job.pk} has expired.")
    if job.result is None:
        return None
    return decode_value(job.result, codec=get_settings().payload_codec)


def pauses(timeout: Timeout) -> Iterator[float]:
    """Growing pauses between two looks; TimeoutError after the last."""
    patience = None if timeout is None else as_duration(timeout).total_seconds()
    started, pause = steady(), FIRST_PAUSE
    while True:
        left = LONGEST_PAUSE if patience is None else patience - (steady() - started)
        yield max(0.0, min(pause, left))
        if left <= 0:
            raise TimeoutError("the job has not ended yet")
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _no_result(job: Job) -> Exception:
    if job.state == JobState.CANCELLED:
        return JobCancelled(f"Job {job.pk} was cancelled.")
    if job.state == JobState.DEAD:
        return JobFailed(f"Job {job.pk} is dead: {job.last_error[:500]}")
    return ResultNotReady(f"Job {job.pk} is {job.state}.")
