"""
What a no-op handler notes: when the first and the last of so many runs began, and the CPU between.

It works in every process that runs handlers, ours or a peer's, and costs a fraction of a
microsecond. The clock is the machine's monotonic one, so another process may compare.
"""

import itertools
import json
import os
import time
from pathlib import Path

# What a measure tells a worker through its environment.
PATH, RUNS = "TASKHARBOR_BENCH_METER", "TASKHARBOR_BENCH_RUNS"
POLLING, BATCH = "TASKHARBOR_BENCH_POLLING", "TASKHARBOR_BENCH_BATCH"


class Meter:
    """Counts runs; the file appears with the last one."""

    def __init__(self, path=None, runs=None):
        self._path = Path(path or os.environ.get(PATH, os.devnull))
        self._runs = int(runs or os.environ.get(RUNS, "0"))
        self._next = itertools.count(1).__next__
        self._first = (0.0, 0.0)

    def hit(self):
        number = self._next()
        if number == 1:
            self._first = time.monotonic(), time.process_time()
        if number == self._runs:
            self._write(time.monotonic(), time.process_time())

    def _write(self, at, cpu):
        read = {"first": self._first[0], "last": at, "cpu": cpu - self._first[1]}
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(read))
        draft.rename(self._path)
