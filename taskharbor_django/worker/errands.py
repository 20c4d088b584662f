"""
What may take long and must keep nobody waiting, done by a thread of its own, in its order.

There is no thread before the first errand. What it does not keep up with is left out and counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from django.db import connections as django_connections

from .trouble import tell_fault

logger = logging.getLogger(__name__)

# Of what errands tell, not of errands: each has the jobs of a batch, with all that they carry.
MOST_WAITING = 10_000

Errand = Callable[[], object]


class Errands:
    def __init__(self, name: str, *, on_left_out: Callable[[int], object]) -> None:
        self._name = name
        self._on_left_out = on_left_out  # called by the thread, when it has caught up
        self._line: SimpleQueue[tuple[Errand, int] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._left_out = 0
        self._thread: threading.Thread | None = None

    def put(self, errand: Errand, count: int = 1) -> bool:
        """Let it be done; False when it is the first that is left out."""
        with self._lock:
            if self._waiting and self._waiting + count > MOST_WAITING:
                self._left_out += count
                return self._left_out > count
            self._waiting += count
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._line.put((errand, count))
        return True

    def close(self, patience: float) -> None:
        """Do what waits, as far as that comes to an end in time."""
        if self._thread is not None:
            self._line.put(None)
            self._thread.join(patience)

    def _run(self) -> None:
        while (asked := self._line.get()) is not None:
            errand, count = asked
            self._do(errand)
            with self._lock:
                self._waiting -= count
                left_out = 0 if self._waiting else self._left_out
                self._left_out -= left_out
            if left_out:
                self._do(partial(self._on_left_out, left_out))
        django_connections.close_all()

    def _do(self, errand: Errand) -> None:
        try:
            errand()
        except BaseException as error:  # noqa: BLE001  SystemExit of a receiver too: others wait
            tell_fault(logger, error, "%s: an errand failed", self._name)
