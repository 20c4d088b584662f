"""
One worker process: reserve, hand to a pool, settle, heartbeat beside it all.

The loop owns reserving. Pools own running, the completer owns outcomes, the heartbeat owns leases;
each has its own thread and its own connection, so that none of them waits for another.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence

from django.db import Error as DatabaseTrouble

from .. import signals
from ..clock import DatabaseClock, LocalClock, steady
from ..conf import get_settings
from ..drivers import DatabaseDriver
from ..failpoints import reach
from ..lifecycle import OutcomeKind
from ..operations import decide
from ..operations.storage import driver_for
from ..values import Outcome, Reservation
from . import banner, last_acts
from .announcer import Announcer
from .appetite import Appetite
from .async_pool import AsyncPool
from .chores import Chores
from .completer import Completer, Finished
from .dispatch import Dispatch
from .heartbeat import Heartbeat
from .holdings import Holdings, Running
from .inputs import Inputs
from .isolation import Children
from .lines import Lines
from .options import WorkerOptions
from .pools import SHUTDOWN, ThreadPool
from .presence import Presence
from .reports import Reports
from .reserving import Reserving
from .scheduler import Scheduler
from .trouble import disconnect
from .wakeup import Wakeup
from .watch import Watch

logger = logging.getLogger(__name__)

WAITED_TOO_LONG = 1.0
SECOND_LOOK = 0.02
MOST_UNSETTLED = 2_000
UNWILLING = 5.0
SETTLE_AT_EXIT = 10.0
CONNECTED_WITHIN = 0.5  # looks that often whether it was told to stop meanwhile


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
        self._lines = Lines(options.using, options.heartbeat.total_seconds())
        self._wakeup = Wakeup(options.using, self._lines, listen=options.listen)
        self._presence = Presence(self)
        self._scheduler = Scheduler(
            self.driver, self.clock, self._lines, takes_part=options.scheduler
        )
        self._make_database_parts()
        self._make_pools()

    def _make_database_parts(self) -> None:
        """Those that talk to the database, each on a connection of its own."""
        options = self.options
        self._reports = Reports(self.driver, self.holdings, self.clock, self._lines)
        self._announcer = Announcer(self.driver, options.id)
        self._completer = Completer(
            self.driver,
            self.holdings,
            self.clock,
            self._settled,
            self._reports.write_last,
            announcer=self._announcer,
            lines=self._lines,
        )
        self._heartbeat = Heartbeat(
            self.driver,
            self.holdings,
            self.clock,
            lease=options.lease,
            interval=options.heartbeat,
            lines=self._lines,
            on_beat=self._beaten,
            on_found=self._found,
            on_turn=self._presence.write_health,
        )
        self._reserving = Reserving(
            self.driver,
            self.clock,
            self._lines,
            options,
            on_taken=self._take_on,
            on_lost_reply=self._heartbeat.doubt,
            on_back=self._wakeup.doubt,
        )
        self._chores = Chores(self.driver, self.clock, self._lines, options.id)
        self._parts = (self._chores, self._completer, self._heartbeat, self._reports)

    def _make_pools(self) -> None:
        """Where handlers run, and who looks after them."""
        options = self.options
        self._children = Children(self._reports, self.clock, options)
        inputs = Inputs(self.driver, self._lines, self._reports.submit)
        self.threads = ThreadPool(
            options.threads,
            runtime=self._reports,
            clock=self.clock,
            on_finished=self._finished,
            isolated=self._children.run,
            inputs=inputs,
            isolate_all=options.isolate_all,
            using=options.using,
        )
        self.coroutines = AsyncPool(
            options.async_slots,
            runtime=self._reports,
            clock=self.clock,
            on_finished=self._finished,
            inputs=inputs,
        )
        self._dispatch = Dispatch(self.threads, self.coroutines, isolate_all=options.isolate_all)
        self._watch = Watch(
            self.holdings,
            self.threads,
            self.coroutines,
            self._stubborn,
            self._look_at_database,
            stubborn_after=options.stubborn_after,
        )

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
        self._watch.start()
        try:
            if self._wait_for_database():
                self._work()
        finally:
            self._watch.close()

    def _work(self) -> None:
        self.ready = True
        for part in (*self._parts, self.threads, self.coroutines):
            part.start()
        try:
            self._wait_for_parts()
            self._wakeup.start()
            if not self._stopping:
                banner.ready(self.options)
            signals.deliver_through(self._announcer.put)
            self._loop()
        finally:
            self._shut_down()
            signals.deliver_through(signals.tell)

    def _wait_for_database(self) -> bool:
        """Greet the database, however long it is away; False when told to stop meanwhile."""
        while not self._stopping:
            try:
                with self._lines.waiting():
                    self.clock.measure()
                    self._presence.start()
                    self._scheduler.start()
            except DatabaseTrouble as error:
                disconnect(self.options.using)
                self._wakeup.wait(self._reserving.trouble.began(error))
            else:
                self._reserving.trouble.ended()
                return True
        return False

    def _wait_for_parts(self) -> None:
        """
        Hold nothing before there is a connection to renew it over, and one to settle it.

        With too few of them for all workers, jobs would be held by those who can never end them.
        The loop's own is of use to others meanwhile.
        """
        for part in (self._completer, self._heartbeat):
            while not (self._stopping or part.connected.wait(CONNECTED_WITHIN)):
                disconnect(self.options.using)

    # -- the loop --------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping:
            self._give_back()
            self._scheduler.turn()
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
        got = self._reserving.reserve(wanted)
        if got is None:
            return self._reserving.pause
        self.appetite.claimed(wanted, got)
        if got or self._reserving.bounded:
            return 0.0
        if self.options.burst:
            # Looked at before the reserve: a job may enqueue others right before its end.
            if held_nothing:
                self._end("")
            self._hungry = True
        return self._reserving.queues.idle_pause(self.options.poll.total_seconds())

    def _wait(self, pause: float) -> None:
        """Wait for a call or a freed slot; after a call, look twice."""
        if self._dispatch.waiting:
            pause = min(pause, WAITED_TOO_LONG / 2)
        pause = self._scheduler.within(pause)
        if self._stopping or not self._wakeup.wait(pause):
            return
        # Without a name it was only a slot that became free.
        if names := self._wakeup.take_names():
            self._reserving.queues.woken(names - {""}, SECOND_LOOK)

    def _wanted(self) -> int:
        if self.quiet or self._limit_reached() or self._unsettled() > MOST_UNSETTLED:
            return 0
        self.appetite.slots = self._dispatch.slots
        free = self._dispatch.free(sated=self.appetite.sated)
        return self.appetite.wants(free, self._dispatch.waiting)

    def _unsettled(self) -> int:
        """Jobs that ran and wait to be settled; more of them would only wait as well."""
        busy = len(self.threads.busy) + len(self.coroutines.busy)
        return len(self.holdings) - self._dispatch.waiting - busy

    def _limit_reached(self) -> bool:
        """A process past --max-jobs or --max-memory, or with a lost thread, makes way."""
        self.replace = self.replace or bool(self._presence.worn_out())
        if self.replace and all(it in self.coroutines.stuck for it in self.holdings.all()):
            self.make_way(self._presence.worn_out() or "a thread was left behind")
        return self.replace

    def _take_on(self, reserved: Sequence[Reservation], valid_until: float) -> None:
        added = self.holdings.add(reserved, valid_until)
        try:
            if added:
                reach("worker.taken")
                self._announcer.reserved(added)
        finally:  # what is held and in no pool would be renewed for ever
            self._dispatch.put(added)

    def _give_back(self) -> None:
        """What waited a second for a slot may run sooner elsewhere."""
        if late := self._dispatch.take_back(waited=WAITED_TOO_LONG):
            self.appetite.waited_too_long()
            self._release(late)

    def _release(self, unstarted: Iterable[Running]) -> None:
        for running in unstarted:
            self._completer.put(running, decide.outcome(OutcomeKind.RELEASE, running.reservation))

    # -- called by the parts ---------------------------------------------------------------------

    def _finished(self, running: Running, outcome: Outcome) -> None:
        self.appetite.ran(self._presence.ran(running, outcome))
        self.appetite.slot_freed()
        if running.settled:
            self.holdings.remove(running)
            self._settled([(running, outcome)])
            self._announcer.settled([(running, outcome)], now=self.clock.now())
        else:
            self._completer.put(running, outcome)
        if self._hungry and not self._wakeup.is_set:
            self._wakeup.set()

    def _settled(self, settled: Sequence[Finished]) -> None:
        self._presence.count(settled)
        # The end of a step may let another one run, here and now.
        if self._hungry or any(it.reservation.job.workflow for it, _ in settled):
            self._wakeup.set()

    def _beaten(self) -> None:
        self._completer.hurry()
        self._reports.note_long_runs()
        self._presence.beat()
        if self._reserving.trouble.lasts:  # its own pause may have grown long: the database is back
            self._wakeup.set()

    def _found(self, reserved: Sequence[Reservation], sent: float) -> None:
        """A reserve whose reply was lost had taken these."""
        left = reserved[0].lease.expires_at - self.clock.now()
        self._take_on(reserved, sent + left.total_seconds())
        with contextlib.suppress(Exception):  # whatever logs raise, they are taken on
            logger.info("found %d jobs that a reserve without a reply had taken", len(reserved))

    def _look_at_database(self) -> None:
        self._heartbeat.lose_overdue()
        self._lines.cut_silent()

    def _stubborn(self, running: Running, text: str = "") -> None:
        """A handler does not stop: its job failed, and this process makes way."""
        self.replace = True
        self._completer.put(running, self.threads.timed_out(running, text))

    # -- the end ---------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        banner.stopping(self.options, self.why or "nothing is left to do", len(self.holdings))
        self._wakeup.close()
        self._release(self._dispatch.take_back())
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
        self._give_back_rest()
        self._announcer.close()
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

    def _give_back_rest(self) -> None:
        """The last act: nothing is held any more, as far as the database can be told."""
        with self._lines.waiting():
            now = self.clock.now()
            given_back = last_acts.give_back(
                self.driver,
                self.holdings.all(),
                self._completer.unsettled(),
                now=now,
                lease=self.options.lease,
            )
            self._presence.tally.update(outcome.kind for _, outcome in given_back)
            self._announcer.settled(given_back, now=now)
            self._presence.stop()
