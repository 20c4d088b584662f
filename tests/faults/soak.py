"""
A seeded random mix of all faults at once, and the checker at the end.

    python -m tests.faults.soak [--minutes 30] [--seed N]

Three workers with a PostgreSQL of their own and a line that breaks. Jobs, workflows and schedules
of every kind; operators that cancel, bury, requeue, discard, replay, update and erase; workers that
are killed and stopped; sessions that are ended; a server that restarts and crashes. In the end all
is mended, the rest is worked off, and nothing may have happened that must not.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.servers import PostgreSQL, Proxy

MINUTES = float(os.environ.get("TASKHARBOR_SOAK_MINUTES", "30"))


def main():
    given = arguments()
    say(f"soak: --minutes {given.minutes:g} --seed {given.seed}")
    with PostgreSQL(options={"max_connections": 100}) as server, Proxy(server.port) as proxy:
        prepare(server)
        soak(given, server, proxy)
    say(f"soak: silent (--minutes {given.minutes:g} --seed {given.seed})")


def arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 10**9))
    return parser.parse_args()


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201  what a run says


def prepare(server):
    os.environ["DATABASE_URL"] = server.url
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.faults.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)


def soak(given, server, proxy):
    from tests.process.harness import Processes

    from .crew import Crew
    from .history import noted

    with contextlib.ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskharbor-soak-")))
        stack.enter_context(noted())
        crew = Crew(Processes(), path)
        stack.callback(crew.remove)
        run(given, crew, server, proxy)


def run(given, crew, server, proxy):
    from .soak_chaos import Chaos
    from .soak_end import Ending, make_schedules
    from .soak_load import Load, Operators

    make_schedules()
    load, operators = Load(given.seed), Operators(given.seed)
    chaos = Chaos(crew, server, proxy, given.seed, say)
    chaos.keep_up()
    load.start()
    operators.start()
    try:
        chaos.run(given.minutes * 60)
    finally:
        load.stop()
        operators.stop()
    chaos.calm()
    Ending(crew, chaos, load, operators, say).check()


if __name__ == "__main__":
    sys.exit(main())
