"""The PostgreSQL statements of the hot path. Names in braces come from the models' meta."""

LIMITS = """
SELECT set_config('lock_timeout', %s, true),
       set_config('idle_in_transaction_session_timeout', %s, true)
"""

PROMOTE = """
UPDATE {job} SET {state} = 'ready', {updated_at} = %s
WHERE {id} = ANY (ARRAY(
    SELECT {id} FROM {job} WHERE {state} = 'scheduled' AND {available_at} <= %s
    ORDER BY {available_at} LIMIT {limit} FOR NO KEY UPDATE SKIP LOCKED
))
"""

MOVED = "RETURNING {id}, {task}, {queue}"

# An array makes the planner fetch the picked rows by primary key: +13 % over IN.
CLAIM = """
WITH {before}claimed AS (
    UPDATE {job} SET
        {state} = 'inflight',
        {lease} = CASE WHEN {lease_losses} > 0 THEN gen_random_uuid() ELSE %(token)s::uuid END,
        {lease_version} = {lease_version} + 1,
        {executions} = {executions} + 1,
        {started_at} = NULL,
        {updated_at} = %(now)s
    WHERE {id} = ANY ({ids})
    RETURNING {run}, {seq}
), leased AS (
    INSERT INTO {leases} (
        {lease_token}, {lease_call}, {lease_worker}, {lease_acquired_at}, {lease_expires_at}
    )
    SELECT DISTINCT
        {lease}, %(token)s::uuid, %(worker)s::text,
        %(now)s::timestamptz, %(expires_at)s::timestamptz
    FROM claimed
)
SELECT {read} FROM {source} ORDER BY claimed.{priority}, claimed.{available_at}, claimed.{seq}
"""

# Before a claim, what is due is promoted and what has expired reclaimed. Where there is neither,
# as most of the time, this claims in the same statement. The first of each by its index, not EXISTS
# nor min(): for those the planner may read all that there are, when it plans for any time (a
# prepared statement) or by old statistics. NULL where there is none.
PEEK = """peek AS MATERIALIZED (
    SELECT (
        SELECT {available_at} FROM {job} WHERE {state} = 'scheduled' ORDER BY {available_at} LIMIT 1
    ) <= %(now)s AS due, (
        SELECT {lease_expires_at} FROM {leases} ORDER BY {lease_expires_at} LIMIT 1
    ) <= %(now)s AS expired
), """
UNLESS_OTHERS = """
    CASE WHEN (SELECT due OR expired FROM peek) THEN ARRAY[]::uuid[] ELSE {ids} END
"""
PEEKED = "peek LEFT JOIN claimed ON TRUE"

# A loose scan: one index probe for each queue, however many jobs are ready.
READY_QUEUES = """
WITH RECURSIVE found AS (
    (SELECT {queue} AS name FROM {job} WHERE {state} = 'ready' ORDER BY {queue} LIMIT 1)
    UNION ALL
    SELECT (
        SELECT {queue} FROM {job} WHERE {state} = 'ready' AND {queue} > found.name
        ORDER BY {queue} LIMIT 1
    ) FROM found WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
"""

# A lease that is visible while none of its jobs is inflight will never cover one again. The expiry
# is that of the locked row: the UPDATE would first look at the one this statement's snapshot shows,
# and miss what a beat sent before, whose reply was lost, has renewed meanwhile.
RENEW = """
WITH held AS MATERIALIZED (
    SELECT {lease_token} AS held_token, {lease_expires_at} AS held_until, (
        SELECT count(*) FROM (
            SELECT 1 FROM {job} WHERE {state} = 'inflight' AND {lease} = {leases}.{lease_token}
            LIMIT 2
        ) AS inflight
    ) AS jobs
    FROM {leases} WHERE {lease_token} = ANY (%(tokens)s::uuid[])
    ORDER BY {lease_token} FOR UPDATE
), removed AS (
    DELETE FROM {leases} USING held WHERE {lease_token} = held_token AND jobs = 0
)
UPDATE {leases} SET {lease_expires_at} = CASE
    WHEN jobs > 1 THEN GREATEST(held_until, %(expires_at)s::timestamptz)
    ELSE %(expires_at)s::timestamptz
END
FROM held
WHERE {lease_token} = held_token AND jobs > 0 AND held_until > %(now)s::timestamptz
RETURNING {lease_token}, {lease_expires_at}, {lease_worker}
"""

# No ORDER BY: with SKIP LOCKED nothing waits, so no order can deadlock. Job by job, not as a join,
# and without `=` on what other indexes have: by old statistics the planner would read all that is
# inflight for each of these, 500 ms a batch against 20. A plan that was made when there were no
# leases, and is kept, would read all of those: hence the tokens once more, and no bare expiry.
HELD = """
    SELECT g.* FROM {given}
    JOIN {leases} ON {leases}.{lease_token} = {given_token} AND {leases}.{lease_token} = {tokens}
      AND GREATEST({leases}.{lease_expires_at}, {now}) > {now}
    CROSS JOIN LATERAL (
        SELECT 1 FROM {job}
        WHERE {job}.{id} = g.id AND {job}.{state} IS NOT DISTINCT FROM 'inflight'
          AND {job}.{lease} IS NOT DISTINCT FROM {given_token}
          AND {job}.{lease_version} = COALESCE({given_version}, {job}.{lease_version}) {only}
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS held
"""

UNFOLLOWED = """
      AND NOT {has_dependents} AND {workflow} IS NULL AND {callback_url} = ''
"""
# One that ran or died before may have left attempts and letters, which go with it.
UNNEEDED = f"""{UNFOLLOWED.rstrip()}
      AND {{idempotency_key}} IS NULL AND {{schedule}} IS NULL AND {{executions}} = 1
      AND {{last_error}} = ''
"""

ACK_FACTS = {
    "token": "uuid",
    "version": "bigint",
    "started_at": "timestamptz",
    "finished_at": "timestamptz",
    "result": "bytea",
    "result_expires_at": "timestamptz",
}
RUN_TIMES = frozenset({"started_at", "finished_at"})

# The array makes the planner fetch them by primary key, whatever its statistics say.
ACK = """
WITH g AS MATERIALIZED ({held})
UPDATE {job} SET
    {state} = 'done',
    {started_at} = {given_started_at},
    {finished_at} = COALESCE({given_finished_at}, {now}),
    {updated_at} = {now},
    {result} = {given_result},
    {result_expires_at} = {given_result_expires_at}
FROM g WHERE {job}.{id} = g.id AND {job}.{id} = ANY (ARRAY(SELECT id FROM g))
RETURNING {job}.{id}
"""

ACK_AND_DELETE = """
WITH g AS MATERIALIZED ({held})
DELETE FROM {job} USING g
WHERE {job}.{id} = g.id AND {job}.{id} = ANY (ARRAY(SELECT id FROM g))
RETURNING {job}.{id}
"""
