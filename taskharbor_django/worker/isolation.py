"""
Isolated handlers: each in a child process, looked after by a thread of the pool.

A child is a program of its own (child.py), never a fork of this process with its threads. It is
connected by a pair of sockets and by nothing else; what a handler prints goes where the worker's
own output goes. It serves one job at a time and, if it lives, others after it.

    worker                                   child
    (starts the program)
    using, path, argv          ->            becomes like the worker, django.setup()
                               <-  ready     or: broken, with the traceback
    job n: reservation, time   ->            runs the handler
                               <-  progress n
                               <-  checkpoint n / previous_attempt n, question q
    answer n to q: value or error  ->        the handler goes on, or the error is raised in it
    cancel n: why              ->            the context says so, a coroutine is cancelled
                               <-  outcome n: everything but whose it is; settled, if atomic
    job n+1, or end            ->

Each message after the start names its job by a number, so that what comes late is recognised.

The worker ends the child by SIGKILL, with the group that it leads: at the deadline, when the lease
is lost or the job revoked, at the end of the shutdown's grace. What that means for the job is what
it means in every pool. A child that ends unasked has failed its job: category `system`, with the
signal or exit code. A child that cannot start has, too, and the next one waits a little longer.
Nobody but the worker ends a child: it has a session of its own and takes no notice of SIGTERM.

If the child dies
    before it had the job: the job is charged none the less, or a poisonous start would go on for
    ever; after an atomic task committed and before it could say so: the failure is refused as a
    repetition of that ack.
If the worker dies
    the line ends at the child, whose listening thread stops the handler and settles what is known
    about the job through a connection of its own: a release, or the outcome that the worker had no
    time to settle; both are fenced like everything else. Before the job was on the line, or when
    nothing runs in the child any more, the lease expires as any other.
    A child that does not end then, because it is stopped or its handler does not let go of the
    interpreter, is killed by the guard (guard.py), and what handlers had started with it.
If the worker is stopped and continued
    nothing happens at the child; a lease that was lost meanwhile makes the worker kill it.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from dataclasses import replace
from typing import Any

from ..clock import Clock, steady
from ..context import JobContext
from ..exceptions import CancelRequested, TaskHarborError
from ..lifecycle import FailureCategory, OutcomeKind
from ..operations import decide
from ..values import Outcome
from .executor import Prepared
from .holdings import LEASE_LOST, REVOKED, Running
from .interrupts import Interrupted
from .messages import ChannelClosed, Message, error_facts, read_outcome, reservation_facts
from .nursery import IDLE_FOR, Nursery
from .options import WorkerOptions
from .pools import SHUTDOWN, TIME_IS_UP, end_of, not_ours
from .processes import LOOK_EACH, Child, NotReady
from .reports import Reports

TAIL = 4_000  # characters of what a child said that could not start; the end of it says most
FORCED = frozenset({TIME_IS_UP, SHUTDOWN, LEASE_LOST, REVOKED})


class ChildDied(TaskHarborError):
    """The child process of the job died."""


class Children:
    """Runs jobs in child processes; `run` is called by the threads of the pool."""

    def __init__(
        self,
        runtime: Reports,
        clock: Clock,
        options: WorkerOptions,
        *,
        idle_for: float = IDLE_FOR,
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._using = options.using
        self._numbers = itertools.count(1)
        self._nursery = Nursery(idle_for, options.farewell)

    def close(self) -> None:
        """End the idle ones and kill the others; from now on none is started."""
        for running in self._nursery.close():
            running.cancel(SHUTDOWN, force=True)
        self._nursery.wait()

    def run(self, running: Running, prepared: Prepared) -> Outcome:
        """Run the job in a child; return when it is over, in whatever way."""
        # What it takes to find a child is not the handler's time.
        deadline, running.deadline = running.deadline, None
        try:
            child = self._nursery.take(running)
        except OSError as error:
            return self._failed(running, prepared, "start", f"could not be started: {error}")
        if child is None:
            return self._not_begun(running, prepared)
        running.deadline = deadline if child.ready else None
        try:
            outcome = self._talk(child, running, prepared)
        except (ChannelClosed, NotReady) as error:
            return self._ended(child, running, prepared, error)
        except BaseException:
            self._nursery.bury(child)
            raise
        self._part_from(child, outcome)
        return outcome

    def _part_from(self, child: Child, outcome: Outcome) -> None:
        if outcome.update is not None and outcome.update.category == FailureCategory.SYSTEM:
            self._nursery.bury(child)  # out of memory, for one: nothing that another job wants
        else:
            self._nursery.put_back(child)

    # -- the talk --------------------------------------------------------------------------------

    def _talk(self, child: Child, running: Running, prepared: Prepared) -> Outcome:
        """Hand the job over, and listen until there is an outcome."""
        if not child.ready:
            child.get_ready(self._using)
            self._begin_anew(running, prepared)
        # Asked again: until a child is ready, seconds may go by, or an hour in a stopped process.
        if not running.is_ours(steady()):
            return not_ours(running)
        number, told = next(self._numbers), False
        facts = {"number": number, "now": self._clock.now(), "steady": steady()}
        job = reservation_facts(running.reservation)
        child.send({"kind": "job", **facts, "started_at": running.started_at, **job})
        while True:
            message = child.receive(LOOK_EACH)
            if message is not None and message["number"] == number:
                if message["kind"] == "outcome":
                    running.settled = message["settled"]
                    return read_outcome(message["outcome"], running.reservation)
                self._hear(child, running, message)
            if not told and (why := _why(running)):
                told = True
                self._pass_on(child, number, why)

    def _begin_anew(self, running: Running, prepared: Prepared) -> None:
        """The child was new, and is ready only now."""
        running.started_at = self._clock.now()
        if running.context is not None:
            started = replace(prepared, started_at=running.started_at)
            running.context.deadline = started.deadline(running.reservation)
        if (timeout := running.reservation.job.timeout) is not None:
            running.deadline = steady() + timeout.total_seconds()

    def _pass_on(self, child: Child, number: int, why: str) -> None:
        """Ask the handler to stop; what came by force, before there was a child, is done now."""
        if why in FORCED:
            child.kill()
        else:
            child.send({"kind": "cancel", "number": number, "why": why})

    def _hear(self, child: Child, running: Running, message: Message) -> None:
        context = running.context
        if context is None:
            return
        if message["kind"] == "progress":
            context.set_progress(message["percent"], message["text"])
            return
        answer = {name: message[name] for name in ("number", "question")}
        try:
            answer["value"] = self._look_up(context, message)
        except Exception as error:  # noqa: BLE001  it is for the handler
            answer["error"] = error_facts(error)
        child.send({"kind": "answer", **answer})

    def _look_up(self, context: JobContext, message: Message) -> Any:
        if message["kind"] == "checkpoint":
            return self._runtime.store_checkpoint(context, message["data"])
        return self._runtime.previous_attempt_id(context)

    # -- what an end means -----------------------------------------------------------------------

    def _ended(
        self, child: Child, running: Running, prepared: Prepared, error: Exception
    ) -> Outcome:
        how = _how(self._nursery.bury(child))
        prepared = replace(prepared, started_at=running.started_at or prepared.started_at)
        if child.killed or _why(running) == SHUTDOWN:
            if not child.ready:
                return self._not_begun(running, prepared)
            return end_of(Interrupted(), running, prepared, self._clock.now())
        if child.ready:
            return self._failed(running, prepared, how, f"died: {how}.")
        said = f"\n{str(error)[-TAIL:]}" if isinstance(error, NotReady) else ""
        return self._failed(running, prepared, how, f"could not be started: {how}.{said}")

    def _failed(self, running: Running, prepared: Prepared, code: str, text: str) -> Outcome:
        return decide.outcome_of(
            ChildDied(f"The child process {text}"),
            running.reservation,
            prepared.task,
            now=self._clock.now(),
            started_at=prepared.started_at,
            category=FailureCategory.SYSTEM,
            code=code,
        )

    def _not_begun(self, running: Running, prepared: Prepared) -> Outcome:
        why = _why(running) or SHUTDOWN
        if why == SHUTDOWN:
            return decide.outcome(OutcomeKind.RELEASE, running.reservation)
        return end_of(CancelRequested(why), running, prepared, self._clock.now())


def _why(running: Running) -> str:
    return running.context.why_cancelled if running.context else ""


def _how(status: int) -> str:
    """An exit status as `subprocess` gives it, as a failure code."""
    if status >= 0:
        return f"exit:{status}"
    with contextlib.suppress(ValueError):
        return f"signal:{signal.Signals(-status).name}"
    return f"signal:{-status}"
