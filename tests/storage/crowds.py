"""Other people's jobs: many rows around those that a verb looks for."""

from datetime import timedelta
from uuid import uuid4

from django.db import connection

from taskharbor_django.models import Job, Lease

from .raw import NOW, job_in
from .sessions import execute

AHEAD = NOW + timedelta(days=1)

_COMMON = "(id, task, queue, payload, seq, created_at, updated_at, state, available_at"

# 200,000 jobs, 5,000 leases
_ON_POSTGRESQL = [
    f"""
    INSERT INTO taskharbor_job {_COMMON}, lease, finished_at)
    SELECT gen_random_uuid(), 't', 'default', '', n, %(now)s, %(now)s, 'done', %(now)s,
        gen_random_uuid(), %(now)s::timestamptz FROM generate_series(1, 120000) AS n
    """,
    f"""
    INSERT INTO taskharbor_job {_COMMON}, lease)
    SELECT gen_random_uuid(), 't', 'default', '', n, %(now)s, %(now)s, 'inflight', %(now)s,
        md5((n %% 5000)::text)::uuid FROM generate_series(1, 20000) AS n
    """,
    """
    INSERT INTO taskharbor_lease (token, call, worker, acquired_at, expires_at)
    SELECT md5(n::text)::uuid, md5(n::text)::uuid, 'w', %(now)s,
        %(ahead)s::timestamptz + n * interval '1 ms' FROM generate_series(0, 4999) AS n
    """,
    f"""
    INSERT INTO taskharbor_job {_COMMON}, run_at)
    SELECT gen_random_uuid(), 't', 'default', '', n, %(now)s, %(now)s, 'scheduled',
        %(ahead)s::timestamptz + n * interval '1 s', %(ahead)s FROM generate_series(1, 20000) AS n
    """,
    f"""
    INSERT INTO taskharbor_job {_COMMON}, priority)
    SELECT gen_random_uuid(), 't', 'other-' || n %% 10, '', n, %(now)s, %(now)s, 'ready',
        %(now)s::timestamptz + n * interval '1 ms', n %% 3 * 50
    FROM generate_series(1, 40000) AS n
    """,
]


def gather():
    """Store jobs that are done, inflight, scheduled far ahead, or ready in other queues."""
    if connection.vendor == "postgresql":
        for sql in _ON_POSTGRESQL:
            execute(sql, {"now": NOW, "ahead": AHEAD})
    else:
        _gather_fewer()
    verb = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
    for table in (Job._meta.db_table, Lease._meta.db_table):
        execute(f"{verb} {table}")


def _gather_fewer():
    """A fiftieth of it, where only the shape of a plan is looked at."""
    leases = [
        Lease(token=uuid4(), call=uuid4(), acquired_at=NOW, expires_at=AHEAD) for _ in range(100)
    ]
    Lease.objects.bulk_create(leases)
    ahead = {"available_at": AHEAD, "run_at": AHEAD}
    rows = [job_in("done") for _ in range(2400)]
    rows += [job_in("inflight", lease=lease.token) for lease in leases * 4]
    rows += [job_in("scheduled", **ahead) for _ in range(400)]
    rows += [job_in("ready", queue=f"other-{number % 10}") for number in range(800)]
    Job.objects.bulk_create([Job(**row) for row in rows], batch_size=500)


def disperse():
    if connection.vendor == "postgresql":
        execute(f"TRUNCATE {Job._meta.db_table}, {Lease._meta.db_table}")
        return
    for model in (Job, Lease):
        execute(f"DELETE FROM {model._meta.db_table}")
    if connection.vendor == "sqlite":
        execute("DELETE FROM sqlite_stat1")
