"""Every word that the screens say by themselves can be translated."""

import re

import pytest
from django.utils import translation

from taskharbor_django.models import Dependency, Schedule, Worker, Workflow
from taskharbor_django.operations import pause
from tests.factories import job_in, utcnow

from . import died, url

# What somebody typed: names of queues, tasks, hosts; and the site's own name.
DATA = re.compile(
    r"[a-z_]+(\.[a-z_]+)+|[0-9a-f]{8}\S*|qqq\S*|TaskHarbor|BrokenError|it broke|stumbled|worker-1"
)


@pytest.fixture
def marked(monkeypatch):
    """Put marks around all that went through a catalogue."""

    def mark(real):
        return lambda *args: f"⟦{real(*args)}⟧" if args[0] else ""

    for name in ("gettext", "ngettext", "pgettext", "npgettext"):
        # Where django.utils.translation keeps the functions that it has found.
        monkeypatch.setattr(translation._trans, name, mark(getattr(translation._trans, name)))
    with translation.override("en"):
        yield


def unmarked(page):
    """The words of a page's content that were not marked, without data."""
    content = page[page.index('<div id="content"') : page.index("<footer")]
    # The last part of a task's path.
    content = re.sub(r'<wbr>\w+|<text class="th-name".*?</text>', " ", content)
    content = re.sub(r"<(pre|code|time|script|option)\b.*?</\1>", " ", content, flags=re.S)
    named = re.findall(r'(?:title|aria-label|placeholder|data-label)="([^"]*)"', content)
    text = " ".join([re.sub(r"<[^>]*>", " ", content), *named])
    while (less := re.sub(r"⟦[^⟦⟧]*⟧", " ", text)) != text:
        text = less
    return re.findall(r"[A-Za-z]{2,}", DATA.sub(" ", text))


@pytest.fixture
def stored(db):
    now = utcnow()
    flow = Workflow.objects.create(name="qqq", created_at=now)
    jobs = [job_in(state, workflow=flow, queue="qqq") for state in ("done", "ready", "scheduled")]
    running = job_in("inflight", queue="qqq", progress=4, started_at=now, parent=jobs[0])
    blocked = job_in("blocked", workflow=flow, queue="qqq")
    Dependency.objects.create(job=blocked, depends_on=jobs[1], kind="after")
    dead = died("f1", queue="qqq")
    facts = {"host": "qqq", "pid": 7, "started_at": now, "queues": "qqq", "request": "quiet"}
    Worker.objects.create(id="worker-1", name="qqq", last_beat_at=now, **facts)
    Worker.objects.create(id="gone", name="qqq", last_beat_at=now, **facts, stopped_at=now)
    Schedule.objects.create(name="qqq", task="qqq", kind="cron", cron="0 3 * * *", created_at=now)
    pause("qqq", note="qqq")
    return flow, [*jobs, running, blocked, dead]


def test_no_word_is_written_past_the_catalogue(operator, stored, marked):
    flow, jobs = stored
    pages = ["/admin/taskharbor/", url("workflow_change", flow.pk)]
    pages += [url(f"{name}_changelist") for name in ("job", "deadletter", "queue", "worker")]
    pages += [url(f"{name}_changelist") for name in ("lease", "schedule", "workflow")]
    pages += [url("job_changelist", state=job.state) for job in jobs]
    pages += [url("job_change", job.pk) for job in jobs]
    pages += [url("deadletter_changelist", fingerprint="f1"), url("schedule_add")]
    found = {page: unmarked(operator.get(page).content.decode()) for page in pages}
    asked = {"_selected_action": [str(jobs[-1].pk)]}
    for name in ("requeue", "replay", "discard", "erase"):
        address = url("job_act", name)
        found[address] = unmarked(operator.post(address, asked).content.decode())
    assert {page: words for page, words in found.items() if words} == {}
