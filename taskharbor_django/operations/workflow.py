"""What enqueue of a workflow returns: its id, and what can be asked of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import Count, F

from ..exceptions import WorkflowNotFound
from ..failpoints import reach
from ..lifecycle import ENDED, DeadReason, JobState, WorkflowState
from ..models import Dependency, Job, Workflow
from ..models.job import JobQuerySet
from .batches import Moved, parts
from .cancel import cancel
from .drawing import NODES, Drawing, depths_among, draw
from .handle import Timeout, pauses, result_of
from .requeue import requeue
from .selection import as_id
from .storage import default_alias, driver_for

_OWN_REASONS = [reason for reason in DeadReason if reason != DeadReason.DEPENDENCY]


def state_of(counts: Mapping[JobState, int]) -> WorkflowState:
    """The state of a workflow with so many jobs in each state."""
    if any(number for state, number in counts.items() if state not in ENDED):
        return WorkflowState.OPEN
    for end in (WorkflowState.DEAD, WorkflowState.CANCELLED):
        if counts.get(JobState(end)):
            return end
    return WorkflowState.DONE


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowHandle:
    """Jobs that were stored together, and those that they added."""

    id: UUID
    using: str

    @classmethod
    def of(cls, workflow_id: UUID | str, *, using: str | None = None) -> WorkflowHandle:
        """The handle of a workflow whose id was kept."""
        return cls(id=as_id(workflow_id), using=using or default_alias())

    @property
    def jobs(self) -> JobQuerySet:
        """Its jobs, in the order in which they were written down."""
        return Job.objects.using(self.using).filter(workflow=self.id).order_by("created_at", "seq")

    def refresh(self) -> Workflow:
        """Read the workflow's row as it is now."""
        try:
            return Workflow.objects.using(self.using).get(pk=self.id)
        except Workflow.DoesNotExist:
            raise WorkflowNotFound(f"There is no workflow {self.id}.") from None

    @property
    def counts(self) -> dict[JobState, int]:
        """How many of its jobs are in each state; those of which there is none are 0."""
        rows = self.jobs.order_by().values_list("state").annotate(count=Count("pk"))
        return dict.fromkeys(JobState, 0) | {JobState(state): count for state, count in rows}

    @property
    def state(self) -> WorkflowState:
        """Open while a job is; then dead if any is, else cancelled if any is, else done."""
        return WorkflowState.OPEN if self.refresh().open_jobs else state_of(self.counts)

    @property
    def progress(self) -> int:
        """How many percent of its jobs have ended."""
        counts = self.counts
        ended = sum(counts[state] for state in ENDED)
        return 100 * ended // max(1, sum(counts.values()))

    @property
    def results(self) -> list[Any]:
        """What its last jobs returned: those that no other job of the workflow waits for."""
        now = driver_for(self.using).now()
        return [result_of(job, lambda: now) for job in self.jobs.filter(pk__in=self._last())]

    def _last(self) -> list[UUID]:
        """Those that no other waits for; worked out here, for a planner may take n*n steps."""
        edges = Dependency.objects.using(self.using).filter(job__workflow=self.id)
        inside = set(edges.values_list("depends_on", flat=True))
        return [pk for pk in self.jobs.values_list("pk", flat=True) if pk not in inside]

    def wait(self, timeout: Timeout = None) -> WorkflowState:
        """Return its state once no job is open; raise TimeoutError when that takes too long."""
        waits = pauses(timeout)
        while self.refresh().open_jobs:
            time.sleep(next(waits))
        return self.state

    def cancel(self, *, force: bool = False) -> Moved:
        """Cancel what waits, and ask what runs to stop; with `force`, take it away."""
        total, seen = Moved(), set[UUID]()
        # Until a look finds nothing new. A job that was seen adds nothing any more: it has ended,
        # or was asked to stop, and what it had added before is there for the next look.
        while jobs := self._open(but=seen):
            reach("workflow.looked")
            total += self._cancel(jobs, force=force)
            seen |= jobs.keys()
        if not seen:
            self.refresh()  # which says that there is no such workflow
        return total

    def _open(self, but: Collection[UUID]) -> dict[UUID, str]:
        """Its jobs that have not ended, and the state of each."""
        jobs = self.jobs.exclude(state__in=ENDED).order_by().values_list("pk", "state")
        return {job_id: state for job_id, state in jobs if job_id not in but}

    def _cancel(self, jobs: Mapping[UUID, str], *, force: bool) -> Moved:
        blocked = [job_id for job_id, state in jobs.items() if state == JobState.BLOCKED]
        others = [job_id for job_id, state in jobs.items() if state != JobState.BLOCKED]
        # A settle holds what runs and waits for what is blocked: held together, each would wait
        # for the other.
        total = Moved()
        for some in parts(self._from_the_last(blocked)):
            total += cancel(some, force=force, using=self.using)
        return total + cancel(others, force=force, using=self.using)

    def _from_the_last(self, blocked: Collection[UUID]) -> list[UUID]:
        """In such an order that no cancel releases one whose turn comes later."""
        edges = Dependency.objects.using(self.using).filter(
            job__workflow=self.id, job__state=JobState.BLOCKED
        )
        found, waiting = edges.values_list("job", "depends_on", "kind"), set(blocked)
        depths = depths_among(waiting, [it for it in found if waiting.issuperset(it[:2])])
        return sorted(waiting, key=depths.__getitem__, reverse=True)

    def resume(self, *, by: Any = None, note: str = "") -> Moved:
        """Requeue its dead jobs; those that died only with them live again, too."""
        ids = self._dead(_OWN_REASONS) or self._none()
        moved = requeue(ids, by=by, note=note, using=self.using)
        # What is still dead died with a job of others, and the answer names that.
        rest = self._dead([DeadReason.DEPENDENCY])
        return moved + requeue(rest, by=by, note=note, using=self.using)

    def _dead(self, reasons: Sequence[DeadReason]) -> list[UUID]:
        dead = self.jobs.filter(dead_letters__open_for=F("pk"), dead_letters__reason__in=reasons)
        return list(dead.values_list("pk", flat=True))

    def drawing(self, most: int = NODES) -> Drawing:
        """Its jobs and edges for a picture; alike ones stand together when there are too many."""
        drawing = draw(self.using, self.id, most)
        if not drawing.nodes:
            self.refresh()
        return drawing

    def _none(self) -> list[UUID]:
        """No jobs, of a workflow that exists."""
        self.refresh()
        return []

    async def arefresh(self) -> Workflow:
        return await sync_to_async(self.refresh)()

    async def await_(self, timeout: Timeout = None) -> WorkflowState:
        waits = pauses(timeout)
        while (await self.arefresh()).open_jobs:  # noqa: ASYNC110  others end it
            await asyncio.sleep(next(waits))
        return await sync_to_async(lambda: self.state)()

    async def aresults(self) -> list[Any]:
        return await sync_to_async(lambda: self.results)()

    async def acancel(self, *, force: bool = False) -> Moved:
        return await sync_to_async(self.cancel)(force=force)

    async def aresume(self, *, by: Any = None, note: str = "") -> Moved:
        return await sync_to_async(self.resume)(by=by, note=note)
