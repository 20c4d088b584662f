"""Tests of the demo's own parts; the whole of it is run by tests/docs/test_example.py."""
# ruff: noqa: PT009, PT027  Django's test classes have assertions of their own

from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from unittest import mock
from uuid import uuid4

from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.test import SimpleTestCase
from django.utils import timezone

from example_project.shop import tasks
from example_project.shop.tests import ShopTestCase
from taskharbor_django.models import Attempt, DeadLetter, Job, QueueMinute
from taskharbor_django.operations.figures import queue_figures
from taskharbor_django.operations.warnings import warnings

from . import samples, seeds, steps, telling, working
from .management.commands import seed_demo
from .run import Run
from .screen import Screen
from .watching import Look, brief, news, picture
from .worker_process import WorkerTrouble

NOW = timezone.now()


def job(task, state, **facts):
    """A job as the demo would see it."""
    late = timedelta(days=1) if facts.pop("later", False) else timedelta()
    facts = {"max_attempts": 3, "available_at": NOW + late, "finished_at": NOW} | facts
    return Job(task=f"{tasks.__name__}.{task}", state=state, **facts)


def look(*jobs, seconds=1.5):
    return Look({job.pk: job for job in jobs}, NOW + timedelta(minutes=5), seconds)


class WatchingTests(SimpleTestCase):
    def test_the_picture_shows_what_runs_what_failed_and_what_ended(self):
        shown = look(
            job("draw_picture", "inflight", executions=1, progress=50, progress_message="line 32"),
            job("open_upload", "inflight", executions=2, attempts=1, last_error="a.b.Died: exit"),
            *(job("convert", "inflight", executions=1) for _ in range(2)),
            job("reorder", "ready", executions=1, attempts=1, last_error="OSError: busy"),
            job("ship", "scheduled", executions=1),
            job("import_prices", "dead", executions=1, last_error="x.Permanent: no\nmore"),
            job("ask_for_review", "scheduled", later=True),
        )
        counts = "ready 0  running 4  retrying 2  done 0  dead 1  cancelled 0  later 1"
        again = "again; 1 of 3 attempts failed: Died: exit"
        lines = [
            ("MIGRATE_LABEL", f"  1.5 s   {counts}"),
            ("", "draw_picture     [##########..........]  50 %  line 32"),
            ("", f"open_upload      in a process of its own {again}"),
            ("", "convert          on the event loop  x2"),
            ("NOTICE", "reorder          1 of 3 attempts failed: OSError: busy"),
            ("NOTICE", "ship             snoozed"),
            ("ERROR", "import_prices    dead: Permanent: no"),
        ]
        self.assertEqual(list(picture(shown)), lines)

    def test_a_look_is_finished_when_only_later_jobs_are_left(self):
        later = job("ask_for_review", "scheduled", later=True)
        self.assertTrue(look(later, job("pack", "done")).finished)
        for state in ("ready", "inflight", "scheduled"):
            self.assertFalse(look(later, job("pack", state)).finished)

    def test_the_news_are_what_changed(self):
        key, visit = uuid4(), job("count_visit", "ready")
        before = look(job("print_catalogue", "inflight", pk=key, executions=1), visit)
        steps = [
            ({"progress": 3, "progress_message": "page 18"}, "  3 %, page 18"),
            ({"cancel_requested_at": NOW}, "asked to stop"),
            ({"attempts": 1, "last_error": "OSError: jam"}, "1 of 3 attempts failed: OSError: jam"),
            ({"state": "cancelled"}, "cancelled"),
        ]
        for facts, text in steps:
            changed = {"state": "inflight", "executions": 1, "pk": key} | facts
            told = news(before, look(job("print_catalogue", **changed), visit))
            self.assertEqual(told, [f"  1.5 s   print_catalogue  {text}"])
        child = job("ship", "ready")
        self.assertEqual(
            news(look(visit), look(child)),
            [
                "  1.5 s   ship             enqueued by another job",
                "  1.5 s   count_visit      gone",
            ],
        )

    def test_an_error_is_shown_without_its_modules(self):
        self.assertEqual(brief("a.b.Gone: see c.d: e\nmore"), "Gone: see c.d: e")
        self.assertEqual(brief("The lifetime is over."), "The lifetime is over.")


class DemoTests(ShopTestCase):
    def setUp(self):
        super().setUp()
        self.run_ = Run(Screen(StringIO()))
        self.run_.worker = mock.Mock()
        self.run_.worker.blame = str

    def test_a_worker_that_does_nothing_is_given_up(self):
        idle = look(job("pack", "ready"), seconds=working.SILENCE + 1)
        with self.assertRaisesMessage(WorkerTrouble, "has run nothing for 60 s"):
            working._require_work(self.run_, idle)
        working._require_work(self.run_, look(job("pack", "ready", executions=1), seconds=30))

    def test_a_worker_that_comes_to_no_end_is_given_up(self):
        begun = [job("pack", "ready", executions=1) for _ in range(2)]
        with self.assertRaisesMessage(WorkerTrouble, "Not finished after 180 s: 2 x pack (ready)."):
            working._require_work(self.run_, look(*begun, seconds=working.LIMIT + 1))

    def test_what_ends_otherwise_than_it_has_to_is_told(self):
        handle = tasks.reorder.enqueue(self.rope.pk, quantity=1)
        self.run_.expected = {handle.id: "done"}
        self.run_.before = {"rope": SimpleNamespace(stock=13)}
        Job.objects.filter(pk=handle.id).update(state="cancelled", finished_at=timezone.now())
        with self.assertRaisesMessage(telling.Unexpected, "is cancelled, not done"):
            telling.require_expected_ends(self.run_)
        self.run_.expected = {handle.id: "cancelled"}
        telling.require_expected_ends(self.run_)
        self.run_.before = {"rope": SimpleNamespace(stock=14)}
        with self.assertRaisesMessage(telling.Unexpected, "stock of Rope is 10, not 11"):
            telling.require_expected_ends(self.run_)

    def test_the_ways_on_lead_to_the_same_database(self):
        ways = {
            "": "python manage.py",
            "sqlite:////my shop.db": "DATABASE_URL='sqlite:////my shop.db' python manage.py",
            "postgres://me:secret@localhost/shop": "python manage.py",
        }
        for url, begin in ways.items():
            out = StringIO()
            run = Run(Screen(OutputWrapper(out)), order=self.order())
            with mock.patch.dict("os.environ", {"DATABASE_URL": url}):
                steps.show_ways_on(run)
            for command in ("shell", "runserver", "runworker"):
                self.assertIn(f"\n{begin} {command}\n", out.getvalue())
            self.assertIn("http://127.0.0.1:8000/admin/taskharbor/", out.getvalue())
            self.assertNotIn("secret", out.getvalue())
            self.assertEqual("with the same DATABASE_URL" in out.getvalue(), "secret" in url)

    def test_every_task_is_in_the_demo(self):
        order = self.order()
        for _ in samples.every_kind(self.rope, order):
            pass
        samples.offers("rope")
        with self.captureOnCommitCallbacks(execute=True):
            self.order()
        tasks.pick(order.pk)
        shown = set(self.waiting())
        self.assertEqual(shown, {name for name in vars(tasks) if is_task(name)})


def is_task(name):
    return isinstance(getattr(tasks, name), type(tasks.pack))


class SeedTests(ShopTestCase):
    def test_it_loads_what_it_is_asked_for(self):
        out, before = StringIO(), Job.objects.count()
        call_command("seed_demo", jobs=300, dead=40, stdout=out)
        self.assertIn("300 jobs and 40 dead letters", out.getvalue())
        # A product or an order that is made for them brings a job of its own.
        self.assertIn(Job.objects.count() - before, range(340, 345))
        self.assertEqual(Job.objects.filter(state="dead").count(), 40)
        letters = DeadLetter.objects.filter(open_for__isnull=False)
        self.assertEqual(letters.count(), 40)
        attempts = Attempt.objects.values("job").distinct()
        self.assertEqual((attempts.count(), Attempt.objects.count() > 80), (40, True))
        self.assertGreater(letters.values("fingerprint").distinct().count(), 2)
        self.assertEqual(QueueMinute.objects.count(), 180)

    def test_its_warnings_and_its_statistics_tell_of_the_same_deaths(self):
        for seed in (1, 2):
            call_command("seed_demo", jobs=0, dead=20, seed=seed, stdout=StringIO())
        now = timezone.now()
        queues = queue_figures("default", now, [])
        warned = {it.subject: it.number for it in warnings("default", now, queues, [])}
        self.assertEqual(warned, {it.name: it.last_hour.dead for it in queues})
        self.assertEqual(sum(warned.values()), 40)

    def test_it_says_how_far_it_is(self):
        out = StringIO()
        with mock.patch.object(seed_demo, "TELL_EACH", 0), mock.patch.object(seeds, "BATCH", 20):
            call_command("seed_demo", jobs=30, dead=20, stdout=out)
        told = ["20 of 30 jobs ...", "30 of 30 jobs ...", "20 of 20 dead letters ..."]
        self.assertEqual(out.getvalue().splitlines()[:-1], told)

    def test_there_is_no_negative_number_of_jobs(self):
        with self.assertRaises(CommandError):
            call_command("seed_demo", jobs=-1)
