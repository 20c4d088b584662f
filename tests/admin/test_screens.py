"""What each screen shows, to whom, and that nothing shown can run in a browser."""

import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext

from taskharbor_django import cancel, pause, requeue
from taskharbor_django.admin.sparkline import sparkline
from taskharbor_django.models import (
    Attempt,
    DeadLetter,
    Dependency,
    Job,
    Lease,
    Queue,
    QueueMinute,
    Schedule,
    Worker,
    Workflow,
)
from taskharbor_django.operations.figures import Minute
from taskharbor_django.payload import ERASED, encode_call, encode_value
from tests.factories import DeadLetterFactory, JobFactory, LeaseFactory, job_in, utcnow
from tests.testapp.tasks import add

from . import EVIL, died, url

SCREENS = ["job", "deadletter", "queue", "worker", "lease", "schedule", "workflow"]
DASHBOARD = "/admin/taskharbor/"


def text(answer):
    return answer.content.decode()


def plain(answer):
    """What a reader sees, without markup."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text(answer)))


def worker(name="w1", **columns):
    facts = {"host": "h", "pid": 1234, "version": "1", "queues": "*", "slots": 4, "busy": 1}
    facts |= {"started_at": utcnow(), "last_beat_at": utcnow()}
    return Worker.objects.create(id=name, name=name, **facts | columns)


# -- who may see what ---------------------------------------------------------------------------


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_is_for_who_may_view_its_model(visitor, screen):
    address = url(f"{screen}_changelist")
    assert visitor(f"view_{screen}").get(address).status_code == 200
    assert visitor(*(f"view_{other}" for other in SCREENS if other != screen)).get(
        address
    ).status_code in (403, 404)


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_is_not_for_strangers(client, db, screen):
    assert client.get(url(f"{screen}_changelist")).status_code == 302


@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_can_be_added_changed_or_deleted_past_the_verbs(operator, screen):
    adding = 200 if screen == "schedule" else 403  # has a form of its own
    assert operator.get(url(f"{screen}_add")).status_code == adding
    assert operator.post(url(f"{screen}_delete", "1")).status_code in (302, 403, 404)


def test_the_dashboard_shows_figures_to_who_may_view_jobs_only(visitor):
    job_in("ready", queue="secret-queue")
    assert "secret-queue" in text(visitor("view_job").get(DASHBOARD))
    assert "secret-queue" not in text(visitor("view_queue").get(DASHBOARD))


def test_arguments_and_results_are_for_who_may_view_payloads(visitor):
    job = job_in(
        "done",
        payload=encode_call(("for your eyes",), {}, max_bytes=1000),
        result=encode_value("the answer", max_bytes=1000),
        checkpoint=encode_value("halfway", max_bytes=1000),
    )
    address = url("job_change", job.pk)
    allowed = text(visitor("view_job", "view_payload").get(address))
    hidden = text(visitor("view_job", "view_traceback").get(address))
    for secret in ("for your eyes", "the answer", "halfway"):
        assert secret in allowed
        assert secret not in hidden
    assert "You may not view arguments and results." in hidden


def test_tracebacks_are_for_who_may_view_them(visitor):
    job = died("f1", traceback="Traceback: at line 7")
    pages = [url("job_change", job.pk), url("deadletter_changelist", fingerprint="f1")]
    may = visitor("view_job", "view_deadletter", "view_traceback")
    may_not = visitor("view_job", "view_deadletter", "view_payload")
    for address in pages:
        assert "at line 7" in text(may.get(address))
        assert "at line 7" not in text(may_not.get(address))
        assert "You may not view tracebacks." in text(may_not.get(address))


@pytest.mark.parametrize(
    ("screen", "permission", "data"),
    [
        ("queue_pause", "pause_queue", {"queue": "mail"}),
        ("queue_resume", "resume_queue", {"queue": "mail"}),
    ],
)
def test_a_queue_is_paused_and_resumed_by_who_may(visitor, screen, permission, data):
    job_in("ready", queue="mail")
    pause("mail") if screen == "queue_resume" else None
    others = {"pause_queue", "resume_queue"} - {permission}
    refused = visitor("view_queue", *others)
    assert refused.post(url(screen), data).status_code == 403
    assert url(screen) not in text(refused.get(url("queue_changelist")))
    assert visitor(permission).post(url(screen), data).status_code == 403
    before = Queue.objects.values().first()
    allowed = visitor("view_queue", permission)
    assert url(screen) in text(allowed.get(url("queue_changelist")))
    assert not LogEntry.objects.exists()
    assert allowed.post(url(screen), data).status_code == 302
    assert Queue.objects.values().first() != before
    assert LogEntry.objects.get().object_id == "mail"
    assert allowed.get(url(screen)).status_code == 405


@pytest.mark.parametrize(
    ("what", "permission", "request_"),
    [
        ("quiet", "quiet_worker", "quiet"),
        ("go_on", "quiet_worker", ""),
        ("stop", "stop_worker", "stop"),
    ],
)
def test_a_worker_is_asked_by_who_may(visitor, what, permission, request_):
    row = worker(request="" if what == "quiet" else "quiet")
    address, data = url("worker_ask", what), {"worker": row.pk}
    others = {"quiet_worker", "stop_worker"} - {permission}
    refused = visitor("view_worker", *others)
    assert address not in text(refused.get(url("worker_changelist")))
    assert refused.post(address, data).status_code == 403
    assert visitor(permission).post(address, data).status_code == 403
    assert not LogEntry.objects.exists()
    allowed = visitor("view_worker", permission)
    assert address in text(allowed.get(url("worker_changelist")))
    assert allowed.post(address, data).status_code == 302
    row.refresh_from_db()
    assert row.request == request_
    assert LogEntry.objects.get().object_id == row.pk
    assert allowed.get(address).status_code == 405


def test_a_worker_that_stopped_and_a_wish_that_nobody_knows(operator):
    row = worker(stopped_at=utcnow())
    answer = operator.post(url("worker_ask", "stop"), {"worker": row.pk}, follow=True)
    assert "That worker has stopped" in text(answer)
    assert operator.post(url("worker_ask", "dance"), {"worker": row.pk}).status_code == 404
    assert not LogEntry.objects.exists()


# -- nothing shown can run ----------------------------------------------------------------------


def evil_rows():
    flow = Workflow.objects.create(name=EVIL, created_at=utcnow())
    plan = Schedule.objects.create(
        name=EVIL, task=EVIL, queue="q", kind="cron", cron="* * * * *", created_at=utcnow()
    )
    facts = {
        "task": EVIL,
        "payload": encode_call((EVIL,), {"k": EVIL}, max_bytes=10_000),
        "tags": {EVIL: EVIL},
        "correlation_id": EVIL,
        "idempotency_key": EVIL,
        "callback_url": EVIL,
        "progress": 40,
        "progress_message": EVIL,
        "last_error": EVIL,
        "workflow": flow,
    }
    job = died("f1", traceback=EVIL, schedule=plan, schedule_slot=utcnow(), **facts)
    said = {"error": EVIL, "error_class": EVIL, "code": EVIL[:60]}
    DeadLetter.objects.filter(job=job.pk).update(task=EVIL, **said)
    Attempt.objects.filter(job=job.pk).update(worker=EVIL[:60], **said)
    Job.objects.filter(pk=job.pk).update(
        result=encode_value(EVIL, max_bytes=1000), checkpoint=encode_value(EVIL, max_bytes=1000)
    )
    running = job_in("inflight", **{**facts, "parent": job})
    Lease.objects.filter(pk=running.lease).update(worker=EVIL[:60])
    Dependency.objects.create(job=running, depends_on=job, kind="after")
    pause("q", note=EVIL)
    worker("w", host=EVIL, queues=EVIL)
    Worker.objects.filter(pk="w").update(name=EVIL, version=EVIL[:30])
    return job, running, flow


def test_no_page_needs_inline_script_or_style(operator):
    job, _, flow = evil_rows()
    pages = [DASHBOARD, *(url(f"{screen}_changelist") for screen in SCREENS)]
    pages += [url("job_change", job.pk), url("workflow_change", flow.pk)]
    for address in pages:
        page = text(operator.get(address))
        assert not re.search(r"<[^>]+\sstyle\s*=", page), address
        assert not re.search(r"<style", page), address
        assert not re.search(r"<[^>]+\son[a-z]+\s*=\s*[\"']", page), address
        assert not re.search(r"<script(?![^>]*\bsrc=)", page), address


# -- dashboard ----------------------------------------------------------------------------------


def test_the_dashboard_counts_each_queue(operator):
    for state, number in {
        "ready": 3,
        "inflight": 2,
        "scheduled": 4,
        "blocked": 1,
        "dead": 5,
    }.items():
        for _ in range(number):
            job_in(state, queue="mail")
    worker(queues="mail,other")
    row = next(r for r, _ in operator.get(DASHBOARD).context["board"]["rows"] if r.name == "mail")
    counts = (row.ready, row.inflight, row.scheduled, row.blocked, row.dead)
    assert [count.number for count in counts] == [3, 2, 4, 1, 5]
    assert row.workers == 1


def test_a_large_count_is_capped_and_says_so(operator, monkeypatch):
    monkeypatch.setattr("taskharbor_django.operations.figures.CAP", 2)
    for _ in range(4):
        job_in("ready", queue="mail")
        job_in("scheduled", queue="mail")
    page = plain(operator.get(DASHBOARD))
    assert " 2+ " in page
    tabs = dict(operator.get(url("job_changelist")).context["tabs"])
    assert (tabs["ready"].number, tabs["ready"].more) == (2, True)


def test_the_oldest_ready_job_is_found_behind_more_urgent_ones(operator):
    old = utcnow() - timedelta(minutes=30)
    JobFactory(queue="mail", priority=-50)
    JobFactory(queue="mail", priority=50, created_at=old)
    JobFactory(queue="mail", priority=0, created_at=old + timedelta(minutes=9))
    (row, _), *_rest = operator.get(DASHBOARD).context["board"]["rows"]
    assert row.oldest_at == old


def test_rates_come_from_the_minutes(operator):
    now = utcnow().replace(second=0, microsecond=0)
    for place, number in ((0, 5), (10, 7), (70, 100)):
        QueueMinute.objects.create(
            minute=now - timedelta(minutes=place), queue="mail", worker="w", done=number, dead=1
        )
    ((row, line),) = operator.get(DASHBOARD).context["board"]["rows"]
    assert row.last_hour == Minute(12, 0, 2)
    assert row.minutes[-1] == Minute(5, 0, 1)
    assert line.failed


def test_a_sparkline_begins_and_ends_on_the_ground():
    line = sparkline([Minute(0, 0, 0), Minute(9, 1, 0), Minute(0, 0, 0)])
    assert line.all == "M0 28V28.0H40.0V1.0H80.0V28.0H120.0V28Z"
    assert line.failed.startswith("M0 28V28.0H40.0V25.3")
    assert sparkline([Minute()] * 60).all == ""


def warnings_of(operator):
    found = operator.get(DASHBOARD).context["board"]["warnings"]
    return {(warning.kind.value, warning.subject) for warning in found}


def test_what_needs_attention_is_said(operator):
    long_ago = utcnow() - timedelta(hours=2)
    job_in("ready", queue="alone", available_at=utcnow() - timedelta(seconds=30))
    job_in("ready", queue="new", available_at=utcnow() + timedelta(minutes=1))
    job_in("ready", queue="late", created_at=long_ago)
    pause("still")
    worker("alive", queues="late")
    worker("gone", last_beat_at=long_ago)
    LeaseFactory(acquired_at=long_ago, expires_at=long_ago)
    died(queue="mail")
    assert warnings_of(operator) == {
        ("no_worker", "alone"),
        ("late", "late"),
        ("paused", "still"),
        ("silent", "gone (h:1234)"),
        ("leases", ""),
        ("dying", "mail"),
    }


def test_who_died_within_the_hour_and_is_dead_still_is_warned_of(operator, monkeypatch):
    repaired = died(queue="repaired")
    requeue([repaired.pk])
    Job.objects.filter(pk=repaired.pk).update(available_at=utcnow() + timedelta(minutes=1))
    for _ in range(3):
        died(queue="lost", created_at=utcnow() - timedelta(minutes=30))
    died(queue="old", created_at=utcnow() - timedelta(hours=3))
    QueueMinute.objects.create(
        minute=utcnow().replace(second=0, microsecond=0), queue="repaired", worker="w", dead=1
    )
    assert warnings_of(operator) == {("dying", "lost")}
    assert "lost : 3 jobs died within the last hour" in plain(operator.get(DASHBOARD))
    monkeypatch.setattr("taskharbor_django.operations.figures.CAP", 2)
    assert "lost : 2+ jobs died within the last hour" in plain(operator.get(DASHBOARD))


def test_warnings_of_one_kind_share_a_line_with_the_most_first(operator):
    for queue, number in (("few", 1), ("many", 3)):
        for _ in range(number):
            died(queue=queue)
    for n in range(14):
        worker(f"w{n:02}", last_beat_at=utcnow() - timedelta(hours=1))
    page = operator.get(DASHBOARD)
    assert "Jobs died within the last hour: many 3 · few 1" in plain(page)
    assert text(page).count('<li class="th-silent') == 1
    assert "w11 (h:1234)" in text(page)
    assert "w12 (h:1234)" not in text(page)
    assert "and 2 more" in plain(page)


def test_a_search_without_a_find_shows_no_empty_table(operator):
    assert "result_list" not in text(operator.get(url("job_changelist", q="nothing")))
    assert "No jobs here." in text(operator.get(url("job_changelist")))


def test_an_expired_lease_is_said_on_the_page_of_its_job(operator):
    job = job_in("inflight")
    assert "expired" not in text(operator.get(url("job_change", job.pk)))
    Lease.objects.update(expires_at=utcnow() - timedelta(minutes=1))
    assert ">expired<" in text(operator.get(url("job_change", job.pk)))


def test_a_queue_that_was_not_reached_by_counting_may_have_more(operator, monkeypatch):
    monkeypatch.setattr("taskharbor_django.operations.figures.CAP", 2)
    for queue, minutes in (("near", 1), ("near", 2), ("near", 3), ("far", 60)):
        job_in("scheduled", queue=queue, run_at=utcnow() + timedelta(minutes=minutes))
    job_in("ready", queue="far")
    rows = {row.name: row for row, _ in operator.get(DASHBOARD).context["board"]["rows"]}
    assert (rows["near"].scheduled, rows["far"].scheduled) == ((2, True), (0, True))
    assert rows["far"].blocked == (0, False)


def test_when_all_is_well_that_is_said(operator):
    worker()
    assert "Nothing needs attention." in text(operator.get(DASHBOARD))


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_held_snapshot_is_seen(operator, monkeypatch, race):
    from django.db import connection

    monkeypatch.setattr("taskharbor_django.operations.warnings.HELD", timedelta(0))
    from django.db import transaction

    seen = []

    def look():
        seen.append({kind for kind, _ in warnings_of(operator)})

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        race(look)
    assert "snapshot" in seen[0]


# -- jobs ---------------------------------------------------------------------------------------


def shown(operator, **query):
    return [job.pk for job in operator.get(url("job_changelist", **query)).context["page"].rows]


@pytest.mark.parametrize(
    "state", ["blocked", "scheduled", "ready", "inflight", "done", "dead", "cancelled"]
)
def test_a_tab_holds_the_jobs_of_its_state(operator, state):
    jobs = {each: job_in(each) for each in ("ready", "inflight", "dead", "done", "cancelled")}
    jobs[state] = jobs.get(state) or job_in(state)
    assert shown(operator, state=state) == [jobs[state].pk]
    assert str(jobs[state].pk) in text(operator.get(url("job_changelist", state=state)))


@pytest.mark.parametrize(
    "criterion",
    [{"queue": "mail"}, {"task": "other.task"}, {"priority": 50}, {"correlation_id": "c"}],
)
def test_a_filter_narrows_a_tab(operator, criterion):
    wanted, _ = job_in("ready", **criterion), job_in("ready")
    assert shown(operator, state="ready", **criterion) == [wanted.pk]


def test_a_tag_narrows_a_tab_and_a_wrong_one_is_said(operator):
    wanted, _ = job_in("ready", tags={"customer": "7"}), job_in("ready")
    assert shown(operator, state="ready", tag="customer=7") == [wanted.pk]
    page = operator.get(url("job_changelist", state="ready", tag="customer"))
    assert "Write a tag as name=value." in text(page)
    for long in (f"{'k' * 129}=7", f"customer={'7' * 1025}"):
        page = text(operator.get(url("job_changelist", state="ready", tag=long)))
        assert "are allowed" in page


def test_errors_narrow_the_dead(operator):
    wanted, _ = died("f1"), died("f2")
    DeadLetter.objects.filter(job=wanted.pk).update(error_class="KeyError", reason="permanent")
    for criterion in ({"error_class": "KeyError"}, {"reason": "permanent"}, {"fingerprint": "f1"}):
        assert shown(operator, state="dead", **criterion) == [wanted.pk]


def test_errors_have_a_column_where_there_are_any(operator):
    job_in("done"), job_in("ready"), job_in("ready", last_error="it broke"), died()
    column = '<th scope="col">error</th>'
    assert column not in text(operator.get(url("job_changelist", state="done")))
    assert column in text(operator.get(url("job_changelist", state="ready")))


def test_a_filter_is_folded_and_says_what_it_holds(operator):
    for screen in ("job_changelist", "deadletter_changelist"):
        page = text(operator.get(url(screen, state="dead", queue="mail", priority=50)))
        summary = re.search(r'<details class="th-fold[^>]*>\s*<summary>(.*?)</summary>', page)[1]
        assert "queue: mail" in summary
        assert "priority: low" in summary
    wrong = text(operator.get(url("job_changelist", tag="customer")))
    assert '<details class="th-fold" open>' in wrong


def test_jobs_are_found_by_id_key_and_correlation(operator):
    handle = add.using(idempotency_key="order-7", correlation_id="trace-7").enqueue(1, 2)
    other = add.using(correlation_id="trace-7").enqueue(1, 2)
    for words in (str(handle.id), "order-7"):
        answer = operator.get(url("job_changelist", q=words))
        assert answer["Location"] == url("job_change", handle.id)
    assert set(shown(operator, q="trace-7")) == {handle.id, other.id}
    assert "Nothing has the id" in text(operator.get(url("job_changelist", q="nothing")))


@pytest.mark.parametrize("state", ["ready", "scheduled", "done", "blocked", "inflight"])
def test_pages_go_forth_and_back_without_a_gap(operator, monkeypatch, state):
    monkeypatch.setattr("taskharbor_django.admin.paging.PAGE", 2)
    monkeypatch.setattr("taskharbor_django.admin.paging.page.__defaults__", (2,))
    jobs = {job_in(state, priority=n % 2).pk for n in range(5)}
    seen, pages, query = [], [], {"state": state}
    while True:
        page = operator.get(url("job_changelist", **query)).context["page"]
        pages.append([job.pk for job in page.rows])
        seen += pages[-1]
        if not page.older:
            break
        query = {"state": state, "after": page.older}
    assert [len(each) for each in pages] == [2, 2, 1]
    assert len(seen) == 5
    assert set(seen) == jobs
    back = operator.get(url("job_changelist", state=state, before=page.newer)).context["page"]
    assert [job.pk for job in back.rows] == pages[1]
    first = operator.get(url("job_changelist", state=state, before=back.newer)).context["page"]
    assert ([job.pk for job in first.rows], first.newer) == (pages[0], "")


@pytest.mark.parametrize("key", ["nonsense", "W10", "WyJhIl0", "%00", "e30"])
def test_a_made_up_key_is_the_first_page(operator, key):
    job = job_in("done")
    assert shown(operator, state="done", after=key) == [job.pk]


def test_a_filter_without_an_index_looks_at_the_first_and_says_so(operator, monkeypatch):
    monkeypatch.setattr("taskharbor_django.admin.jobs.LOOKED_AT", 3)
    monkeypatch.setattr("taskharbor_django.admin.jobs.NEAR", 2)
    now = utcnow()
    ended = [
        job_in("done", task="rare" if n in (0, 4) else "usual", created_at=now + timedelta(hours=n))
        for n in range(5)
    ]
    answer = operator.get(url("job_changelist", state="done", task="rare"))
    assert [job.pk for job in answer.context["page"].rows] == [ended[4].pk]
    assert "There is no index for this filter" in text(answer)
    assert "There is no index" not in text(operator.get(url("job_changelist", state="done")))


@pytest.mark.parametrize("near", [1, 4, 7, 100])
@pytest.mark.parametrize("state", ["done", "ready"])
def test_pages_of_a_filter_without_an_index_have_no_gap(operator, monkeypatch, state, near):
    monkeypatch.setattr("taskharbor_django.admin.jobs.NEAR", near)
    monkeypatch.setattr("taskharbor_django.admin.paging.page.__defaults__", (2,))
    now = utcnow()
    for n in range(12):
        job_in(state, task="odd" if n % 2 else "even", created_at=now + timedelta(hours=n))
    every = shown_all(operator, state=state)
    pages = walk(operator, state=state, task="odd")
    odd = {job.pk for job in Job.objects.filter(task="odd")}
    assert [pk for rows, _ in pages for pk in rows] == [pk for pk in every if pk in odd]
    _, last = pages[-1]
    back = operator.get(url("job_changelist", state=state, task="odd", before=last.newer))
    assert [job.pk for job in back.context["page"].rows] == pages[-2][0]


def walk(operator, **query):
    """The ids of each page, and the page, from the first to the last."""
    pages, after = [], {}
    while True:
        found = operator.get(url("job_changelist", **query, **after)).context["page"]
        pages.append(([job.pk for job in found.rows], found))
        if not found.older:
            return pages
        after = {"after": found.older}


def shown_all(operator, **query):
    return [pk for rows, _ in walk(operator, **query) for pk in rows]


def test_an_unknown_state_is_the_first_tab(operator):
    assert operator.get(url("job_changelist", state="nonsense")).context["state"] == "inflight"


# -- one job ------------------------------------------------------------------------------------


def test_the_timeline_tells_the_whole_story(operator):
    job = died()
    requeue([job.pk], by=operator.user, note="try once more")
    page = plain(operator.get(url("job_change", job.pk)))
    for words in ("enqueued", "attempt 1: failed", "died", "operator: try once more"):
        assert words in page
    page = plain(operator.get(url("job_change", job_in("done").pk)))
    assert "done 1 min 0 s running" in page
    running = job_in("inflight", started_at=utcnow(), progress=40, progress_message="page 4")
    cancel([running.pk])
    page = plain(operator.get(url("job_change", running.pk)))
    for words in ("started", "asked to stop", "40 % page 4", "held by", "worker-1"):
        assert words in page
    assert "may run" in plain(operator.get(url("job_change", job_in("scheduled").pk)))
    assert "cancelled" in plain(operator.get(url("job_change", job_in("cancelled").pk)))


def test_the_time_of_waiting_counts_from_when_the_job_could_run(operator):
    now = utcnow()
    hours = [now - timedelta(hours=n) for n in range(6)]
    facts = {"created_at": hours[5], "available_at": hours[2], "lease_version": 2}
    job = job_in("inflight", **facts, started_at=hours[1])
    assert "started 1 h 0 min waiting" in plain(operator.get(url("job_change", job.pk)))
    Job.objects.filter(pk=job.pk).update(available_at=hours[5])
    lost = {"lease_version": 1, "number": 1, "end": "lost", "finished_at": hours[4]}
    Attempt.objects.create(job=job, **lost)
    assert "started 3 h 0 min waiting" in plain(operator.get(url("job_change", job.pk)))


def test_a_priority_is_shown_by_its_level(operator):
    high, odd = job_in("ready", priority=-50), job_in("ready", priority=7)
    assert "priority high" in plain(operator.get(url("job_change", high.pk)))
    assert "priority 7" in plain(operator.get(url("job_change", odd.pk)))
    page = text(operator.get(url("job_changelist") + "?state=ready"))
    assert '<td data-label="priority">high</td>' in page
    assert '<td data-label="priority">7</td>' in page


def test_a_run_is_counted_as_one(operator):
    one, two = (job_in("ready", executions=n) for n in (1, 2))
    assert "failed, 1 run " in plain(operator.get(url("job_change", one.pk)))
    assert "failed, 2 runs " in plain(operator.get(url("job_change", two.pk)))


def test_secrets_are_masked_by_the_name_of_their_parameter(operator):
    payload = encode_call((1,), {"b": {"password": "hunter2", "x": "seen"}}, max_bytes=1000)
    page = text(operator.get(url("job_change", job_in("ready", payload=payload).pk)))
    assert "hunter2" not in page
    assert "seen" in page
    assert "••••••" in page


def test_a_secret_passed_by_position_is_masked(operator, monkeypatch):
    from taskharbor_django import registry, task

    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    @task(name="login.task")
    def login(name, password): ...

    payload = encode_call(("ada", "hunter2"), {}, max_bytes=1000)
    job = job_in("ready", task="login.task", payload=payload)
    page = text(operator.get(url("job_change", job.pk)))
    assert "ada" in page
    assert "hunter2" not in page
    payload = encode_call((), {"name": "ada", "password": "hunter2"}, max_bytes=1000)
    job = job_in("ready", task="login.task", payload=payload)
    assert "hunter2" not in text(operator.get(url("job_change", job.pk)))


def test_a_secret_behind_the_result_that_a_step_takes_is_masked(operator, monkeypatch):
    from taskharbor_django import registry, task

    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    @task(name="charge.task")
    def charge(order, token): ...

    payload = encode_call(("hunter2",), {}, max_bytes=1000)
    hook = "https://hooks.example/done?sig=hunter2"
    fields = {"payload": payload, "input": "value", "callback_url": hook}
    page = text(operator.get(url("job_change", job_in("ready", task="charge.task", **fields).pk)))
    assert "hunter2" not in page
    assert "https://hooks.example/done?" in page


@pytest.mark.parametrize("task", ["gone.task", "tests.testapp.tasks.add"])
def test_arguments_that_fit_no_handler_are_shown_as_they_are(operator, task):
    payload = encode_call((1, 2, 3, 4, 5, 6, 7), {"zz": 8}, max_bytes=1000)
    page = text(operator.get(url("job_change", job_in("ready", task=task, payload=payload).pk)))
    assert "kwargs" in page


def test_what_cannot_be_decoded_is_said_and_not_shown(operator):
    job = job_in("done", payload=b"\xff\xfe", result=b"nonsense")
    page = text(operator.get(url("job_change", job.pk)))
    assert "The stored bytes are no payload" in page
    job = job_in("done", payload=ERASED)
    assert "The arguments were erased." in text(operator.get(url("job_change", job.pk)))


def test_a_long_value_is_cut(operator):
    payload = encode_call(("x" * 60_000,), {}, max_bytes=100_000)
    page = text(operator.get(url("job_change", job_in("ready", payload=payload).pk)))
    assert len(page) < 80_000


def test_the_neighbours_of_a_job_are_linked(operator):
    parent, before = job_in("done"), job_in("ready", has_dependents=True)
    flow = Workflow.objects.create(created_at=utcnow())
    job = job_in("blocked", parent=parent, workflow=flow, has_dependents=True)
    child, behind, replayed = job_in("ready", parent=job), job_in("blocked"), job_in("dead")
    Job.objects.filter(pk=job.pk).update(replay_of=replayed)
    again = job_in("ready", replay_of=job)
    Dependency.objects.create(job=job, depends_on=before, kind="after")
    Dependency.objects.create(job=behind, depends_on=job, kind="after")
    page = text(operator.get(url("job_change", job.pk)))
    for other in (parent, before, child, behind, replayed, again):
        assert url("job_change", other.pk) in page
    assert url("workflow_change", flow.pk) in page


def test_a_job_that_is_not_there_leads_back(operator):
    for pk in (uuid4(), "nonsense"):
        assert operator.get(url("job_change", pk)).status_code == 302
        assert operator.get(url("workflow_change", pk)).status_code == 302
    assert operator.get(url("deadletter_change", 999_999)).status_code == 302


# -- dead letters -------------------------------------------------------------------------------


def test_dead_letters_are_grouped_with_count_and_times(operator):
    for _ in range(3):
        died("f1")
    died("f2")
    old = utcnow() - timedelta(days=2)
    DeadLetter.objects.filter(pk=DeadLetter.objects.filter(fingerprint="f1").first().pk).update(
        died_at=old
    )
    page = operator.get(url("deadletter_changelist"))
    (first, second) = page.context["groups"]
    assert (first["fingerprint"], first["number"], first["first"]) == ("f1", 3, old)
    assert second["number"] == 1
    assert "4 dead jobs in 2 groups" in plain(page)
    oldest = operator.get(url("deadletter_changelist", sort="first")).context["groups"]
    assert oldest[0]["fingerprint"] == "f1"


def test_who_died_only_with_another_is_hidden_until_asked_for(operator):
    died("f1")
    follower = died("f2", dependencies_left=1)
    DeadLetter.objects.filter(job=follower.pk).update(reason="dependency")
    page = operator.get(url("deadletter_changelist"))
    assert [group["fingerprint"] for group in page.context["groups"]] == ["f1"]
    assert "1 more died only with another one" in plain(page)
    shown = operator.get(url("deadletter_changelist", reason="dependency")).context["groups"]
    assert [group["fingerprint"] for group in shown] == ["f2"]


def test_a_group_shows_its_jobs_newest_first_and_its_latest_traceback(operator):
    jobs = [died("f1", created_at=utcnow() - timedelta(hours=n)) for n in range(3)]
    died("f2")
    page = operator.get(url("deadletter_changelist", fingerprint="f1"))
    assert [letter.job_id for letter in page.context["page"].rows] == [job.pk for job in jobs]
    assert "at line 7" in text(page)
    letter = DeadLetter.objects.get(job=jobs[0].pk)
    answer = operator.get(url("deadletter_change", letter.pk))
    assert answer["Location"] == url("job_change", jobs[0].pk)


def test_closed_letters_are_not_shown(operator):
    job = died("f1")
    requeue([job.pk])
    assert operator.get(url("deadletter_changelist")).context["groups"] == []
    page = operator.get(url("deadletter_changelist", fingerprint="f1"))
    assert "Nothing is left in this group." in text(page)


def test_a_filter_that_makes_no_sense_finds_nothing(operator):
    died("f1")
    page = operator.get(url("deadletter_changelist", reason="boredom"))
    assert page.context["groups"] == []


# -- the others ---------------------------------------------------------------------------------


def test_a_queue_is_paused_until_a_time_with_a_reason(operator):
    data = {"queue": "mail", "until": "2035-01-01T10:00", "note": "server is down"}
    operator.post(url("queue_pause"), data)
    row = Queue.objects.get()
    assert (row.paused_until.year, row.note, row.paused_by) == (
        2035,
        "server is down",
        operator.user,
    )
    page = text(operator.get(url("queue_changelist")))
    assert "server is down" in page
    assert url("queue_resume") in page
    assert "server is down" in LogEntry.objects.get().change_message


@pytest.mark.parametrize("data", [{}, {"queue": "no such name"}, {"queue": "a", "until": "soon"}])
def test_a_pause_that_makes_no_sense_is_refused(operator, data):
    answer = operator.post(url("queue_pause"), data, follow=True)
    assert "makes no sense" in text(answer)
    assert "No such queue was paused." in text(
        operator.post(url("queue_resume"), data, follow=True)
    )
    assert not Queue.objects.exists()
    assert not LogEntry.objects.exists()


def test_a_worker_shows_what_it_runs_now(operator):
    worker("w1")
    worker("quiet one", last_beat_at=utcnow() - timedelta(hours=1))
    worker("ended", stopped_at=utcnow())
    job = job_in("inflight", task="long.task")
    Lease.objects.filter(pk=job.lease).update(worker="w1")
    orphan = job_in("inflight", task="lost.task")
    Lease.objects.filter(pk=orphan.lease).delete()
    page = operator.get(url("worker_changelist"))
    rows = dict(page.context["rows"])
    assert {w.name: [j.pk for j in jobs] for w, jobs in rows.items()} == {
        "w1": [job.pk],
        "quiet one": [],
    }
    assert "silent" in text(page)
    assert plain(page).count("killed or cut off; leaves this page in 22 h 59 min") == 1
    assert "shown for a day after the last heartbeat" in text(operator.get(DASHBOARD))
    Worker.objects.filter(name="quiet one").update(last_beat_at=utcnow() - timedelta(hours=25))
    assert "silent" not in text(operator.get(url("worker_changelist")))
    assert "ended" in text(page)
    assert operator.get(url("worker_change", "w1")).status_code == 302


def test_a_worker_is_silent_by_its_own_lease(operator):
    heard = utcnow() - timedelta(minutes=5)
    worker("patient", queues="slow", lease=timedelta(hours=1), last_beat_at=heard)
    job_in("ready", queue="slow")
    assert "silent" not in text(operator.get(url("worker_changelist")))
    page = operator.get(DASHBOARD)
    assert page.context["board"]["alive"] == 1
    assert page.context["board"]["rows"][0][0].workers == 1
    assert "<b>1</b> worker " in text(page)
    assert warnings_of(operator) == set()
    worker("quick", lease=timedelta(seconds=5), last_beat_at=utcnow() - timedelta(seconds=10))
    assert text(operator.get(url("worker_changelist"))).count(">silent<") == 1
    assert warnings_of(operator) == {("silent", "quick (h:1234)")}


def test_leases_stand_in_the_order_of_their_end(operator):
    job = job_in("inflight")
    late = LeaseFactory(expires_at=utcnow() - timedelta(minutes=1))
    page = operator.get(url("lease_changelist"))
    assert [(lease.token, n) for lease, n, _ in page.context["rows"]] == [
        (late.token, 0),
        (job.lease, 1),
    ]
    assert "expired" in text(page)
    assert operator.get(url("lease_change", job.lease)).status_code == 200


def test_schedules_and_workflows_are_listed(operator):
    plan = Schedule.objects.create(
        name="nightly",
        task="t",
        queue="q",
        kind="fixed_rate",
        interval=timedelta(hours=1),
        next_at=utcnow(),
        paused_at=utcnow(),
        created_at=utcnow(),
    )
    page = plain(operator.get(url("schedule_changelist")))
    assert "nightly paused" in page
    assert "1 h 0 min" in page
    assert "made by hand" in page
    assert str(plan.pk) in operator.get(url("schedule_change", plan.pk))["Location"]
    flow = Workflow.objects.create(name="nightly flow", created_at=utcnow(), finished_at=utcnow())
    job_in("done", workflow=flow), job_in("dead", workflow=flow), job_in("ready", workflow=flow)
    page = plain(operator.get(url("workflow_changelist")))
    assert "nightly flow" in page
    assert "2 of 3" in page
    page = plain(operator.get(url("workflow_change", flow.pk)))
    assert "2 of 3 jobs have ended." in page
    assert "Dead 1" in page
    assert operator.get(url("queue_change", "mail"))["Location"].endswith("queue=mail")


def test_a_tag_may_have_any_name(operator):
    job = job_in("ready", tags={"items": "seven", "keys": "eight"})
    for page in (url("job_changelist", state="ready"), url("job_change", job.pk)):
        shown = text(operator.get(page))
        assert "items=seven" in shown
        assert "keys=eight" in shown


def test_what_no_database_can_hold_finds_nothing(operator):
    assert operator.get(url("job_changelist", q="%00")).status_code == 200
    assert operator.post(url("worker_ask", "quiet"), {"worker": "\x00"}).status_code == 302


def test_who_took_a_job_out_of_the_dead_letters_is_named(operator):
    job = died()
    DeadLetter.objects.update(
        open_for=None, closed_at=utcnow(), closed_by=operator.user, note="again"
    )
    for _ in range(2):
        DeadLetterFactory(job=job, closed=True, closed_by=operator.user)
    with CaptureQueriesContext(connection) as queries:
        assert "operator: again" in text(operator.get(url("job_change", job.pk)))
    users = [query for query in queries if 'FROM "auth_user"' in query["sql"].replace("`", '"')]
    assert len(users) == 2  # the visitor, and all who closed a letter


def test_a_queue_with_odd_signs_has_its_jobs(operator):
    answer = operator.get(url("queue_change", "a&state=dead"))
    assert answer["Location"].endswith("?state=ready&queue=a%26state%3Ddead")
