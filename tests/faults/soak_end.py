"""How a soak ends: the rest is worked off, and all that happened is looked at."""

import re
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise

from django.db.models import Count, Sum

from taskharbor_django import operations
from taskharbor_django.lifecycle import Priority
from taskharbor_django.models import Attempt, DeadLetter, Job, Lease, Schedule, Workflow
from taskharbor_django.operations.schedules import create_schedule, pause_schedule
from taskharbor_django.operations.storage import driver_for
from taskharbor_django.schedules import declare
from tests.process.harness import DEAD, TROUBLE, wait_until
from tests.testapp import fault_tasks as tasks

from .history import late_starts
from .soak_load import OPEN, QUEUES

WORKED_OFF_IN = 900  # seconds
GOING_ON_IN = 60
SLACK = 0.5  # the line is slow at times, and so are three workers on few cores
ROUNDS = 10
RATE = timedelta(seconds=1)
# The end of a handler that was told to stop while C code called back into Python: the interpreter
# tells of it and goes on, and the worker knows that the run was stopped.
INTERRUPTED = re.compile(
    r"(Exception ignored in: .*\n)?Traceback \(most recent call last\):\n"
    r"(?:(?!Traceback).*\n)*?taskharbor_django\.worker\.interrupts\.Interrupted.*\n"
)


def make_schedules():
    """One that makes up for what it missed, one that skips, one that waits for its last job."""
    first = {"priority": Priority.CRITICAL}
    asked = {
        "each": {"fixed_rate": RATE, "overlap": "allow", "catch_up": "all"},
        "skipping": {"fixed_rate": RATE},
        "delayed": {"fixed_delay": RATE},
    }
    for name, options in asked.items():
        create_schedule(declare(name, tasks.touch.name, **options, **first))


class Ending:
    def __init__(self, crew, chaos, load, operators, say):
        self.crew, self.chaos, self.load, self.operators = crew, chaos, load, operators
        self.say = say

    def check(self):
        self.work_off()
        self.tell()
        self.check_ends()
        self.check_schedules()
        assert not Workflow.objects.filter(finished_at=None).exists()
        self.crew.history.enqueued.update(self.load.enqueued)
        self.crew.history.rolled_back.update(self.load.rolled_back)
        self.crew.history.left_alone.update(self.good() | self.bad())
        self.crew.finish(stopped_anywhere=True, operators=True, slack=SLACK)
        assert not Lease.objects.exists()
        self.check_what_workers_said()

    def work_off(self):
        """Let all be finished, and what died by a fault be tried again while none happens."""
        for queue in QUEUES:
            operations.resume(queue)
        self.see_schedules_go_on()
        for name in Schedule.objects.values_list("name", flat=True):
            pause_schedule(name)
        began = time.monotonic()
        self.wait_for_all()
        for _ in range(ROUNDS):
            left = self.unlucky()
            if not left:
                break
            operations.requeue(left)
            self.wait_for_all()
        self.say(f"worked off in {time.monotonic() - began:.0f} s")

    def see_schedules_go_on(self):
        """Each of them, past all that it has missed: nothing is broken any more."""
        mended = driver_for("default").now()
        later = Job.objects.filter(schedule_slot__gt=mended)

        def all_do():
            time.sleep(0.2)
            self.chaos.keep_up()
            going = later.values_list("schedule", flat=True)
            return set(Schedule.objects.values_list("pk", flat=True)) <= set(going)

        wait_until(all_do, timeout=GOING_ON_IN, what="a new slot of each schedule")

    def unlucky(self):
        """Good jobs that died: of their own attempts, which a database that was away has used."""
        good = self.good()
        letters = DeadLetter.objects.filter(open_for__in=good)
        reasons = set(letters.values_list("reason", flat=True))
        assert reasons <= {"exhausted"}, list(letters.values("job", "reason", "error"))
        return list(Job.objects.filter(state="dead", pk__in=good).values_list("pk", flat=True))

    def good(self):
        """Jobs that must be done, whatever was broken: nobody interfered."""
        return self.load.must_be_done - self.operators.touched

    def bad(self):
        return self.load.must_be_dead - self.operators.touched

    def wait_for_all(self):
        def over():
            time.sleep(0.2)
            self.chaos.keep_up()
            return not Job.objects.filter(state__in=OPEN).exists()

        try:
            wait_until(over, timeout=WORKED_OFF_IN, what="the end of all jobs")
        except AssertionError:
            stuck = Job.objects.filter(state__in=OPEN).values()[:20]
            self.say("\n".join(map(str, stuck)))
            self.say("\n".join(map(str, Lease.objects.values()[:20])))
            raise

    def tell(self):
        jobs = Job.objects.order_by()
        told = {
            "faults": self.chaos.did,
            "workers started": self.chaos.started,
            "workers died": self.chaos.died,
            "enqueued": self.load.did,
            "operators": self.operators.did,
            "moved by operators": self.operators.moved,
            "errors seen by both": {"load": self.load.away, "operators": self.operators.away},
            "states": dict(jobs.values_list("state").annotate(Count("pk"))),
            "sums": jobs.aggregate(Sum("executions"), Sum("lease_version")),
            "attempts": dict(Attempt.objects.order_by().values_list("end").annotate(Count("pk"))),
            "letters": dict(
                DeadLetter.objects.order_by().values_list("reason").annotate(Count("pk"))
            ),
            "schedules": dict(Schedule.objects.values_list("name", "enqueued")),
            "workflows": Workflow.objects.count(),
            "late starts": late_starts(self.crew.history.facts()),
        }
        for name, value in told.items():
            self.say(f"{name}: {dict(value) if isinstance(value, Counter) else value}")

    # -- what must hold --------------------------------------------------------------------------

    def check_ends(self):
        """Who can end well has done so, and who cannot has not."""
        for jobs, state in ((self.good(), "done"), (self.bad(), "dead")):
            odd = Job.objects.filter(pk__in=jobs).exclude(state=state)
            names = ("pk", "task", "state", "attempts", "lease_losses", "last_error")
            assert not odd.exists(), list(odd.values(*names))

    def check_what_workers_said(self):
        for worker in self.chaos.all:
            said = INTERRUPTED.sub("", DEAD.sub("", worker.output))
            assert not TROUBLE.search(said), worker.output

    def check_schedules(self):
        """No slot twice, and each one that the policy does not skip once."""
        for schedule in Schedule.objects.all():
            jobs = Job.objects.filter(schedule=schedule.pk).order_by("schedule_slot")
            slots = list(jobs.values_list("schedule_slot", flat=True))
            assert len(slots) == len(set(slots)) == schedule.enqueued, schedule.name
            if schedule.name == "each":
                steps = {after - before for before, after in pairwise(slots)}
                assert steps == {RATE}, steps
