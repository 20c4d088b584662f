"""The lines by which an operator follows a worker, and who shows them when nobody else does."""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import Any

from django.db import connections

from .. import __version__
from ..conf import get_settings
from ..context import JobFilter
from ..lifecycle import OutcomeKind
from ..tasks import registry
from .options import ALL_QUEUES, WorkerOptions

logger = logging.getLogger(__name__)

PACKAGE = "taskharbor_django"
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # by --verbosity


class Line(logging.Formatter):
    """Time, level, process and message; and the job, for what was logged inside one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(process)d %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's own name
        line = super().formatMessage(record)
        job_id = getattr(record, "job_id", "")
        return f"{line} [job {job_id}]" if job_id and job_id not in record.message else line


def show_lines(verbosity: int) -> None:
    """Write the package's log to stderr, unless the project's LOGGING sends it somewhere."""
    package = logging.getLogger(PACKAGE)
    if package.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.addFilter(JobFilter())
    handler.setFormatter(Line())
    package.addHandler(handler)
    package.setLevel(LEVELS[max(0, min(verbosity, 2))])


def started(options: WorkerOptions) -> None:
    facts = {
        "version": __version__,
        "worker": options.id,
        "worker_name": options.name,
        "pid": os.getpid(),
        "queues": ",".join(options.queues),
        "threads": options.threads,
        "pool": "process" if options.isolate_all else "thread",
        "database": options.using,
        "vendor": connections[options.using].vendor,
        "lease": options.lease.total_seconds(),
        "wake_up": _wake_up(options),
    }
    logger.info(
        "TaskHarbor %(version)s: %(worker_name)s %(worker)s, pid %(pid)d: queues %(queues)s, "
        "threads %(threads)d, pool %(pool)s, database %(database)s (%(vendor)s), "
        "lease %(lease)g s, %(wake_up)s",
        facts,
        extra=facts,
    )
    for queue in _named_by_no_task(options):
        logger.info(
            "no task of this project has the queue %s: it gets jobs only by calls and schedules "
            "that name it",
            queue,
            extra={"queue": queue},
        )


def _named_by_no_task(options: WorkerOptions) -> list[str]:
    """The queues that may be misspelt, for nothing else would tell."""
    default = get_settings().queue
    named = {ALL_QUEUES, default} | {task.queue for _name, task in registry}
    return [queue for queue in options.queues if queue not in named]


def _wake_up(options: WorkerOptions) -> str:
    poll = f"polling each {options.poll.total_seconds():g} s"
    listens = options.listen and connections[options.using].vendor == "postgresql"
    return f"NOTIFY and {poll}" if listens else poll


def ready(options: WorkerOptions) -> None:
    logger.info("%s is ready", options, extra=_facts(options))


def stopping(options: WorkerOptions, why: str, held: int) -> None:
    text = "%s stops: %s; jobs held: %d"
    logger.info(text, options, why, held, extra=_facts(options, why=why, held=held))


def stopped(options: WorkerOptions, tally: Counter[OutcomeKind], *, too_late: int) -> None:
    given_back = tally[OutcomeKind.RELEASE]
    finished = tally.total() - given_back
    done, again = tally[OutcomeKind.ACK], tally[OutcomeKind.RETRY]
    dead, cancelled = tally[OutcomeKind.FAIL], tally[OutcomeKind.CANCEL]
    facts = _facts(options, finished=finished, given_back=given_back, done=done, dead=dead)
    facts["too_late"] = too_late
    text = (
        "%s stopped; runs: %d (done %d, to run again %d, dead %d, cancelled %d), given back: %d, "
        "too late: %d"
    )
    counts = finished, done, again, dead, cancelled, given_back, too_late
    logger.info(text, options, *counts, extra=facts)


def _facts(options: WorkerOptions, **more: Any) -> dict[str, Any]:
    return {"worker": options.id, "worker_name": options.name, **more}
