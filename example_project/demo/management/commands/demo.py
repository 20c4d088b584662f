import os
import sys

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError, connection

from example_project.demo.run import Run
from example_project.demo.screen import Screen
from example_project.demo.site import DEFAULT, Site, SiteTrouble
from example_project.demo.steps import steps
from example_project.demo.telling import Unexpected
from example_project.demo.worker_process import LEASE, Stopped, WorkerTrouble, stop_on_signals


class Command(BaseCommand):
    help = "Set up the example shop, run jobs of every kind with a worker, and say what happened."
    # Those of a database come with migrate, once it is known to answer.
    requires_system_checks = ()

    def add_arguments(self, parser):
        parser.add_argument(
            "--serve",
            nargs="?",
            const=DEFAULT,
            metavar="[HOST:]PORT",
            help=f"then serve shop and admin (on {DEFAULT}), with a worker beside, until Ctrl-C",
        )

    def handle(self, **options):
        color = True if options["force_color"] else False if options["no_color"] else None
        run = Run(Screen(self.stdout, color=color))
        try:
            _play(run, options["serve"])
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(_explained(error)) from error
        except (WorkerTrouble, SiteTrouble, Unexpected) as trouble:
            raise CommandError(str(trouble)) from trouble
        except Stopped as stopped:
            run.worker.stop()  # the signal may have come just before somebody else did
            self.stderr.write(f"\nStopped by {stopped}. {_left(run)}")
            if not run.serving:  # else that is how it ends
                raise SystemExit(stopped.code) from None
        except BrokenPipeError:
            # Whoever read has read enough; nobody is there to be told so.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None


def _play(run, address):
    stop_on_signals()
    try:
        if address is not None:
            run.site = Site(address, run.worker)
        for step in steps():
            step(run)
    except Stopped:
        if run.worker.pid:
            run.screen.say("\nTelling the worker to stop.")
        raise
    finally:
        run.close()


def _left(run):
    """Say what became of the worker, and of the jobs."""
    if run.worker.pid is None:
        return "No worker had been started."
    connection.close()  # the signal may have come in the midst of a query
    try:
        held = run.jobs.inflight().count()
    except (DatabaseError, InterfaceError):
        return "The worker was stopped, too."
    if held:
        return f"The worker was killed; {held} jobs are free when its lease ends, in {LEASE} s."
    return "The worker was stopped, too, and holds nothing. The next run clears away what waits."


def _explained(error):
    """Say which database failed and how; a password in its address is not said."""
    asked = connection.settings_dict
    where = f"{asked['NAME']} on {asked['HOST']}" if asked["HOST"] else asked["NAME"]
    hint = "Set DATABASE_URL to use another one; --traceback shows where it happened."
    if "locked" in str(error):
        hint = "Another program is writing to it. Stop that one, or try again in a moment."
    return f"The database {where} cannot be used now: {str(error).strip()}\n{hint}"
