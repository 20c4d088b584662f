"""What went wrong with jobs: a line for each failed attempt, dead job and unknown task."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from ..lifecycle import OutcomeKind
from ..operations.logs import write
from ..values import Outcome
from .holdings import Running

logger = logging.getLogger(__name__)


def tell(running: Running, outcome: Outcome) -> None:
    """Say what an operator should know of this end; nothing of one that is as it should be."""
    if outcome.kind == OutcomeKind.RETRY:
        _tell_retry(running, outcome)
    elif outcome.kind == OutcomeKind.FAIL:
        _tell_death(running, outcome)
    elif outcome.missed:
        job = running.reservation.job
        text = "job %s: no task %r is known here; given back until %s"
        _write(logging.WARNING, text, running, job.task, _shown(outcome.run_at))


def _tell_retry(running: Running, outcome: Outcome) -> None:
    update, job = outcome.update, running.reservation.job
    if update is not None:
        text = "job %s: %s failed (%s, attempt %d of %d), and runs again at %s: %s"
        facts = update.category, update.attempts, job.max_attempts, _shown(update.run_at)
        _write(logging.WARNING, text, running, job.task, *facts, _first_line(update.last_error))


def _tell_death(running: Running, outcome: Outcome) -> None:
    """
    Say it once, with the exception, which error trackers look for in the record.

    Handlers that write text get the stored traceback instead, in which secrets are masked.
    """
    update, job = outcome.update, running.reservation.job
    error, trace = ("", "") if update is None else (update.last_error, update.traceback)
    text = "job %s: %s is dead (%s): %s"
    known = [job.task, outcome.reason, _first_line(error)]
    _write(logging.ERROR, text, running, *known, error=running.error, trace=trace.rstrip())


def _write(
    level: int,
    text: str,
    running: Running,
    *known: Any,
    error: BaseException | None = None,
    trace: str = "",
) -> None:
    job = running.reservation.job
    facts = {"job_id": str(job.id), "task": job.task, "queue": job.queue}
    write(logger, level, text, job.id, *known, error=error, trace=trace, facts=facts)


def _shown(moment: datetime | None) -> str:
    return "once" if moment is None else f"{moment:%H:%M:%S}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
