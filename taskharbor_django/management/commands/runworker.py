"""Run jobs: one worker process, or several under a supervisor."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils import autoreload

from ...worker import banner
from ...worker.farewell import FINISHED, MAKES_WAY, say
from ...worker.stop_signals import MARGIN, STOP, StopSignals
from ...worker.supervisor import Supervised, Supervisor
from ...worker.trouble import LONGEST_PAUSE
from ...worker.worker import Worker
from .. import arguments, tables
from ..arguments import Plan

RELOAD_PAUSE = 2.0  # a developer who mends a broken file does not wait long
LAST_WORDS = 5.0
LAST_LINES = 0.5  # with what worker.last_acts has for its own less than its HEAD_START


class Command(BaseCommand):
    help = "Runs jobs until it is told to stop (SIGTERM, Ctrl-C), or until none is left (--burst)."

    _is_process = False  # the process was started for this command, and not by call_command()

    def run_from_argv(self, argv: list[str]) -> None:
        self._is_process = True
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        arguments.add(parser)

    def get_check_kwargs(self, options: dict[str, Any]) -> dict[Any, Any]:
        # Unless told otherwise, Django 6.1 asks every database, and one that is away would end it.
        return super().get_check_kwargs(options) | {"databases": []}

    def handle(self, **options: Any) -> None:
        banner.show_lines(options["verbosity"])
        # Handlers may change it, and the command line may have relative paths.
        self._directory = os.getcwd()  # noqa: PTH109  a plain string for chdir
        supervised = Supervised.take()
        plan = arguments.read(options, supervised)
        require_shared(plan.worker.using)
        if plan.is_supervised and supervised is None:
            self._supervise(plan)
        else:
            self._work(plan, supervised)

    # -- one process -----------------------------------------------------------------------------

    def _work(self, plan: Plan, supervised: Supervised | None) -> None:
        worker = Worker(plan.worker)
        pipe = supervised.pipe if supervised else None
        with StopSignals(
            worker,
            patience=plan.grace + MARGIN,
            at_start=lambda: say(FINISHED, plan.worker.farewell),
            supervisor=pipe,
        ):
            require_tables(plan.worker.using)
            banner.started(plan.worker)
            if plan.autoreload:
                watch_code(worker)
            if self._is_process:
                spare_the_collector()
            worker.run()
        # Whoever called this from code goes on with its own process.
        if self._is_process:
            self._leave(worker, supervised)

    def _leave(self, worker: Worker, supervised: Supervised | None) -> None:
        anew = worker.replace and not worker.told
        if anew and supervised is None:
            self._start_anew()
        # Nothing is held: whatever a handler left behind may do now, this process has ended well.
        say(MAKES_WAY if anew else FINISHED, worker.options.farewell)
        leave(0, at_once=worker.stragglers)

    def _start_anew(self) -> NoReturn:
        """Become the same command again; the process id stays."""
        # Signals that come meanwhile wait for the new program, which would die of them at first.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
        flush()
        with contextlib.suppress(OSError):
            os.chdir(self._directory)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  this process's own command line

    # -- several ---------------------------------------------------------------------------------

    def _supervise(self, plan: Plan) -> None:
        if not self._is_process:
            raise CommandError(
                "--processes and --autoreload start this process's own command line again: "
                "use them on a command line, not in call_command()."
            )
        supervisor = Supervisor(
            plan.processes,
            using=plan.worker.using,
            grace=plan.grace,
            burst=plan.worker.burst,
            longest_pause=RELOAD_PAUSE if plan.autoreload else LONGEST_PAUSE,
        )
        patience = plan.grace + MARGIN + 4 * LAST_WORDS
        with StopSignals(supervisor, patience=patience, at_once=supervisor.kill):
            require_tables(plan.worker.using)
            code = supervisor.run()
        leave(code, at_once=False)


def require_shared(using: str) -> None:
    """Refuse a database that the threads of a worker cannot work on side by side."""
    connection: Any = connections[using]
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        raise CommandError(
            f"The database {using!r} is kept in memory, where a worker's threads lock each other "
            "out. Give it a file: DATABASES[...]['NAME'], or ['TEST']['NAME'] in tests."
        )
    if connection.in_atomic_block:
        raise CommandError(
            "A worker cannot see what this transaction has not committed: call it outside of "
            "atomic(), in tests from a TransactionTestCase."
        )


def spare_the_collector() -> None:
    """Let the collector leave alone what was imported, and come less often."""
    # A worker with short jobs spent 15 % less CPU with the first, and 12 % less with 2,000 in place
    # of the 700 of older Pythons. A profile of that still had 6 % in the collector.
    gc.freeze()
    young, *older = gc.get_threshold()
    if young in {700, 2_000}:  # as older and newer Pythons have it: nobody has chosen it
        gc.set_threshold(20_000, *older)


def require_tables(using: str) -> None:
    """Refuse to start where migrate was not run, and keep no connection of that look."""
    try:
        tables.require_tables(using)
    finally:
        connections[using].close()


def watch_code(worker: Worker) -> None:
    """Let the worker make way when Django's reloader sees that a file has changed."""

    def watch() -> None:
        try:
            autoreload.get_reloader().run(threading.main_thread())
        except SystemExit:  # how the reloader tells
            worker.make_way("code has changed")

    threading.Thread(target=watch, name="taskharbor-autoreload", daemon=True).start()


def flush() -> None:
    """Write out what was logged and printed, unless whoever reads it stands still."""

    def write() -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(LAST_LINES)


def leave(code: int, *, at_once: bool) -> NoReturn:
    """Exit, also when a handler's thread will not end."""

    def insist() -> None:
        time.sleep(LAST_WORDS)
        os._exit(code)

    if at_once:
        flush()
        os._exit(code)
    # A thread that a handler started may keep the interpreter waiting for ever.
    threading.Thread(target=insist, daemon=True).start()
    raise SystemExit(code)
