"""What the soak does to workers, to their server and to the line between them."""

import random
import signal
import time
from collections import Counter

import psycopg
from django.db import connection

from tests.process.harbor import all_taken
from tests.process.harness import kill

from .clocks import CLOCKS, environment, library
from .crew import stopped

WORKERS, THREADS, LEASE = 3, 4, 3.0
# How a worker may end: told to, or by a kill or poison.
TOLD, BY_FORCE = {0}, {3, -signal.SIGKILL, -signal.SIGSEGV}
# Whoever is killed is innocent, however often it happens to the same job.
SETTINGS = {"MAX_LEASE_LOSSES": 1000, "NOTIFY": "auto"}
# weight of each way to start a worker
ALONE, SUPERVISED, SHORT_LIVED, MISTIMED = "alone", "supervised", "short-lived", "mistimed"
WAYS = {ALONE: 6, SUPERVISED: 2, SHORT_LIVED: 1, MISTIMED: 2}
ARGUMENTS = {SUPERVISED: ["--processes", "2"], SHORT_LIVED: ["--max-jobs", "200"]}
QUIET = (0.5, 4)  # seconds between two faults
TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND random() < %s
"""


class Chaos:
    """Keeps workers at work behind a line, and hurts one thing after the other."""

    def __init__(self, crew, server, proxy, seed, say):
        self.crew, self.server, self.proxy, self.say = crew, server, proxy, say
        self.chance = random.Random(f"{seed} chaos")
        self.did = Counter()
        self.workers, self.all, self.told = [], [], set()
        self.stopped = {}  # worker -> when it may go on
        self.supervisors = set()
        self.started, self.died = Counter(), 0

    def run(self, seconds):
        until = time.monotonic() + seconds
        names, weights = list(FAULTS), [weight for weight, _ in FAULTS.values()]
        while time.monotonic() < until:
            self.wait(self.chance.uniform(*QUIET))
            (name,) = self.chance.choices(names, weights)
            self.say(name)
            FAULTS[name][1](self)
            self.did[name] += 1

    def wait(self, seconds):
        """Let time pass in which only those act who live; replace whoever has ended."""
        until = time.monotonic() + seconds
        while True:
            self.keep_up()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.2))

    def calm(self):
        """Mend all that was broken."""
        self.proxy.delay = 0.0
        self.proxy.mend()
        self.server.start()
        for worker in list(self.stopped):
            self._let_go_on(worker)
        self.proxy.cut()  # who still waits for what was swallowed learns of it
        self.keep_up()

    # -- workers ---------------------------------------------------------------------------------

    def keep_up(self):
        now = time.monotonic()
        for worker in [worker for worker, until in self.stopped.items() if until < now]:
            self._let_go_on(worker)
        for worker in [worker for worker in self.workers if not worker.alive]:
            self._bury(worker)
        while len(self.workers) < WORKERS:
            self._start()

    def _start(self):
        (way,) = self.chance.choices(list(WAYS), list(WAYS.values()))
        worker = self.crew.start(
            *ARGUMENTS.get(way, []),
            lease=LEASE,
            threads=THREADS,
            settings=SETTINGS,
            ends=TOLD | BY_FORCE,
            expect_trouble=True,
            DATABASE_URL=self.proxy.url(self.server.url),
            **self._clock(way),
        )
        self.workers.append(worker)
        self.all.append(worker)
        self.started[way] += 1
        if way == SUPERVISED:
            self.supervisors.add(worker)

    def _clock(self, way):
        clock, preload = self.chance.choice(list(CLOCKS.values())), library()
        return environment(preload, clock) if preload and way == MISTIMED else {}

    def _bury(self, worker):
        code = worker.exit_code()
        assert code in BY_FORCE | (TOLD if worker in self.told else set()), worker.output
        self.died += code != 0
        self.workers.remove(worker)
        self.stopped.pop(worker, None)

    def _let_go_on(self, worker):
        del self.stopped[worker]
        kill(worker.pid, signal.SIGCONT)

    def _one(self):
        """One that works, if there is any."""
        busy = [
            worker
            for worker in self.workers
            if worker not in self.stopped and worker not in self.told and worker.lines("is ready")
        ]
        return self.chance.choice(busy) if busy else None

    def kill_one(self):
        if worker := self._one():
            kill(worker.pid)

    def kill_a_child(self):
        """One of a supervisor's: it is replaced, and the others go on."""
        children = [
            child
            for worker in self.workers
            if worker in self.supervisors and worker not in self.stopped
            for child in worker.children()
        ]
        if children:
            kill(self.chance.choice(sorted(children)))

    def kill_all(self):
        for worker in self.workers:
            kill(worker.pid)

    def tell_one_to_end(self):
        if worker := self._one():
            kill(worker.pid, signal.SIGTERM)
            self.told.add(worker)

    def stop_one(self, leases):
        worker = self._one()
        if worker is None:
            return
        kill(worker.pid, signal.SIGSTOP)
        stopped(worker)
        if worker.alive:
            self.stopped[worker] = time.monotonic() + LEASE * leases

    def stop_past_the_lease(self):
        self.stop_one(self.chance.uniform(1.2, 3))

    def stop_within_the_lease(self):
        self.stop_one(self.chance.uniform(0.1, 0.5))

    # -- the server ------------------------------------------------------------------------------

    def terminate_sessions(self):
        with psycopg.connect(self.server.url, autocommit=True) as session:
            share = self.chance.choice([0.2, 0.5, 1.0])
            session.execute(TERMINATE, [session.info.dbname, share])

    def restart_fast(self):
        self._restart("fast")

    def restart_immediately(self):
        self._restart("immediate")

    def stay_down(self):
        self._restart("fast", LEASE * self.chance.uniform(0.5, 2.5))

    def _restart(self, mode, seconds=0.0):
        connection.close()
        self.server.stop(mode)
        self.wait(seconds)
        self.server.start()

    def be_read_only(self):
        self._switch_writing("on")
        self.wait(self.chance.uniform(0.5, 5))
        self._switch_writing("off")

    def _switch_writing(self, to):
        options = "-c default_transaction_read_only=off"
        with psycopg.connect(self.server.url, autocommit=True, options=options) as session:
            session.execute(f"ALTER SYSTEM SET default_transaction_read_only = {to}")
            session.execute("SELECT pg_reload_conf()")

    def lock_the_table(self):
        with psycopg.connect(self.server.url) as session:
            session.execute("LOCK TABLE taskharbor_job IN ACCESS EXCLUSIVE MODE")
            self.wait(LEASE * self.chance.uniform(0.1, 1.5))

    def take_all_connections(self):
        with all_taken(self.server):
            self.wait(self.chance.uniform(0.5, 5))

    # -- the line --------------------------------------------------------------------------------

    def cut(self):
        self.proxy.cut()

    def cut_after_commit(self):
        self.proxy.cut_after(self.chance.choice([b"COMMIT", b"EXECUTE", b"UPDATE", b"INSERT"]))

    def refuse(self):
        self.proxy.refuse()
        self.wait(self.chance.uniform(0.2, 5))
        self.proxy.mend()

    def silence(self):
        self.proxy.silence()
        self.wait(self.chance.uniform(0.5, 6))
        self.proxy.mend()

    def slow_down(self):
        self.proxy.delay = self.chance.choice([0.02, 0.1, 0.2])
        self.wait(self.chance.uniform(1, 6))
        self.proxy.delay = 0.0


FAULTS = {
    "kill one": (6, Chaos.kill_one),
    "kill a child": (4, Chaos.kill_a_child),
    "kill all": (1, Chaos.kill_all),
    "tell one to end": (4, Chaos.tell_one_to_end),
    "stop one past its lease": (6, Chaos.stop_past_the_lease),
    "stop one within its lease": (3, Chaos.stop_within_the_lease),
    "terminate sessions": (5, Chaos.terminate_sessions),
    "restart fast": (2, Chaos.restart_fast),
    "restart immediately": (2, Chaos.restart_immediately),
    "stay down": (1, Chaos.stay_down),
    "read-only": (1, Chaos.be_read_only),
    "lock the table": (1, Chaos.lock_the_table),
    "take all connections": (1, Chaos.take_all_connections),
    "cut the line": (4, Chaos.cut),
    "cut after a commit": (5, Chaos.cut_after_commit),
    "refuse": (2, Chaos.refuse),
    "silence": (3, Chaos.silence),
    "slow line": (2, Chaos.slow_down),
}
