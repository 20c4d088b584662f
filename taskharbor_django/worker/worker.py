"""
One worker process: reserve, hand to a pool, settle, heartbeat beside it all.

The loop owns reserving. Pools own running, the completer owns outcomes, the heartbeat owns leases;
each has its own thread and its own connection, so that none of them waits for another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from uuid import uuid4

from django.db import Error as DatabaseTrouble

from ..clock import DatabaseClock, LocalClock, steady
from ..conf import get_settings
from ..drivers import DatabaseDriver
from ..failpoints import reach
from ..lifecycle import OutcomeKind
from ..operations import decide
from ..operations.settle import settle
from ..operations.storage import driver_for
from ..values import Outcome, Rejection, Reservation
from . import banner
from .appetite import Appetite
from .async_pool import AsyncPool
from .completer import Completer, Finished
from .dispatch import Dispatch
from .heartbeat import Heartbeat
from .holdings import Holdings, Running
from .isolation import Children
from .options import WorkerOptions
from .pools import SHUTDOWN, ThreadPool
from .presence import Presence
from .queues import Queues
from .reports import Reports
from .trouble import Trouble, disconnect
from .wakeup import Wakeup
from .watch import Watch

logger = logging.getLogger(__name__)

WAITED_TOO_LONG = 1.0
SWEEP_EACH = 60.0
SECOND_LOOK = 0.02
UNWILLING = 5.0
SETTLE_AT_EXIT = 10.0


class Worker:
    """Everything that one process needs to run jobs; `stop` may be called from a signal handler."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.driver: DatabaseDriver = driver_for(options.using)
        local = get_settings().clock == "local"
        self.clock = DatabaseClock(LocalClock().now if local else self.driver.now)
        self.holdings = Holdings()
        self.appetite = Appetite(options.prefetch, options.threads)
        self.ready = False
        self.replace = False
        self.told = False
        self.why = ""
        self.quiet = False
        self._stopping = False
        self.stragglers = False
        self._hungry = False
        self._pause = 0.0
        self._swept = steady()
        self._trouble = Trouble("reserve")
        self._wakeup = Wakeup(options.using, listen=options.listen)
        self._queues = Queues(self.driver, options.queues)
        self._presence = Presence(self)
        self._reports = Reports(self.driver, self.holdings, self.clock)
        self._completer = Completer(
            self.driver, self.holdings, self.clock, self._settled, self._reports.write_last
        )
        self._heartbeat = Heartbeat(
            self.driver,
            self.holdings,
            self.clock,
            lease=options.lease,
            interval=options.heartbeat,
            on_beat=self._beaten,
            on_found=self._found,
            on_turn=self._presence.write_health,
        )
        holds = self.holdings.holds
        self._children = Children(self._reports, self.clock, options, holds=holds)
        self.threads = ThreadPool(
            options.threads,
            runtime=self._reports,
            clock=self.clock,
            on_finished=self._finished,
            holds=holds,
            isolated=self._children.run,
            isolate_all=options.isolate_all,
            using=options.using,
        )
        self.coroutines = AsyncPool(
            options.async_slots,
            runtime=self._reports,
            clock=self.clock,
            on_finished=self._finished,
            holds=holds,
        )
        self._dispatch = Dispatch(self.threads, self.coroutines, isolate_all=options.isolate_all)
        self._watch = Watch(
            self.holdings,
            self.threads,
            self.coroutines,
            self._stubborn,
            stubborn_after=options.stubborn_after,
        )
        self._parts = (self._completer, self._heartbeat, self._reports, self._watch)

    # -- from outside ----------------------------------------------------------------------------

    def stop(self, why: str = "it was told to") -> None:
        """Stop reserving, finish, and return from `run`."""
        self.told = True
        self._end(why)

    def make_way(self, why: str) -> None:
        """Stop, so that a new process goes on in place of this one."""
        self.replace = True
        self._end(why)

    def _end(self, why: str) -> None:
        self.why = self.why or why
        self._stopping = True
        self._wakeup.set()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def run(self) -> None:
        """Work until told to stop; afterwards nothing is held."""
        if self._wait_for_database():
            self.ready = True
            for part in (*self._parts, self.threads, self.coroutines, self._wakeup):
                part.start()
            banner.ready(self.options)
            try:
                self._loop()
            finally:
                self._shut_down()

    def _wait_for_database(self) -> bool:
        """Greet the database, however long it is away; False when told to stop meanwhile."""
        while not self._stopping:
            try:
                self.clock.measure()
                self._presence.start()
            except DatabaseTrouble as error:
                disconnect(self.options.using)
                self._wakeup.wait(self._trouble.began(error))
            else:
                self._trouble.ended()
                return True
        return False

    # -- the loop --------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping:
            self._give_back()
            wanted = self._wanted()
            if not wanted:
                # Said before the second look: a slot that frees in between is not missed.
                self._hungry = True
                wanted = self._wanted()
            pause = self._turn(wanted) if wanted else WAITED_TOO_LONG / 2
            if pause:
                self._wait(pause)
            self._hungry = False

    def _turn(self, wanted: int) -> float:
        """Reserve once; return how long to wait for a call before the next turn."""
        held_nothing = not self.holdings
        got = self._reserve(wanted)
        if got is None:
            return self._pause
        if got:
            return 0.0
        if self.options.burst:
            # Looked at before the reserve: a job may enqueue others right before its end.
            if held_nothing:
                self._end("")
            self._hungry = True
        return self._queues.idle_pause(self.options.poll.total_seconds())

    def _wait(self, pause: float) -> None:
        """Wait for a call or a freed slot; after a call, look twice."""
        if self.threads.waiting:
            pause = min(pause, WAITED_TOO_LONG / 2)
        if not self._stopping and self._wakeup.wait(pause):
            self._queues.woken(SECOND_LOOK)

    def _wanted(self) -> int:
        if self.quiet or self._limit_reached():
            return 0
        return self.appetite.wants(
            self._dispatch.free(sated=self.appetite.sated), self.threads.waiting
        )

    def _limit_reached(self) -> bool:
        """A process past --max-jobs or --max-memory, or with a lost thread, makes way."""
        self.replace = self.replace or bool(self._presence.worn_out())
        if self.replace and all(it in self.coroutines.stuck for it in self.holdings.all()):
            self.make_way(self._presence.worn_out() or "a thread was left behind")
        return self.replace

    def _reserve(self, wanted: int) -> int | None:
        """Reserve from the queues in their order; None when the database cannot be used."""
        got = 0
        try:
            self._sweep()
            for queue in self._queues.in_turn():
                got += self._reserve_from(queue, wanted - got)
                if got >= wanted:
                    break
        except Exception as error:  # noqa: BLE001  a worker outlives whatever it is
            disconnect(self.options.using)
            self._pause = self._trouble.began(error)
            return None
        self._trouble.ended()
        self.appetite.claimed(wanted, got)
        return got

    def _reserve_from(self, queue: str, limit: int) -> int:
        token, sent = uuid4(), steady()
        try:
            reserved = self.driver.reserve(
                queue,
                now=self.clock.now(),
                lease_for=self.options.lease,
                limit=limit,
                worker=self.options.id,
                token=token,
                max_lease_losses=self.options.max_lease_losses,
            )
        except Exception:
            self._heartbeat.doubt(token)
            raise
        self._take_on(reserved, sent + self.options.lease.total_seconds())
        return len(reserved)

    def _take_on(self, reserved: Sequence[Reservation], valid_until: float) -> None:
        added = self.holdings.add(reserved, valid_until)
        if added:
            reach("worker.taken")
        self._dispatch.put(added)

    def _give_back(self) -> None:
        """What waited a second for a slot may run sooner elsewhere."""
        if self.threads.oldest_wait() > WAITED_TOO_LONG:
            self.appetite.waited_too_long()
            self._release(self.threads.take_back())

    def _release(self, unstarted: Iterable[Running]) -> None:
        for running in unstarted:
            self._completer.put(running, decide.outcome(OutcomeKind.RELEASE, running.reservation))

    def _sweep(self) -> None:
        if steady() - self._swept > SWEEP_EACH:
            self._swept = steady()
            self.driver.sweep(now=self.clock.now(), max_lease_losses=self.options.max_lease_losses)

    # -- called by the parts ---------------------------------------------------------------------

    def _finished(self, running: Running, outcome: Outcome) -> None:
        self.appetite.ran(self._presence.ran(running, outcome))
        self.appetite.slot_freed()
        if running.settled:
            self.holdings.remove(running)
            self._settled([(running, outcome)])
        else:
            self._completer.put(running, outcome)
        if self._hungry:
            self._wakeup.set()

    def _settled(self, settled: Sequence[Finished]) -> None:
        self._presence.count(settled)
        if self._hungry:
            self._wakeup.set()

    def _beaten(self) -> None:
        self._completer.hurry()
        self._reports.note_long_runs()
        self._presence.beat()

    def _found(self, reserved: list[Reservation], sent: float) -> None:
        """A reserve whose reply was lost had taken these."""
        logger.info("found %d jobs that a reserve without a reply had taken", len(reserved))
        left = reserved[0].lease.expires_at - self.clock.now()
        self._take_on(reserved, sent + left.total_seconds())

    def _stubborn(self, running: Running, text: str = "") -> None:
        """A handler does not stop: its job failed, and this process makes way."""
        self.replace = True
        self._completer.put(running, self.threads.timed_out(running, text))

    # -- the end ---------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        banner.stopping(self.options, self.why or "nothing is left to do", len(self.holdings))
        self._wakeup.close()
        self._release(self.threads.take_back())
        if not self._finish(self.options.grace.total_seconds()):
            for running in self.holdings.all():
                running.cancel(SHUTDOWN, force=True)
            self._finish(UNWILLING)
        self._children.close()
        self._completer.drain(SETTLE_AT_EXIT)
        ended = [pool.close(UNWILLING) for pool in (self.threads, self.coroutines)]
        self.stragglers = not all(ended)
        for part in self._parts:
            part.close()
        self._release_rest()
        self._presence.stop()
        disconnect(self.options.using)

    def _finish(self, patience: float) -> bool:
        """Wait until no handler runs; False when some still do."""
        until = steady() + patience
        while not self.threads.at_rest or self.coroutines.busy - self.coroutines.stuck:
            left = until - steady()
            if left <= 0:
                return False
            self._hungry = True
            self._wakeup.wait(min(left, 0.5))
        return True

    def _release_rest(self) -> None:
        """The last act: settle what could not be before, give back what will not stop."""
        known = self._completer.unsettled()
        left = [
            known.get(it)
            or decide.outcome(OutcomeKind.RELEASE, it.reservation, started_at=it.started_at)
            for it in self.holdings.all()
        ]
        if left:
            try:
                refused = settle(self.driver, left, now=self.clock.now())
                self._remove_leases(left, refused)
                self._presence.tally.update(outcome.kind for outcome in left)
            except DatabaseTrouble:
                logger.warning(
                    "%d jobs could not be given back; their leases will expire", len(left)
                )

    def _remove_leases(self, released: Iterable[Outcome], refused: Iterable[Rejection]) -> None:
        """Remove the rows of leases that cover nothing any more: no heartbeat will."""
        tokens = {outcome.token for outcome in released} - {it.outcome.token for it in refused}
        self.driver.extend_leases(tokens, now=self.clock.now(), lease_for=self.options.lease)
