"""
Read the results that jobs take, when a pool is about to run them: on a connection of the runtime's,
so that neither the handler's nor the event loop is kept waiting for it.

What is asked for while a read is under way is read together next. Where that fails, each is read
alone: what cannot be read is the failure of the job that takes it, and of no other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from django.db import InterfaceError, OperationalError

from ..clock import Clock
from ..drivers import DatabaseDriver
from ..failpoints import reach
from ..lifecycle import OutcomeKind
from ..operations import decide
from ..operations.inputs import attach
from ..values import Outcome, Reservation
from .holdings import Running
from .lines import Lines
from .trouble import disconnect

logger = logging.getLogger(__name__)

MOST_TOGETHER = 100
AWAY_FOR = timedelta(seconds=5)
AWAY = (OperationalError, InterfaceError)

Asked = tuple[Reservation, "Future[Reservation]"]


class Inputs:
    """Asked by the pools; reads in the thread that `submit` hands work to."""

    def __init__(
        self,
        driver: DatabaseDriver,
        lines: Lines,
        submit: Callable[[Callable[[], None]], Any],
    ) -> None:
        self._driver = driver
        self._lines = lines
        self._submit = submit
        self._asked: deque[Asked] = deque()

    def read(self, reservation: Reservation) -> Future[Reservation]:
        """Ask for the same reservation with what its job takes beside it."""
        future: Future[Reservation] = Future()
        self._asked.append((reservation, future))
        self._submit(self._read_gathered)
        return future

    def _read_gathered(self) -> None:
        gathered = self._take_gathered()
        if not gathered:
            return  # read already, together with what was asked for earlier
        try:
            self._read(gathered)
        except BaseException:  # noqa: BLE001  whoever waits must be answered
            disconnect(self._driver.using)
            self._read_each(gathered)

    def _take_gathered(self) -> list[Asked]:
        most = min(len(self._asked), MOST_TOGETHER)
        asked = [self._asked.popleft() for _ in range(most)]
        return [it for it in asked if it[1].set_running_or_notify_cancel()]

    def _read(self, asked: Sequence[Asked]) -> None:
        reach("inputs.reading")
        with self._lines.waiting():
            read = attach(self._driver, [reservation for reservation, _ in asked])
        for (_, future), reservation in zip(asked, read, strict=True):
            future.set_result(reservation)

    def _read_each(self, asked: Sequence[Asked]) -> None:
        left = deque(asked)
        while left:
            each = left.popleft()
            try:
                self._read([each])
            except BaseException as error:  # noqa: BLE001  it is for the job
                disconnect(self._driver.using)
                each[1].set_exception(error)
                # A database that is away is so for the others, and each would wait as long.
                while left and isinstance(error, AWAY):
                    left.popleft()[1].set_exception(error)


def take(running: Running, reading: Future[Reservation], clock: Clock) -> Outcome | None:
    """Put beside the job what was read, or say what becomes of it; raise what is its own fault."""
    try:
        running.reservation = reading.result()
    except AWAY as error:
        text = " ".join(str(error).split())
        logger.warning(
            "job %s: the results that it takes cannot be read now, it is given back: %s",
            running.job_id,
            text,
            extra={"job_id": str(running.job_id), "error": text},
        )
        # Later, or it would be reserved and given back without end.
        run_at = clock.now() + AWAY_FOR
        return decide.outcome(OutcomeKind.RELEASE, running.reservation, run_at=run_at)
    return None
