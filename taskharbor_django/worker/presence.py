"""What others see of this process: its row, its statistics, its health file, one line per event."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..lifecycle import OutcomeKind
from ..operations import workers
from . import banner, failures
from .completer import too_late
from .errands import Errands
from .trouble import Trouble, disconnect, tell_fault

if TYPE_CHECKING:
    from ..values import Outcome
    from .completer import Finished
    from .holdings import Running
    from .worker import Worker

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
LAST_LINES = 2.0  # seconds at the end
MOST_COUNTS = 100  # minutes and queues in one beat, which has a few seconds in all

# outcome -> column of the statistics; a release is no event of the job
_COLUMNS = {OutcomeKind.ACK: "done", OutcomeKind.RETRY: "failed", OutcomeKind.FAIL: "dead"}


class Presence:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._options = worker.options
        self._lock = threading.Lock()
        self._trouble = Trouble("statistics")
        self._counts: dict[tuple[datetime, str], Counter[str]] = {}
        # Also those whose outcome is not stored yet; only where a limit asks for it.
        self._runs = 0
        options = worker.options
        self._counts_runs = options.max_jobs is not None or options.max_memory is not None
        self.tally = Counter(dict.fromkeys(OutcomeKind, 0))
        self.too_late = 0
        too_late.connect(self._count_too_late, sender=worker.holdings)
        # A handler of logs may send a mail, and its server be silent: outcomes do not wait for it.
        self._lines = Errands("taskharbor-failures", on_left_out=_tell_left_out)

    def start(self) -> None:
        options, driver = self._options, self._worker.driver
        workers.start_worker(
            driver,
            options.id,
            name=options.name,
            queues=",".join(options.queues),
            slots=options.threads,
            lease=options.lease,
            now=self._worker.clock.now(),
        )
        self.write_health()

    def beat(self) -> None:
        """
        Say that the process lives, hear what is asked of it, and add up statistics.

        Whatever becomes of that, leases have been renewed, and nobody is called before the next
        beat: on a full disk a row of statistics is a new one, and a renewed lease is not.
        """
        try:
            self._say_and_hear()
            self._write_counts()
        except Exception as error:  # noqa: BLE001  the next beat comes
            disconnect(self._options.using)
            self._trouble.began(error)
        else:
            self._trouble.ended()

    def _say_and_hear(self) -> None:
        worker = self._worker
        asked = workers.beat_worker(
            worker.driver,
            self._options.id,
            now=worker.clock.now(),
            busy=len(worker.slots.threads.busy),
            memory_bytes=memory(),
        )
        worker.quiet = bool(asked)
        if asked == "stop":
            worker.stop("an operator asked for it")

    def stop(self, *, given_back: int) -> None:
        """Say goodbye; what is given back is counted, though that comes after everything else."""
        self.tally[OutcomeKind.RELEASE] += given_back
        with contextlib.suppress(Exception):  # the row then shows an old beat, which says the same
            while self._counts:
                self._write_counts()
            now = self._worker.clock.now()
            workers.stop_worker(self._worker.driver, self._options.id, now=now)
        # Whoever goes on in place of this process finds the file fresh, and so do probes.
        if self._options.health_file and (self._worker.told or not self._worker.replace):
            with contextlib.suppress(OSError):
                Path(self._options.health_file).unlink(missing_ok=True)
        self._lines.close(LAST_LINES)
        with contextlib.suppress(Exception):  # whatever logs raise, what runs is still given back
            banner.stopped(self._options, self.tally, too_late=self.too_late)

    # -- counting --------------------------------------------------------------------------------

    def ran(self, running: Running, outcome: Outcome) -> float:
        """Count a run that has ended; return how long it took, in seconds."""
        if self._counts_runs and outcome.kind != OutcomeKind.RELEASE:
            with self._lock:
                self._runs += 1
        if running.started_at is None:
            return 0.0
        ended = outcome.finished_at or self._worker.clock.now()
        return (ended - running.started_at).total_seconds()

    def count(self, settled: Sequence[Finished]) -> None:
        minute = self._worker.clock.now().replace(second=0, microsecond=0)
        counts = Counter((it.reservation.job.queue, outcome.kind) for it, outcome in settled)
        with self._lock:
            for (queue, kind), times in counts.items():
                self.tally[kind] += times
                if kind in _COLUMNS:
                    self._counts.setdefault((minute, queue), Counter())[_COLUMNS[kind]] += times
        if failed := [it for it in settled if it[1].kind != OutcomeKind.ACK]:
            self._lines.put(partial(_tell, failed), len(failed))

    def _count_too_late(self, **_: Any) -> None:
        self.too_late += 1

    def _write_counts(self) -> None:
        """Write what was counted, the oldest first; of very many the rest has later beats."""
        with self._lock:
            oldest = sorted(self._counts)[:MOST_COUNTS]
            counts = {key: self._counts.pop(key) for key in oldest}
        try:
            workers.count_minutes(self._worker.driver, self._options.id, counts)
        except Exception:
            with self._lock:
                for key, columns in counts.items():
                    self._counts.setdefault(key, Counter()).update(columns)
            raise

    def worn_out(self) -> str:
        """Why a new process should go on in place of this one; empty while none should."""
        options, finished = self._options, self._runs
        if options.max_jobs is not None and finished >= options.max_jobs:
            return f"jobs finished: {finished} (--max-jobs)"
        # Not before the first job, or a limit below what an idle process takes would let none run.
        if finished and options.max_memory is not None and memory() >= options.max_memory:
            return f"memory: {memory() // MIB:,} MB (--max-memory)"
        return ""

    # -- for probes ------------------------------------------------------------------------------

    def write_health(self) -> None:
        """
        Write a file whose age says whether the worker lives.

        Also when a beat failed: a restart would not bring the database back, but lose outcomes.
        """
        if self._options.health_file is None:
            return
        path = Path(self._options.health_file)
        facts = {"worker": self._options.id, "pid": os.getpid(), "held": len(self._worker.holdings)}
        fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            fresh.write_text(json.dumps(facts), encoding="utf-8")
            fresh.replace(path)
        except OSError as error:  # a full disk must not stop the heartbeat; probes see an old file
            logger.warning("the health file cannot be written: %s", error)


def _tell(failed: Sequence[Finished]) -> None:
    """Log what went wrong; that a filter of the project's raises keeps none of the others."""
    for running, outcome in failed:
        try:
            failures.tell(running, outcome)
        except Exception as error:  # noqa: BLE001  others are to be told of, too
            tell_fault(logger, error, "job %s: its end could not be logged", running.job_id)


def _tell_left_out(jobs: int) -> None:
    logger.warning("logs are too slow: the failures of %d jobs were not written down", jobs)


def memory() -> int:
    """Bytes that this process occupies now; where that is not told, the most it ever did."""
    with contextlib.suppress(OSError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
