"""
One worker process: its parts, what they tell each other, how it begins and how it ends.

The loop owns reserving. Pools own running, the completer owns outcomes, the heartbeat owns leases;
each has its own thread and its own connection, so that none of them waits for another.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta

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
from .chores import Chores
from .completer import Completer, Finished
from .heartbeat import Heartbeat
from .holdings import Holdings, Running
from .lines import Lines
from .loop import Loop
from .options import WorkerOptions
from .pools import SHUTDOWN
from .presence import Presence
from .reports import Reports
from .reserving import Reserving
from .scheduler import Scheduler
from .slots import Slots
from .trouble import FIRST_PAUSE, Pause, disconnect
from .wakeup import Wakeup

logger = logging.getLogger(__name__)

MOST_UNSETTLED = 2_000
UNWILLING = 5.0
SETTLE_AT_EXIT = 10.0
ANNOUNCE_AT_EXIT = 5.0
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
        self.stragglers = False
        self._lines = Lines(options.using, options.heartbeat.total_seconds())
        self._wakeup = Wakeup(options.using, self._lines, listen=options.listen)
        self._presence = Presence(self)
        self._make_database_parts()
        self._make_loop()

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
        self._chores = Chores(self.driver, self.clock, self._lines, options.id)
        self._parts = (self._chores, self._completer, self._heartbeat, self._reports)

    def _make_loop(self) -> None:
        """What reserves, and where that runs."""
        options = self.options
        self.slots = Slots(
            options,
            self.driver,
            self.holdings,
            self.clock,
            lines=self._lines,
            reports=self._reports,
            on_finished=self._finished,
            on_stubborn=self._stubborn,
            on_look=self._look_at_database,
        )
        self._dispatch = self.slots.dispatch
        self._scheduler = Scheduler(
            self.driver, self.clock, self._lines, takes_part=options.scheduler
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
        self._loop = Loop(
            options,
            self.appetite,
            self.holdings,
            dispatch=self._dispatch,
            reserving=self._reserving,
            scheduler=self._scheduler,
            wakeup=self._wakeup,
            may_reserve=self._may_reserve,
            release=self._release,
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
        self._loop.stop()

    @property
    def stopping(self) -> bool:
        return self._loop.stopping

    def run(self) -> None:
        """Work until told to stop; afterwards nothing is held."""
        self.slots.watch.start()
        try:
            if self._wait_for_database():
                self._work()
        finally:
            self.slots.watch.close()

    def _work(self) -> None:
        self.ready = True
        for part in (*self._parts, self.slots):
            part.start()
        try:
            self._wait_for_parts()
            self._wakeup.start()
            if not self.stopping:
                banner.ready(self.options)
            signals.deliver_through(self._announcer.put)
            self._loop.run()
        finally:
            self._shut_down()
            signals.deliver_through(signals.tell)

    def _wait_for_database(self) -> bool:
        """Greet the database, however long it is away; False when told to stop meanwhile."""
        # Later it is the heartbeat that finds out soon that it is back; there is none yet.
        pause = Pause(max(FIRST_PAUSE, self.options.heartbeat.total_seconds()))
        while not self.stopping:
            try:
                with self._lines.waiting():
                    self.clock.measure()
                    self._presence.start()
                    self._scheduler.start()
            except DatabaseTrouble as error:
                disconnect(self.options.using)
                self._reserving.trouble.began(error)
                self._wakeup.wait(pause.grow())
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
            while not (self.stopping or part.connected.wait(CONNECTED_WITHIN)):
                disconnect(self.options.using)

    # -- called by the loop ----------------------------------------------------------------------

    def _may_reserve(self) -> bool:
        return not (
            self.quiet or self._limit_reached() or self._unsettled() > self._most_unsettled()
        )

    def _most_unsettled(self) -> int:
        """
        Where the server can settle nothing, none: what would run now may have to run again.

        One more with each refusal, for a full disk may have room for the outcomes of others.
        """
        refusals = self._completer.refusals
        return refusals - 1 if refusals else MOST_UNSETTLED

    def _unsettled(self) -> int:
        """Jobs that ran and wait to be settled; more of them would only wait as well."""
        return len(self.holdings) - self._dispatch.waiting - self.slots.busy

    def _limit_reached(self) -> bool:
        """A process past --max-jobs or --max-memory, or with a lost thread, makes way."""
        self.replace = self.replace or bool(self._presence.worn_out())
        if self.replace and (self._holds_nothing() or self._waits_in_vain()):
            self.make_way(self._presence.worn_out() or "a thread was left behind")
        return self.replace

    def _holds_nothing(self) -> bool:
        return all(it in self.slots.coroutines.stuck for it in self.holdings.all())

    def _waits_in_vain(self) -> bool:
        """Only outcomes are left that a database which can be used will not take: locked rows."""
        rested = self.slots.rested() > self.options.grace.total_seconds()
        return rested and not self._completer.trouble.lasts

    def _take_on(self, reserved: Sequence[Reservation], valid_until: float) -> None:
        added = self.holdings.add(reserved, valid_until)
        try:
            if added:
                reach("worker.taken")
                self._announcer.reserved(added)
        finally:  # what is held and in no pool would be renewed for ever
            self._dispatch.put(added)

    def _release(self, unstarted: Iterable[Running]) -> None:
        for running in unstarted:
            self._completer.put(running, decide.outcome(OutcomeKind.RELEASE, running.reservation))

    # -- called by the parts ---------------------------------------------------------------------

    def _finished(self, running: Running, outcome: Outcome) -> None:
        # First of all: whatever is raised behind it, what became of the job is not lost.
        if running.settled:
            self.holdings.remove(running)
            self._settled([(running, outcome)])
            self._announcer.settled([(running, outcome)], now=self.clock.now())
        else:
            self._completer.put(running, outcome)
        self.appetite.ran(self._presence.ran(running, outcome))
        self.appetite.slot_freed()
        self._loop.slot_freed()

    def _settled(self, settled: Sequence[Finished]) -> None:
        self._presence.count(settled)
        # The end of a step may let another one run, here and now.
        if self._loop.hungry or any(it.reservation.job.workflow for it, _ in settled):
            self._wakeup.set()

    def _beaten(self) -> None:
        self._completer.hurry()
        self._reports.note_long_runs()
        if self._reserving.trouble.lasts:  # its own pause may have grown long: the database is back
            self._reserving.trouble.pause.cut_short()
            self._wakeup.set()
        self._presence.beat()

    def _found(self, reserved: Sequence[Reservation], valid_until: float) -> None:
        """A reserve whose reply was lost had taken these; their leases have just been renewed."""
        self._take_on(reserved, valid_until)
        with contextlib.suppress(Exception):  # whatever logs raise, they are taken on
            logger.info("found %d jobs that a reserve without a reply had taken", len(reserved))

    def _look_at_database(self) -> None:
        self._heartbeat.lose_overdue()
        self._lines.cut_silent()

    def _stubborn(self, running: Running, text: str = "") -> None:
        """A handler does not stop: its job failed, and this process makes way."""
        self.replace = True
        self._completer.put(running, self.slots.threads.timed_out(running, text))

    # -- the end ---------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        with contextlib.suppress(Exception):  # whatever logs raise, nothing is kept held for it
            banner.stopping(self.options, self.why or "nothing is left to do", len(self.holdings))
        self._wakeup.close()
        self._release(self._dispatch.take_back())
        if not self._finish(self.options.grace.total_seconds()):
            for running in self.holdings.all():
                running.cancel(SHUTDOWN, force=True)
            self._finish(UNWILLING)
        self.slots.close_children()
        self._completer.drain(SETTLE_AT_EXIT)
        self.stragglers = not self.slots.close(UNWILLING)
        for part in self._parts:
            part.close()
        with self._lines.waiting():
            released = self._leave_nothing()
        self._announcer.close(last_acts.LAST_SIGNALS if released else ANNOUNCE_AT_EXIT)
        disconnect(self.options.using)

    def _finish(self, patience: float) -> bool:
        """Wait until no handler runs; False when some still do."""
        until = steady() + patience
        while not self.slots.at_rest:
            left = until - steady()
            if left <= 0:
                return False
            self._loop.hungry = True
            self._wakeup.wait(min(left, 0.5))
        return True

    def _leave_nothing(self) -> list[Finished]:
        """
        Hold nothing any more, as far as the database can be told; return what ran until now.

        What still runs is given back last: then nothing but signals is left to do before the exit.
        """
        known = self._completer.unsettled()
        held = self.holdings.all()
        ended = self._settle_rest([(it, known[it]) for it in held if it in known])
        running = [it for it in held if it not in known]
        self._presence.count(ended)
        self._presence.stop(given_back=len(running))
        run_at = self.clock.now() + timedelta(seconds=last_acts.HEAD_START)
        return self._settle_rest([(it, last_acts.released(it, run_at)) for it in running])

    def _settle_rest(self, left: Sequence[Finished]) -> list[Finished]:
        now = self.clock.now()
        settled = last_acts.settle_rest(self.driver, left, now=now, lease=self.options.lease)
        self._announcer.settled(settled, now=now)
        return settled
