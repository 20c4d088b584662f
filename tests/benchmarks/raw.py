"""
The limit: what psycopg alone does with the product's own table, and the same writes.

Written apart from the product, so that it does not get slower with it: one connection, one
thread, no framework, rows as they come.
"""

import itertools
import time
from uuid import uuid4

from taskharbor_django.values import new_id

QUEUE = "raw"

PICK = """
    SELECT id FROM taskharbor_job WHERE state = 'ready' AND queue = 'raw'
    ORDER BY priority, available_at, seq LIMIT {batch} FOR NO KEY UPDATE SKIP LOCKED
"""

RESERVE = """
WITH claimed AS (
    UPDATE taskharbor_job SET state = 'inflight', lease = %(token)s,
        lease_version = lease_version + 1, executions = executions + 1, started_at = NULL,
        updated_at = now()
    WHERE id = ANY (ARRAY({pick}))
    RETURNING id, task, payload, lease_version
), leased AS (
    INSERT INTO taskharbor_lease (token, call, worker, acquired_at, expires_at)
    SELECT %(token)s, %(token)s, 'raw', now(), now() + interval '30 s'
    WHERE EXISTS (SELECT 1 FROM claimed)
)
SELECT * FROM claimed
"""

SETTLE = """
WITH held AS MATERIALIZED (
    SELECT j.id FROM taskharbor_job j JOIN taskharbor_lease l ON l.token = j.lease
    WHERE j.id = ANY (%(ids)s) AND j.state = 'inflight' AND j.lease = %(token)s
      AND l.expires_at > now()
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE taskharbor_job j SET state = 'done', started_at = %(now)s, finished_at = %(now)s,
    updated_at = now()
FROM held WHERE j.id = held.id
"""

# The same but for the fence: no lease, no version, and anybody may settle. The constraints still
# want a token, and no row is waited for here either: SKIP LOCKED is no part of the fence.
RESERVE_UNFENCED = """
UPDATE taskharbor_job SET state = 'inflight', lease = %(token)s, executions = executions + 1,
    started_at = NULL, updated_at = now()
WHERE id = ANY (ARRAY({pick}))
RETURNING id, task, payload
"""

SETTLE_UNFENCED = """
WITH held AS MATERIALIZED (
    SELECT j.id FROM taskharbor_job j WHERE j.id = ANY (%(ids)s) AND j.state = 'inflight'
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE taskharbor_job j SET state = 'done', started_at = %(now)s, finished_at = %(now)s,
    updated_at = now()
FROM held WHERE j.id = held.id
"""

# SETTLE for jobs that nobody wants to keep.
SETTLE_UNKEPT = f"""
{SETTLE[: SETTLE.index("UPDATE taskharbor_job")]}
DELETE FROM taskharbor_job j USING held WHERE j.id = held.id
"""

INSERT = """
INSERT INTO taskharbor_job (id, task, queue, payload, seq, created_at, updated_at, available_at,
    expires_at, state, timeout, max_attempts)
VALUES (%s, %s, %s, %s, %s, statement_timestamp(), statement_timestamp(), statement_timestamp(),
    statement_timestamp() + interval '7 days', 'ready', interval '30 min', 3)
"""

INSERT_MANY = """
INSERT INTO taskharbor_job (id, task, queue, payload, seq, created_at, updated_at, available_at,
    expires_at, state, timeout, max_attempts)
SELECT g.id, 'tests.benchmarks.tasks.noop', 'raw', g.payload, g.seq, statement_timestamp(),
    statement_timestamp(), statement_timestamp(), statement_timestamp() + interval '7 days',
    'ready', interval '30 min', 3
FROM unnest(%s::uuid[], %s::bytea[], %s::bigint[]) AS g (id, payload, seq)
"""

PAYLOAD = b"[[1],{}]"


def drain(connection, *, batch=100, fenced=True, kept=True):
    """Reserve and settle until nothing is left; return jobs and seconds."""
    pick = PICK.format(batch=batch)
    reserve = (RESERVE if fenced else RESERVE_UNFENCED).format(pick=pick)
    settle = (SETTLE if kept else SETTLE_UNKEPT) if fenced else SETTLE_UNFENCED
    tokens, done = [], 0
    now = connection.execute("SELECT now()").fetchone()[0]
    began = time.perf_counter()
    while True:
        token = uuid4()
        rows = connection.execute(reserve, {"token": token}).fetchall()
        if not rows:
            break
        ids = [row[0] for row in rows]
        connection.execute(settle, {"ids": ids, "token": token, "now": now})
        tokens.append(token)
        done += len(ids)
        if fenced and len(tokens) == 100:
            forget(connection, tokens)
    if fenced:
        forget(connection, tokens)
    return done, time.perf_counter() - began


def forget(connection, tokens):
    """Remove leases that cover nothing any more, as a heartbeat does."""
    connection.execute("DELETE FROM taskharbor_lease WHERE token = ANY (%s)", [tokens])
    tokens.clear()


def insert_singly(execute, jobs):
    """One INSERT and one commit each; return seconds."""
    number = itertools.count(1).__next__
    began = time.perf_counter()
    for _ in range(jobs):
        execute(INSERT, [new_id(), "tests.benchmarks.tasks.noop", QUEUE, PAYLOAD, number()])
    return time.perf_counter() - began


def insert_many(connection, jobs, batch=1_000):
    """Rows by the thousand in one transaction; return seconds."""
    number = itertools.count(1).__next__
    began = time.perf_counter()
    with connection.transaction():
        for start in range(0, jobs, batch):
            size = min(batch, jobs - start)
            columns = (
                [new_id() for _ in range(size)],
                [PAYLOAD] * size,
                [number() for _ in range(size)],
            )
            connection.execute(INSERT_MANY, columns)
    return time.perf_counter() - began
