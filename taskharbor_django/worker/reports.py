"""
What running jobs tell: progress is written about once a second, a checkpoint at once.

Both go through connections of the runtime, never the handler's: a handler may be inside a
transaction of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseTrouble

from ..clock import Clock
from ..conf import get_settings
from ..context import JobContext
from ..drivers import DatabaseDriver
from ..failpoints import reach
from ..operations import additions, report
from ..payload import decode_value, encode_value, sanitise_text
from ..tasks import registry
from ..workflows import plan_of
from .holdings import Holdings, Running
from .lines import Lines
from .trouble import disconnect, tell_fault

logger = logging.getLogger(__name__)

WRITE_EACH = 1.0
MESSAGE_MAX_CHARS = 200


class Reports(threading.Thread):
    """The runtime behind every context of this process."""

    def __init__(
        self,
        driver: DatabaseDriver,
        holdings: Holdings,
        clock: Clock,
        lines: Lines | None = None,
    ) -> None:
        super().__init__(name="taskharbor-reports", daemon=True)
        self._driver = driver
        self._holdings = holdings
        self._clock = clock
        self._lines = lines or Lines(driver.using)
        self._dirty = threading.Event()
        self._stopping = threading.Event()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="taskharbor-checkpoint")

    def start(self) -> None:
        # Not by the first handler that asks: until a new thread runs, CPython 3.11 takes it for the
        # one that starts it, and an exception that is to stop the handler kills it instead.
        self._writer.submit(int).result()
        super().start()

    # -- what contexts ask for -------------------------------------------------------------------

    def progressed(self, context: JobContext) -> None:  # noqa: ARG002  as a child's has it
        self._dirty.set()

    def load_checkpoint(self, data: bytes) -> Any:
        return decode_checkpoint(data)

    def save_checkpoint(self, context: JobContext, value: Any) -> None:
        self.store_checkpoint(context, encode_checkpoint(value))

    def store_checkpoint(self, context: JobContext, data: bytes) -> None:
        reach("reports.checkpointing")
        lease = context.reservation.lease
        self._in_writer(
            lambda: report.save_checkpoint(
                self._driver, context.job_id, lease.token, data, now=self._clock.now()
            )
        )
        keep_checkpoint(context, data)

    def add(self, context: JobContext, part: Any, key: str | None) -> Any:
        asked = addition_of(context, part, key)
        if not kept_for_the_ack(context, asked):
            self._in_writer(lambda: additions.add(self._driver, context.reservation, asked))
        return additions.handles(asked, self._driver.using)

    def previous_attempt_id(self, context: JobContext) -> int | None:
        asked: int | None = self._in_writer(
            lambda: report.previous_attempt_id(self._driver, context.job_id)
        )
        return asked

    def _in_writer(self, verb: Any) -> Any:
        def run() -> Any:
            try:
                with self._lines.waiting():
                    return verb()
            except DatabaseTrouble:
                disconnect(self._driver.using)
                raise

        return self.submit(run).result()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Let the thread that writes checkpoints do this, on its connection."""
        return self._writer.submit(work)

    # -- the writing -----------------------------------------------------------------------------

    def close(self) -> None:
        self._stopping.set()
        self._dirty.set()
        self.join()
        self._writer.submit(lambda: disconnect(self._driver.using))
        self._writer.shutdown()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                self.write()
            except Exception as error:  # noqa: BLE001  the next time comes
                tell_fault(logger, error, "progress could not be written down")
            self._stopping.wait(WRITE_EACH)
        disconnect(self._driver.using)

    def write_last(self, ending: Iterable[Running]) -> None:
        """Write down the progress of jobs that are about to be settled: after that it is late."""
        told = [it for it in ending if it.context is not None and it.context.progress is not None]
        if told:
            self._write(told)

    def write(self) -> None:
        """Write down what changed since the last time; what is not written now comes again."""
        self._write(self._holdings.all())

    def _write(self, runnings: Iterable[Running]) -> None:
        changed = {running: facts for running in runnings if (facts := _news(running))}
        reports: dict[UUID, Any] = {
            running.job_id: (running.token, facts) for running, facts in changed.items()
        }
        if not reports:
            return
        try:
            reach("reports.writing")
            with self._lines.waiting():
                written = report.report(self._driver, reports)
        except DatabaseTrouble:
            disconnect(self._driver.using)  # others say so; progress can wait
            return
        for running, facts in changed.items():
            if running.job_id in written:
                running.reported = facts

    def note_long_runs(self) -> None:
        """Called with each heartbeat: a job that runs longer than a beat shows since when."""
        self._dirty.set()


def _news(running: Running) -> dict[str, Any] | None:
    context = running.context
    if context is None or running.started_at is None:
        return None
    facts: dict[str, Any] = {"started_at": running.started_at}
    if context.progress is not None:
        percent, message = context.progress
        facts |= {
            "progress": percent,
            "progress_message": sanitise_text(message, MESSAGE_MAX_CHARS),
        }
    return facts if facts != running.reported else None


def encode_checkpoint(value: Any) -> bytes:
    settings = get_settings()
    return encode_value(
        value,
        max_bytes=settings.payload_max_bytes,
        codec=settings.payload_codec,
        name="checkpoint",
    )


def decode_checkpoint(data: bytes) -> Any:
    return decode_value(data, codec=get_settings().payload_codec)


def keep_checkpoint(context: JobContext, data: bytes) -> None:
    """Let the context answer with what was just stored."""
    job = replace(context.reservation.job, checkpoint=data)
    context.reservation = replace(context.reservation, job=job)


def addition_of(context: JobContext, part: Any, key: str | None) -> additions.Addition:
    """What a handler wants to add to its workflow, or raise what is wrong with it."""
    plan, end = plan_of(part)
    return additions.addition(plan, end.results, end.waits, context.job_id, key)


def kept_for_the_ack(context: JobContext, asked: additions.Addition) -> bool:
    """Say whether the task is atomic; what it adds then commits with its own writes."""
    if not registry.get(context.reservation.job.task).atomic:
        return False
    context.additions = (*context.additions, asked)
    return True
