"""run_inline: inside the block, enqueue runs the job before it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock
from uuid import UUID

from .. import workflows
from ..operations import enqueue
from ..operations.transactions import after_commit
from ..tasks import Call, Submitter, submit_through
from .draining import drain


class _Inline:
    """Stores calls as ever, and drains afterwards; what a handler enqueues runs after it."""

    def __init__(self, inner: Submitter, *, raises: bool) -> None:
        self._inner = inner
        self._raises = raises
        self._draining = False

    def enqueue(self, call: Call) -> Any:
        handle = self._inner.enqueue(call)
        self.drain()
        return handle

    def enqueue_on_commit(self, call: Call) -> None:
        self._inner.enqueue_on_commit(call)
        after_commit(self.drain)

    def enqueue_many(
        self, calls: Iterable[Call], batch_size: int, on_batch: Callable[[list[UUID]], Any] | None
    ) -> int:
        stored = self._inner.enqueue_many(calls, batch_size, on_batch)
        self.drain()
        return stored

    def drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        try:
            drain(raises=self._raises)
        finally:
            self._draining = False


@contextlib.contextmanager
def run_inline(*, raises: bool = True) -> Iterator[None]:
    """
    Let enqueue run the job, and all that may run, before it returns.

    What a handler raises is raised by that enqueue, unless `raises` is False; then it is only what
    it is in a worker: a failed attempt. Jobs for later wait, as they would.
    """
    store = workflows._enqueue

    def enqueue_workflow(*args: Any) -> Any:
        handle = store(*args)
        inline.drain()
        return handle

    inline = _Inline(enqueue, raises=raises)
    before = submit_through(inline)
    try:
        with mock.patch.object(workflows, "_enqueue", enqueue_workflow):
            yield
    finally:
        submit_through(before or enqueue)
