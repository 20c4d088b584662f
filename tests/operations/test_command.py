"""`manage.py taskharbor`: what it prints, what it does, and with which code it ends."""

import io
import json
from datetime import timedelta
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connection

from taskharbor_django import registry, task
from taskharbor_django.management import output
from taskharbor_django.management.commands.taskharbor import Command
from taskharbor_django.management.output import Output, ago, laid_out, shown
from taskharbor_django.management.subcommands import health, jobs
from taskharbor_django.models import (
    Attempt,
    Job,
    Queue,
    QueueMinute,
    Schedule,
    Worker,
    Workflow,
)
from taskharbor_django.operations.schedules import create_schedule
from taskharbor_django.payload import encode_call, encode_value
from taskharbor_django.schedules import declare
from tests.factories import JobFactory, job_in, utcnow
from tests.testapp.tasks import add, echo

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def run(*arguments):
    """Run it; return its exit code and what it printed."""
    out = io.StringIO()
    try:
        call_command("taskharbor", *map(str, arguments), stdout=out, stderr=io.StringIO())
    except SystemExit as end:
        return end.code, out.getvalue()
    return 0, out.getvalue()


def told(*arguments, code=0):
    """The same as JSON."""
    ended, text = run(*arguments, "--json")
    assert ended == code, text
    return json.loads(text)


def refused(*arguments):
    with pytest.raises(CommandError) as refusal:
        run(*arguments)
    return refusal.value


def worker_row(**fields):
    facts = {"name": "w", "host": "h", "pid": 7, "version": "1", "queues": "*", "slots": 8}
    now = utcnow()
    return Worker.objects.create(
        **{"id": uuid4().hex, "started_at": now, "last_beat_at": now} | facts | fields
    )


class TestEnqueue:
    def test_it_stores_a_job_of_a_registered_task(self):
        told_ = told("enqueue", add.name, "--args", "[1]", "--kwargs", '{"right": 2}')
        job = Job.objects.get()
        assert (told_["id"], told_["created"]) == (str(job.pk), True)

    def test_its_options(self):
        options = ("--queue", "slow", "--priority", "7", "--delay", "60", "--key", "k")
        first = told("enqueue", echo.name, *options)
        assert told("enqueue", echo.name, *options) == {"id": first["id"], "created": False}
        job = Job.objects.get()
        assert (job.queue, job.priority, job.state) == ("slow", 7, "scheduled")

    @pytest.mark.parametrize(
        ("arguments", "why", "code"),
        [
            (("no.such.task",), "No installed app has registered", 1),
            ((add.name,), "missing a required argument", 1),
            ((echo.name, "--args", "["), "--args is no JSON", 2),
            ((echo.name, "--args", "{}"), "--args must be a JSON array", 2),
            ((echo.name, "--kwargs", "[]"), "--kwargs must be a JSON object", 2),
            ((echo.name, "--database", "elsewhere"), "DATABASES has no alias 'elsewhere'", 2),
        ],
    )
    def test_what_is_wrong_is_said(self, arguments, why, code):
        refusal = refused("enqueue", *arguments)
        assert why in str(refusal)
        assert refusal.returncode == code
        assert not Job.objects.exists()


class TestList:
    def test_pages_go_on_where_the_last_ended(self):
        jobs = [job_in("done", finished_at=utcnow() - n * HOUR) for n in range(5)]
        seen, after = [], []
        while True:
            page = told("list", "--state", "done", "--limit", "2", *after)
            seen += [row["id"] for row in page["rows"]]
            if page["after"] is None:
                break
            after = ["--after", page["after"]]
        assert seen == [str(job.pk) for job in jobs]

    def test_ties_are_listed_once(self):
        now = utcnow()
        JobFactory.create_batch(5, ready=True, created_at=now)
        seen, after = [], []
        for _ in range(3):
            page = told("list", "--state", "ready", "--limit", "2", *after)
            seen += [row["id"] for row in page["rows"]]
            after = ["--after", page["after"]]
        assert len(seen) == len(set(seen)) == 5

    def test_without_a_state_all_are_listed_by_id(self):
        JobFactory.create_batch(3)
        page = told("list", "--limit", "2")
        rest = told("list", "--limit", "2", "--after", page["after"])
        ids = [row["id"] for row in page["rows"] + rest["rows"]]
        in_order = Job.objects.order_by("pk").values_list("pk", flat=True)  # of the database
        assert ids == [str(pk) for pk in in_order]

    def test_filters_are_those_of_the_admin(self):
        wanted = JobFactory(queue="mail", tags={"tenant": "acme"}, priority=5)
        JobFactory(queue="mail")
        for asked in (
            ("--queue", "mail", "--tag", "tenant=acme"),
            ("--priority", "5"),
            ("--task", wanted.task, "--priority", "5"),
        ):
            assert [row["id"] for row in told("list", *asked)["rows"]] == [str(wanted.pk)]
        assert told("list", "--queue", "other")["rows"] == []

    def test_running_is_another_word_for_inflight(self):
        JobFactory()
        job = job_in("inflight")
        for word in ("running", "inflight"):
            rows = told("list", "--state", word)["rows"]
            assert [row["id"] for row in rows] == [str(job.pk)]

    def test_jobs_of_a_schedule_by_its_name(self):
        row = create_schedule(declare("mine", echo.name, fixed_rate=DAY))
        mine = JobFactory(schedule_id=row.pk)
        JobFactory()
        assert [it["id"] for it in told("list", "--schedule", "mine")["rows"]] == [str(mine.pk)]
        assert refused("list", "--schedule", "nobodys").returncode == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            ("list", "--after", "here"),
            ("list", "--state", "done", "--after", "here_there"),
            ("list", "--tag", "tenant"),
            ("list", "--state", "lost"),
            ("list", "--limit", "many"),
            ("list", "--died-from", "noon"),
            ("list", "--died-from", "2026-13-32T25:00"),
            ("list", "--died-from", "0001-01-01T00:00+14:00"),
            ("list", "--died-until", "9999-12-31T23:59-14:00"),
            ("list", "--state", "done", "--after", f"9999-12-31T23:59:59-14:00_{uuid4()}"),
            ("list", "--queue", "caf\udce9"),
            ("list", "--tag", "a=\udce9"),
            ("list", "--limit", "9" * 5_000),
            ("dlq", "list", "--after", str(2**63)),
            ("dlq", "list", "--after", "-1"),
            ("queues", "pause", "mail", "--for", "-1"),
            ("queues", "pause", "mail", "--for", "1e12"),
            ("queues", "pause", "mail", "--for", "nan"),
            ("queues", "pause", "caf\udce9"),
            ("enqueue", echo.name, "--delay", "soon"),
            ("enqueue", echo.name, "--delay", "-1"),
            ("enqueue", echo.name, "--args", "[" * 100_000),
        ],
    )
    def test_a_wrong_command_line_is_refused(self, arguments):
        refused(*arguments)
        assert not Queue.objects.exists()

    def test_a_table_says_how_to_go_on(self):
        JobFactory.create_batch(2)
        code, text = run("list", "--limit", "1")
        assert code == 0
        assert text.splitlines()[0].startswith("ID")
        assert "more: --after" in text


class TestInspect:
    def test_it_shows_everything_with_secrets_masked(self):
        payload = encode_call(("x",), {"password": "hunter2", "to": "me"}, max_bytes=1000)
        result = encode_value({"token": "open sesame", "sum": 7}, max_bytes=1000)
        job = job_in("dead", payload=payload, result=result)
        Attempt.objects.create(
            job=job, lease_version=1, number=1, end="failed", finished_at=utcnow()
        )
        child = JobFactory(parent_id=job.pk)
        facts = told("inspect", job.pk)
        assert (facts["state"], facts["args"], facts["kwargs"]["to"]) == ("dead", ["x"], "me")
        assert (facts["result"]["sum"], facts["children"][0]["id"]) == (7, str(child.pk))
        assert facts["attempt_rows"][0]["end"] == "failed"
        assert facts["dead_letters"][0]["reason"] == "exhausted"
        text = run("inspect", job.pk)[1]
        assert "hunter2" not in text
        assert "open sesame" not in text

    def test_a_secret_is_known_by_the_name_of_its_argument(self, monkeypatch):
        monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

        @task(name="charge.task")
        def charge(order, token, *more): ...

        @task(name="gather.task")
        def gather(*results, token): ...

        url = "https://hooks.example/done?sig=hunter2"
        payload = encode_call((7, "hunter2"), {}, max_bytes=1000)
        job = JobFactory(task="charge.task", payload=payload, callback_url=url)
        facts = told("inspect", job.pk)
        assert facts["arguments"] == {"order": 7, "token": "••••••"}
        assert facts["callback_url"] == "https://hooks.example/done?••••••"
        taken = encode_call(("hunter2",), {}, max_bytes=1000)
        job = JobFactory(task="charge.task", payload=taken, input="value")
        assert told("inspect", job.pk)["arguments"] == {"token": "••••••"}
        spread = encode_call((1,), {"token": "hunter2"}, max_bytes=1000)
        job = JobFactory(task="gather.task", payload=spread, input="list")
        assert told("inspect", job.pk)["arguments"] == {"results": [1], "token": "••••••"}

    def test_an_error_of_several_lines_stands_below_its_name(self):
        job = job_in("dead", last_error="first\nsecond")
        lines = run("inspect", job.pk)[1].splitlines()
        (first,) = [line for line in lines if line.startswith("last_error")]
        second = lines[lines.index(first) + 1]
        assert second.index("second") == first.index("first")

    def test_what_cannot_be_decoded_is_said(self):
        job = JobFactory(payload=b"nonsense")
        assert "cannot be decoded" in told("inspect", job.pk)["payload"]

    def test_nobody_there(self):
        assert "There is no job" in str(refused("inspect", uuid4()))


class TestVerbs:
    def test_named_jobs(self):
        job = JobFactory()
        assert told("cancel", job.pk) == {"cancelled": 1, "asked": 0, "left": {}}
        assert told("cancel", job.pk, code=1)["left"] == {"ended": 1}

    def test_people_are_told_what_happened_and_not_what_did_not(self):
        job, running = JobFactory(), job_in("inflight")
        assert run("cancel", job.pk)[1] == "cancelled  1\n"
        said = run("cancel", job.pk, running.pk)[1]
        assert said.split() == ["cancelled", "0", "asked", "to", "stop", "1", "left,", "ended", "1"]

    def test_by_force(self):
        job = job_in("inflight")
        assert told("cancel", job.pk)["asked"] == 1
        assert told("cancel", job.pk, "--force")["cancelled"] == 1

    def test_a_filter_goes_in_steps_to_its_end(self, monkeypatch):
        monkeypatch.setattr("taskharbor_django.management.filters.STEP", 2)
        JobFactory.create_batch(5, queue="mail")
        JobFactory(queue="other")
        assert told("cancel", "--queue", "mail", "--dry-run") == {"would be cancelled": 5}
        assert told("cancel", "--queue", "mail")["cancelled"] == 5
        assert Job.objects.filter(state="ready").count() == 1

    def test_everything_must_be_meant(self):
        JobFactory.create_batch(2)
        assert refused("cancel").returncode == 2
        assert refused("cancel", "--all", "--queue", "x").returncode == 2
        assert refused("cancel", uuid4(), "--queue", "x").returncode == 2
        assert told("cancel", "--all")["cancelled"] == 2

    def test_rank_0_is_a_rank_as_any_other(self):
        kept, meant = (JobFactory(priority=rank) for rank in (10, 0))
        assert told("cancel", "--priority", "0")["cancelled"] == 1
        assert Job.objects.get(state="cancelled") == meant
        assert Job.objects.get(state="ready") == kept

    @pytest.mark.parametrize("option", ["--queue", "--task", "--schedule", "--correlation-id"])
    def test_what_is_empty_is_no_filter(self, option):
        job_in("ready")
        refusal = refused("cancel", "--priority", "0", option, "")
        assert refusal.returncode == 2
        assert "is empty" in str(refusal)
        assert Job.objects.get().state == "ready"

    def test_run_now_and_erase(self):
        later = job_in("scheduled")
        assert told("run-now", later.pk)["ready"] == 1
        ended = job_in("done")
        assert told("erase", ended.pk)["erased"] == 1
        assert told("erase", ended.pk, "--dry-run") == {"would be erased": 1}


class TestDeadLetters:
    def test_they_are_listed_the_latest_first(self):
        jobs = [job_in("dead") for _ in range(3)]
        page = told("dlq", "list", "--limit", "2")
        rest = told("dlq", "list", "--limit", "2", "--after", page["after"])
        ids = [row["job_id"] for row in page["rows"] + rest["rows"]]
        assert ids == [str(job.pk) for job in reversed(jobs)]
        assert rest["after"] is None
        assert len(told("dlq")["rows"]) == 3

    def test_and_in_groups(self):
        job_in("dead")
        job_in("dead")
        (group,) = told("dlq", "list", "--groups", "--queue", "default")["rows"]
        assert group["jobs"] == 2
        assert "There are smaller groups" in run("dlq", "list", "--groups", "--limit", "0")[1]
        assert "has one page" in str(refused("dlq", "list", "--groups", "--after", "7"))

    def test_those_that_died_with_another_are_hidden_unless_asked_for(self):
        job = job_in("dead")
        job.dead_letters.update(reason="dependency")
        assert told("dlq", "list")["rows"] == []
        assert told("dlq", "list", "--groups")["rows"] == []
        assert len(told("dlq", "list", "--reason", "dependency")["rows"]) == 1

    def test_requeue(self):
        job = job_in("dead")
        asked = ("--to-queue", "slow", "--one-more", "--note", "mended")
        assert told("dlq", "requeue", job.pk, *asked)["requeued"] == 1
        job.refresh_from_db()
        assert (job.state, job.queue) == ("ready", "slow")

    def test_replay_and_discard(self):
        first, second = job_in("dead"), job_in("dead")
        assert told("dlq", "replay", first.pk)["replayed"] == 1
        assert told("dlq", "discard", "--queue", second.queue, "--note", "old")["discarded"] == 1
        assert Job.objects.filter(state="dead").count() == 0
        assert Job.objects.get(replay_of=first.pk).state == "ready"

    def test_a_filter_takes_dead_jobs_only(self):
        JobFactory(queue="mail")
        assert told("dlq", "discard", "--queue", "mail", code=1)["discarded"] == 0

    def test_a_fingerprint_is_named_by_its_beginning(self):
        wanted, other = job_in("dead"), job_in("dead")
        wanted.dead_letters.update(fingerprint="5f1d" + "a" * 28)
        other.dead_letters.update(fingerprint="5f1e" + "b" * 28)
        for begin in ("5f1d", "5F1D", "5f1d" + "a" * 28):
            (row,) = told("dlq", "list", "--fingerprint", begin)["rows"]
            assert row["job_id"] == str(wanted.pk)
        assert told("dlq", "requeue", "--fingerprint", "5f1d")["requeued"] == 1
        other.refresh_from_db()
        assert other.state == "dead"

    def test_a_beginning_of_several_is_refused_with_their_names(self):
        marks = [f"5f1d{n:028d}" for n in range(7)]
        for mark in marks:
            job_in("dead").dead_letters.update(fingerprint=mark)
        refusal = refused("dlq", "discard", "--fingerprint", "5f1d")
        assert refusal.returncode == 2
        assert all(mark in str(refusal) for mark in marks[:5])
        assert str(refusal).endswith(", ....")
        assert refused("dlq", "list", "--fingerprint", "5f1").returncode == 2
        assert Job.objects.filter(state="dead").count() == 7

    def test_fingerprints_are_shown_as_long_as_one_types_them(self):
        mark = "0123456789abcdef" * 2
        job_in("dead").dead_letters.update(fingerprint=mark)
        for asked in (("dlq",), ("dlq", "list"), ("dlq", "list", "--groups")):
            text = run(*asked)[1]
            assert mark[:12] in text
            assert mark[:13] not in text
        assert told("dlq", "list")["rows"][0]["fingerprint"] == mark

    @pytest.mark.parametrize("how", [(), ("--dry-run",)], ids=["done", "dry"])
    def test_it_is_said_that_nothing_matches(self, how):
        JobFactory(queue="mail", tags={"tenant": "acme"})
        for asked, why in (
            (("--fingerprint", "5f1d"), "No dead job matches --fingerprint 5f1d."),
            (("--queue", "mail", "--tag", "a=b"), "No dead job matches --queue mail --tag a=b."),
            (("--all",), "There is no dead job."),
            ((uuid4(),), "No dead job has this id."),
            ((uuid4(), uuid4()), "No dead job has one of these ids."),
        ):
            code, text = run("dlq", "requeue", *asked, *how)
            assert (code, text.splitlines()[-1]) == (1, why)
        code, text = run("cancel", "--queue", "other", *how)
        assert (code, text.splitlines()[-1]) == (1, "No job matches --queue other.")


class TestQueues:
    def test_they_are_shown_as_they_stand(self):
        JobFactory(queue="mail", available_at=utcnow() - HOUR)
        job_in("dead", queue="old")
        Queue.objects.create(name="stopped", paused_at=utcnow())
        rows = {row["name"]: row for row in told("queues")["rows"]}
        assert (rows["mail"]["ready"], rows["old"]["dead"]) == (1, 1)
        assert rows["mail"]["oldest"] >= 3600
        assert rows["stopped"]["paused"] is True
        assert "1 h" in run("queues")[1]

    def test_pause_and_resume(self):
        told("queues", "pause", "mail", "--for", "60", "--note", "repairs")
        assert Queue.objects.get().paused_until > utcnow()
        told("queues", "pause", "mail", "--until", "2031-05-17T09:30")
        assert Queue.objects.get().paused_until.year == 2031
        assert refused("queues", "pause", "mail", "--for", "6", "--until", "2031-05-17T09:30")
        assert told("queues", "resume", "mail")["was_paused"]
        assert not told("queues", "resume", "mail", code=1)["was_paused"]

    def test_pausing_a_queue_that_nobody_has_used_is_said(self):
        hint = "No job and no worker has used this queue so far"
        assert hint in run("queues", "pause", "defualt")[1]
        assert told("queues", "pause", "defualt")["used"] is False
        assert Queue.objects.get().name == "defualt"
        JobFactory(queue="mail")
        QueueMinute.objects.create(minute=utcnow(), queue="night", worker="w")
        worker_row(queues="slow,fast")
        for name in ("mail", "night", "fast"):
            assert hint not in run("queues", "pause", name)[1]

    def test_a_pause_of_no_time_is_not_one_for_good(self):
        told("queues", "pause", "mail", "--for", "0")
        assert Queue.objects.get().paused_until is not None

    def test_workers(self):
        worker_row(name="alive")
        worker_row(name="gone", stopped_at=utcnow())
        worker_row(name="asked", request="quiet")
        worker_row(name="lost", request="quiet", last_beat_at=utcnow() - timedelta(minutes=5))
        states = {row["name"]: row["state"] for row in told("workers")["rows"]}
        assert states.pop("lost") == "silent"
        assert states == {"alive": "running", "gone": "stopped", "asked": "quiet"}

    def test_a_process_id_is_no_amount(self):
        worker_row(pid=31_415)
        assert told("workers")["rows"][0]["pid"] == 31_415
        assert " 31415 " in run("workers")[1]

    def test_stats(self):
        for ago_ in (1, 2, 200):
            minute = utcnow() - timedelta(minutes=ago_)
            QueueMinute.objects.create(minute=minute, queue="mail", worker="w", done=60, dead=1)
        (row,) = told("stats")["rows"]
        assert row == {"queue": "mail", "done": 120, "failed": 0, "dead": 2, "per_minute": 2}


class TestSchedules:
    def test_they_are_listed_with_what_was_said_about_them(self):
        for name in ("active", "paused", "disabled", "broken"):
            create_schedule(declare(name, echo.name, fixed_rate=DAY))
        create_schedule(declare("cron", echo.name, cron="0 3 * * *", time_zone="UTC"))
        Schedule.objects.filter(name="paused").update(paused_at=utcnow())
        Schedule.objects.filter(name="disabled").update(disabled_at=utcnow())
        Schedule.objects.filter(name="broken").update(problem="it does not fit")
        rows = {row["name"]: row for row in told("schedules")["rows"]}
        assert rows["cron"]["when"] == "0 3 * * * (UTC)"
        states = {name: row["state"] for name, row in rows.items()}
        assert states["broken"] == "stopped: it does not fit"
        assert [states[name] for name in ("active", "paused", "disabled")] == [
            *("active", "paused", "disabled")
        ]

    def test_next_pause_resume_and_run_now(self):
        create_schedule(declare("mine", echo.name, cron="0 3 * * *", time_zone="UTC"))
        assert len(told("schedules", "next", "mine")["rows"]) == 5
        assert told("schedules", "pause", "mine")["was_paused"] is False
        assert told("schedules", "pause", "mine", code=1)["was_paused"] is True
        assert told("schedules", "next", "mine")["rows"] == []
        assert told("schedules", "resume", "mine")["was_paused"] is True
        assert told("schedules", "resume", "mine", code=1)["was_paused"] is False
        assert told("schedules", "run-now", "mine")["created"] is True
        assert told("schedules", "run-now", "mine", code=1)["created"] is False
        assert refused("schedules", "pause", "nobodys").returncode == 1

    @pytest.mark.parametrize("form", [(), ("--json",)], ids=["people", "programs"])
    def test_their_secrets_are_shown_as_little_as_those_of_jobs(self, form):
        kwargs = {"to": "ada", "login": {"password": "hunter2"}}
        create_schedule(declare("login", echo.name, kwargs=kwargs, fixed_rate=HOUR))
        asked = [("schedules", *verb) for verb in ((), ("next", "login"), ("run-now", "login"))]
        for line in (*asked, ("list", "--schedule", "login")):
            code, text = run(*line, *form)
            assert (code, "hunter2" in text) == (0, False), line
        _, text = run("inspect", Job.objects.get().pk, *form)
        assert "ada" in text
        assert "••••••" in text
        assert "hunter2" not in text


class TestWorkflow:
    def test_it_is_shown_cancelled_and_resumed(self):
        workflow = Workflow.objects.create(created_at=utcnow(), name="order", open_jobs=1)
        JobFactory(workflow_id=workflow.pk)
        job_in("dead", workflow_id=workflow.pk)
        facts = told("workflow", workflow.pk)
        assert (facts["name"], facts["ready"], facts["dead"]) == ("order", 1, 1)
        assert (facts["state"], facts["progress"]) == ("open", 50)
        assert len(told("workflow", workflow.pk, "--jobs")["rows"]) == 2
        assert told("workflow", workflow.pk, "--cancel")["cancelled"] == 1
        assert told("workflow", workflow.pk, "--cancel", code=1)["cancelled"] == 0
        assert told("workflow", workflow.pk, "--resume")["requeued"] == 1
        assert "There is no workflow" in str(refused("workflow", uuid4()))

    def test_they_are_listed_a_page_at_a_time_the_latest_first(self):
        rows = [Workflow.objects.create(created_at=utcnow() - n * HOUR) for n in range(3)]
        page = told("workflow", "--limit", "2")
        rest = told("workflow", "--limit", "2", "--after", page["after"])
        assert [it["id"] for it in page["rows"] + rest["rows"]] == [str(row.pk) for row in rows]
        assert rest["after"] is None

    def test_a_verb_needs_one_of_them(self):
        refusal = refused("workflow", "--cancel")
        assert (str(refusal), refusal.returncode) == ("--cancel needs the ID of a workflow.", 2)


class TestPrune:
    def test_it_counts_first_and_then_removes(self):
        job_in("done", finished_at=utcnow() - 30 * DAY)
        job_in("ready", expires_at=utcnow() - DAY)
        counted = told("prune", "--dry-run")
        assert (counted["done"], counted["expired"], counted["cancelled"]) == (1, 1, 0)
        removed = told("prune")
        assert (removed["done"], removed["expired"], removed["cancelled"]) == (1, 1, 0)
        assert Job.objects.get().state == "dead"


class TestHealth:
    def checks(self, *arguments, code):
        return {row["check"]: row for row in told("health", *arguments, code=code)["rows"]}

    def test_all_is_well(self):
        worker_row()
        JobFactory()
        create_schedule(declare("mine", echo.name, fixed_rate=DAY))
        assert all(check["ok"] for check in self.checks(code=0).values())

    def test_no_worker(self):
        worker_row(last_beat_at=utcnow() - HOUR)
        worker_row(stopped_at=utcnow())
        assert self.checks(code=1)["workers"]["value"] == 0
        assert self.checks("--min-workers", "0", code=0)["workers"]["ok"]

    def test_an_old_job_unless_its_queue_is_paused(self):
        worker_row()
        JobFactory(queue="mail", available_at=utcnow() - HOUR)
        assert not self.checks(code=1)["queue mail"]["ok"]
        assert self.checks("--max-age", "7200", code=0)["queue mail"]["ok"]
        Queue.objects.create(name="mail", paused_at=utcnow())
        assert "queue mail" not in self.checks(code=0)

    def test_dead_letters(self):
        worker_row()
        job_in("dead")
        assert self.checks(code=0)["dead letters"]["value"] == 1
        assert not self.checks("--max-dead", "0", code=1)["dead letters"]["ok"]

    def test_a_schedule_that_is_late_or_stopped(self):
        worker_row()
        create_schedule(declare("mine", echo.name, fixed_rate=DAY))
        Schedule.objects.update(next_at=utcnow() - HOUR)
        assert not self.checks(code=1)["schedules"]["ok"]
        assert self.checks("--max-late", "7200", code=0)["schedules"]["ok"]
        Schedule.objects.update(problem="it does not fit")
        assert self.checks(code=1)["schedule mine"]["value"] == "it does not fit"

    def test_a_database_that_is_away_is_unknown(self, monkeypatch):
        def away(*_):
            raise OperationalError("gone\naway")

        monkeypatch.setattr(health, "_checks", away)
        assert self.checks(code=3)["database"]["value"] == "gone away"


SUBCOMMANDS = [
    ("list",),
    ("dlq", "list", "--fingerprint", "abcd"),
    ("queues",),
    ("queues", "pause", "mail"),
    ("workers",),
    ("schedules",),
    ("prune",),
    ("health",),
    ("health", "--json"),
    ("enqueue", echo.name),
]


class TestTheDatabase:
    """What every subcommand says where there is nothing to ask."""

    @pytest.mark.parametrize("line", SUBCOMMANDS, ids=" ".join)
    def test_one_without_tables_wants_migrate(self, line, monkeypatch):
        def no_table(*_, **__):
            raise OperationalError("no such table: taskharbor_job")

        monkeypatch.setattr("django.db.backends.utils.CursorWrapper.execute", no_table)
        monkeypatch.setattr(type(connection.introspection), "table_names", lambda _: [])
        refusal = refused(*line)
        assert refusal.returncode == 2
        assert "Run 'manage.py migrate' first." in str(refusal)
        assert "\n" not in str(refusal)

    def test_one_that_is_away_is_told_from_a_wrong_line(self, monkeypatch):
        def away(*_, **__):
            raise OperationalError("gone\naway")

        monkeypatch.setattr("django.db.backends.utils.CursorWrapper.execute", away)
        refusal = refused("list")
        assert refusal.returncode == 3
        assert str(refusal) == "The database cannot be asked: gone away"

    def test_a_mistake_of_ours_is_not_hidden(self, monkeypatch):
        def broken(*_, **__):
            raise ProgrammingError("no such operator")

        monkeypatch.setattr(jobs, "selection_of", broken)
        with pytest.raises(ProgrammingError):
            run("list")


class TestDjangoOptions:
    def test_they_are_taken_behind_a_subcommand_too(self):
        worker_row()
        line = ("--settings", "tests.settings", "--pythonpath", ".", "-v", "0", "--no-color")
        assert run("health", *line, "--traceback", "--skip-checks")[0] == 0
        assert run("dlq", "list", *line)[0] == 0

    def test_what_stands_before_a_subcommand_is_kept(self):
        JobFactory()
        assert json.loads(run("queues", "--json", "pause", "mail")[1])["paused"] == "mail"
        assert json.loads(run("dlq", "--json", "list")[1])["rows"] == []
        parser = Command().create_parser("manage.py", "taskharbor")
        read = parser.parse_args(["-v", "3", "--no-color", "list"])
        assert (read.verbosity, read.no_color, read.json, read.database) == (3, True, False, None)


class Screen(io.StringIO):
    def isatty(self):
        return True


class TestOutput:
    def test_a_table_fits_the_terminal(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "40")
        from django.core.management.base import OutputWrapper

        screen = Screen()
        out = Output(OutputWrapper(screen), OutputWrapper(screen), as_json=False)
        out.rows(("name", "text", "number"), [["a" * 50, "b" * 50, 1_000]])
        lines = screen.getvalue().splitlines()
        assert max(map(len, lines)) <= 40
        assert lines[1].endswith("1,000")
        assert "…" in lines[1]

    def test_one_that_cannot_is_as_narrow_as_it_gets(self):
        lines, _ = laid_out(["a" * 9] * 5, [["b" * 9] * 5], 10)
        assert len(lines[0]) == 5 * 6 + 4 * 2

    def test_ids_times_and_numbers_are_shown_whole_and_others_left_out_for_them(self):
        job, at = uuid4(), utcnow()
        names = ("id", "task", "tries", "created_at", "finished_at")
        row = [job, "shop.orders.tasks.confirm_order", 3, at, at]
        lines, left_out = laid_out(names, [row], 80, ("created_at", "tries"))
        assert left_out == ["created_at"]
        assert max(map(len, lines)) <= 80
        assert lines[1].startswith(f"{job}  …confirm_order")
        assert lines[1].endswith(shown(at))
        assert laid_out(names, [row], None, ("created_at",))[1] == []
        assert laid_out(names, [row], 200, ("created_at",))[1] == []

    def test_what_was_left_out_is_said(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "40")
        from django.core.management.base import OutputWrapper

        screen = Screen()
        out = Output(OutputWrapper(screen), OutputWrapper(screen), as_json=False)
        out.rows(("id", "created_at"), [[uuid4(), utcnow()]], spare=("created_at",))
        assert screen.getvalue().endswith("\nno room for: created_at\n")

    def test_what_a_job_says_cannot_command_a_terminal(self):
        assert shown("\x1b[2Jhello\x07\n") == "�[2Jhello��"
        assert shown("one\ntwo", lines=True) == "one\ntwo"

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0 s"),
            (-5, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3_661, "1 h 1 min"),
            (200_000, "2 d 7 h"),
        ],
    )
    def test_spans(self, seconds, text):
        assert ago(timedelta(seconds=seconds)) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            *((None, "-"), ("", "-"), (True, "yes"), (False, "no"), ([1, "a"], '[1, "a"]')),
            *((1_234, "1,234"), (output.Name(1_234), "1234")),
        ],
    )
    def test_values(self, value, text):
        assert shown(value) == text

    def test_a_bar_is_drawn_where_somebody_watches(self):
        from django.core.management.base import OutputWrapper

        screen, pipe = Screen(), io.StringIO()
        for where, as_json in ((screen, False), (pipe, False), (screen, True)):
            out = Output(OutputWrapper(pipe), OutputWrapper(where), as_json=as_json)
            out.progress(5, 10)
            out.progress(0, 0)
            out.end_progress()
        assert screen.getvalue().count("5 of 10") == 1
        assert pipe.getvalue() == ""
        assert screen.getvalue().split("]")[0].count("#") == output.BAR // 2

    def test_lines_for_people_are_not_json(self):
        from django.core.management.base import OutputWrapper

        stream = io.StringIO()
        Output(OutputWrapper(stream), OutputWrapper(stream), as_json=True).say("hello")
        assert stream.getvalue() == ""
        Output(OutputWrapper(stream), OutputWrapper(stream), as_json=False).say("hello")
        assert stream.getvalue() == "hello\n"


def test_without_a_command_it_says_what_is_missing():
    with pytest.raises(CommandError, match="required"):
        run()
