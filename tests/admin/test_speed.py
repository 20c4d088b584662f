"""With very many rows every page asks a fixed number of questions, each by an index."""

from contextlib import contextmanager

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from taskharbor_django.models import DeadLetter, Job, Lease
from tests.storage.plans import explain, statements
from tests.storage.sessions import execute

from . import url

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db]

JOB = "taskharbor_job"
# A day's worth of jobs: most are done, some wait, few run, a few thousand have died.
_SQL = [
    f"""
    INSERT INTO {JOB} (id, task, queue, payload, seq, created_at, updated_at, state, available_at,
        priority, lease, finished_at, correlation_id)
    SELECT gen_random_uuid(), 'task.' || n %% 50, 'queue-' || n %% 8, '\\x', n, t, t, s, t,
        (n %% 3) * 50, CASE WHEN s = 'cancelled' THEN NULL ELSE gen_random_uuid() END, t,
        CASE WHEN n %% 100 = 0 THEN 'correlation-' || n END
    FROM (SELECT n, now() - n * interval '50 ms' AS t,
        CASE n %% 100 WHEN 0 THEN 'cancelled' WHEN 1 THEN 'dead' ELSE 'done' END AS s
        FROM generate_series(1, %(ended)s) AS n) AS made
    """,
    f"""
    INSERT INTO {JOB} (id, task, queue, payload, seq, created_at, updated_at, state, available_at,
        priority, run_at)
    SELECT gen_random_uuid(), 'task.' || n %% 50, 'queue-' || n %% 8, '\\x', n, t, t,
        CASE WHEN n %% 10 = 0 THEN 'scheduled' ELSE 'ready' END, t, (n %% 3) * 50, t
    FROM (SELECT n, now() - n * interval '50 ms' AS t
        FROM generate_series(1, %(waiting)s) AS n) AS made
    """,
    f"""
    INSERT INTO {JOB} (id, task, queue, payload, seq, created_at, updated_at, state, available_at,
        lease)
    SELECT gen_random_uuid(), 'task.1', 'queue-1', '\\x', n, now(), now(), 'inflight', now(),
        md5((n %% 50)::text)::uuid FROM generate_series(1, 200) AS n
    """,
    """
    INSERT INTO taskharbor_lease (token, call, worker, acquired_at, expires_at)
    SELECT md5(n::text)::uuid, md5(n::text)::uuid, 'w', now(), now() + interval '1 day'
    FROM generate_series(0, 49) AS n
    """,
    f"""
    INSERT INTO taskharbor_deadletter (job_id, open_for, task, queue, reason, category, code,
        error_class, error, traceback, fingerprint, attempts, died_at, note)
    SELECT id, id, task, queue, 'exhausted', 'temporary', '', 'Error', 'error', 'trace',
        'print-' || seq %% 40, 3, finished_at, '' FROM {JOB} WHERE state = 'dead'
    """,
]
PAGES = {
    "dashboard": ("/admin/taskharbor/", 25),
    "running": (lambda: url("job_changelist"), 6),
    "ready": (lambda: url("job_changelist", state="ready"), 6),
    "ready in a queue": (lambda: url("job_changelist", state="ready", queue="queue-3"), 6),
    "scheduled": (lambda: url("job_changelist", state="scheduled"), 6),
    "done": (lambda: url("job_changelist", state="done"), 6),
    "done of a task": (lambda: url("job_changelist", state="done", task="task.7"), 5),
    "running of a task": (lambda: url("job_changelist", state="inflight", task="nothing"), 5),
    "done, none found": (lambda: url("job_changelist", state="done", task="nothing"), 7),
    "dead of a group": (lambda: url("job_changelist", state="dead", fingerprint="print-1"), 6),
    "found by correlation": (lambda: url("job_changelist", q="correlation-300"), 7),
    "dead letters": (lambda: url("deadletter_changelist"), 8),
    "a group": (lambda: url("deadletter_changelist", fingerprint="print-1"), 8),
    "queues": (lambda: url("queue_changelist"), 25),
    "workers": (lambda: url("worker_changelist"), 8),
    "leases": (lambda: url("lease_changelist"), 8),
}
# This looks at as many rows as it may, and the planner may read a small table from its start.
READS_MUCH = {"done, none found"}


@contextmanager
def stored(ended, waiting):
    for sql in _SQL:
        execute(sql, {"ended": ended, "waiting": waiting})
    for model in (Job, Lease, DeadLetter):
        execute(f"VACUUM ANALYZE {model._meta.db_table}")
    yield
    execute(f"TRUNCATE {JOB}, taskharbor_lease, taskharbor_deadletter")


@pytest.fixture(scope="module")
def crowd(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), stored(60_000, 20_000):
        yield


@pytest.fixture
def operator(db):
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("fast operator"))
    return client


def asked(operator, name):
    """The statements of a page, those of Django's own tables aside."""
    address, most = PAGES[name]
    address = address if isinstance(address, str) else address()
    operator.get(address)  # content types and the like are remembered
    sent = statements(lambda: operator.get(address))
    assert len(sent) <= most, [sql for sql, _ in sent]
    return [each for each in sent if "taskharbor_" in each[0] and "pg_stat" not in each[0]]


@pytest.mark.parametrize("name", PAGES)
def test_no_page_reads_all_jobs(crowd, operator, name):
    for statement in asked(operator, name):
        plan = explain(statement)
        if name not in READS_MUCH:
            assert JOB not in plan.scanned, statement[0]


@pytest.mark.parametrize("state", ["ready", "done"])
def test_a_value_that_was_frequent_does_not_lead_through_the_table(
    crowd, operator, monkeypatch, state
):
    """The statistics promise a full page soon; near the start there is none."""
    monkeypatch.setattr("taskharbor_django.admin.jobs.NEAR", 10)
    sent = statements(lambda: operator.get(url("job_changelist", state=state, task="task.7")))
    pages = [each for each in sent if JOB in each[0] and "LIMIT 51" in each[0]]
    assert len(pages) == 2
    plan = explain(pages[-1])
    assert "Sort" in plan.kinds
    assert not {"Index Scan", "Incremental Sort"} & plan.kinds


@pytest.mark.parametrize("state", ["ready", "done", "scheduled"])
def test_the_hundredth_page_begins_in_its_index(crowd, operator, state):
    key = operator.get(url("job_changelist", state=state)).context["page"].older
    for _ in range(5):
        page = operator.get(url("job_changelist", state=state, after=key)).context["page"]
        key = page.older
    sent = statements(lambda: operator.get(url("job_changelist", state=state, after=key)))
    assert [each[0] for each in sent if JOB in each[0] and JOB in explain(each).scanned] == []
