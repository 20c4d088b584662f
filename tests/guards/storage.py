"""
What the drivers promise: whose outcome counts, who is due and expired, who takes what.

The set-based form is seen on PostgreSQL, the portable one on SQLite, or on PostgreSQL where a
second session has to be stopped in the middle.
"""

from . import Change, guard

DRIVERS = "taskharbor_django/drivers"
STATEMENTS, MOVES = f"{DRIVERS}/statements.py", f"{DRIVERS}/moves.py"
CLAIMS, RECLAIM, LEASES = f"{DRIVERS}/claims.py", f"{DRIVERS}/reclaim.py", f"{DRIVERS}/leases.py"
PAYLOAD, WIRE = "taskharbor_django/payload.py", "taskharbor_django/wire.py"
JOB = "taskharbor_django/models/job.py"
PREPARED = f"{DRIVERS}/prepared.py"

CONTRACT = "tests/conformance/test_database.py::TestDatabaseDriver"
BETWEEN = "tests/storage/test_interleavings.py"
KEYS = "tests/operations/test_idempotency.py"

BOTH = "postgresql sqlite"

OF_ANOTHER = f"{CONTRACT}::test_the_token_of_another_job_does_not_match"
OF_AN_EARLIER = f"{CONTRACT}::test_the_token_of_an_earlier_lease_does_not_match"
LONG_AFTER = f"{CONTRACT}::test_a_lease_is_expired_long_after_its_end"
AT_ITS_END = f"{CONTRACT}::test_a_lease_is_expired_at_exactly_its_end"
RECLAIMED = f"{CONTRACT}::test_a_lease_is_reclaimed_at_exactly_its_end_and_not_a_tick_before"
DUE = f"{CONTRACT}::test_a_job_is_due_at_exactly_run_at_and_not_a_tick_before"
NEIGHBOURS = f"{CONTRACT}::test_neighbours_given_back_in_any_order_stand_in_line_as_before"
LINE = "tests/storage/test_plans.py::test_the_line_is_asked_for_and_not_left_to_an_index"
NEXT = f"{BETWEEN}::TestClaim::test_a_claim_takes_the_next_instead_of_waiting"
LIMIT = "tests/unit/test_refusals.py::test_a_call_may_be_exactly_as_large_as_the_limit"
RENEWED = f"{BETWEEN}::TestHeartbeatAgainstReclaim"
ONCE = "tests/storage/test_prepared.py"

GUARDS = [
    # -- whose outcome counts --------------------------------------------------------------------
    guard(
        "ack-without-token",
        Change(STATEMENTS, "AND {job}.{lease} IS NOT DISTINCT FROM {given_token}", ""),
        red=[OF_ANOTHER],
    ),
    guard(
        "settle-without-token",
        Change(MOVES, "held.lease != outcome.token or outcome.version", "outcome.version"),
        red=[OF_ANOTHER, OF_AN_EARLIER],
        on=BOTH,
    ),
    guard(
        "ack-without-expiry",
        Change(STATEMENTS, "AND GREATEST({leases}.{lease_expires_at}, {now}) > {now}", ""),
        red=[LONG_AFTER, AT_ITS_END],
    ),
    guard(
        "settle-without-expiry",
        Change(MOVES, "expires_at is None or expires_at <= now", "expires_at is None"),
        red=[LONG_AFTER, AT_ITS_END],
        on=BOTH,
    ),
    guard(
        "forced-cancel-keeps-token",
        Change(
            "taskharbor_django/operations/cancel.py",
            "state=JobState.CANCELLED.value, lease=None, finished_at=now",
            "state=JobState.CANCELLED.value, finished_at=now",
        ),
        red=["tests/operations/test_cancel.py::test_force_takes_the_token_of_a_running_job_away"],
        on=BOTH,
    ),
    # -- who may take what -----------------------------------------------------------------------
    guard(
        "reclaim-looks-before-its-lock",
        Change(
            RECLAIM,
            'rows = driver.locked(leases.order_by("expires_at"), key=True)[:LEASES_PER_TURN]',
            'seen = list(leases.order_by("expires_at")[:LEASES_PER_TURN])\n'
            "    named = Lease.objects.using(driver.using).filter(pk__in=[it.pk for it in seen])\n"
            "    rows = driver.locked(named, key=True)",
        ),
        red=[
            f"{RENEWED}::test_a_lease_renewed_right_before_its_lock_is_not_taken[set-based]",
            f"{RENEWED}::test_a_lease_renewed_right_before_its_lock_is_not_taken[portable]",
            f"{RENEWED}::test_a_lease_renewed_after_the_look_of_a_reclaim_is_not_taken",
        ],
    ),
    guard(
        "claim-waits",
        Change(
            f"{DRIVERS}/postgresql.py",
            'driver.locked(jobs).values("pk")',
            'driver.waiting_for(jobs).values("pk")',
        ),
        red=[f"{NEXT}[set-based]"],
    ),
    guard(
        "claim-waits-portable",
        Change(CLAIMS, "driver.locked(jobs)[:limit]", "driver.waiting_for(jobs)[:limit]"),
        red=[f"{NEXT}[portable]"],
    ),
    guard(
        "idempotency-without-unique-key",
        Change(
            "taskharbor_django/migrations/0001_initial.py",
            'fields=("task", "key"), name="taskharbor_key_once"',
            'fields=("task", "key", "job"), name="taskharbor_key_once"',
        ),
        Change(f"{DRIVERS}/keys.py", "ON CONFLICT ({task}, {key}) DO", "ON CONFLICT DO"),
        red=[f"{KEYS}::test_of_32_callers_one_creates_the_job_and_31_are_given_it"],
    ),
    # -- at exactly that time --------------------------------------------------------------------
    guard(
        "due-late-in-promote",
        Change(STATEMENTS, "AND {available_at} <= %s", "AND {available_at} < %s"),
        red=[DUE],
    ),
    guard(
        "due-late-in-peek",
        Change(STATEMENTS, "<= %(now)s AS due", "< %(now)s AS due"),
        red=[DUE],
    ),
    guard(
        "due-late-in-claim",
        Change(CLAIMS, "Q(run_at__lte=now)", "Q(run_at__lt=now)"),
        red=[DUE],
        on=BOTH,
    ),
    guard(
        "due-late-portable",
        Change(JOB, "filter(available_at__lte=now)", "filter(available_at__lt=now)"),
        red=[DUE],
        on="sqlite",
    ),
    guard(
        "expired-late-in-ack",
        Change(
            STATEMENTS,
            "GREATEST({leases}.{lease_expires_at}, {now}) >",
            "GREATEST({leases}.{lease_expires_at} + interval '1 microsecond', {now}) >",
        ),
        red=[AT_ITS_END],
    ),
    guard(
        "expired-late-in-settle",
        Change(MOVES, "expires_at <= now", "expires_at < now"),
        red=[AT_ITS_END],
        on=BOTH,
    ),
    guard(
        "expired-late-in-peek",
        Change(STATEMENTS, "<= %(now)s AS expired", "< %(now)s AS expired"),
        red=[RECLAIMED],
    ),
    guard(
        "expired-late-in-peek-portable",
        Change(CLAIMS, "filter(expires_at__lte=now)", "filter(expires_at__lt=now)"),
        red=[RECLAIMED],
        on="sqlite",
    ),
    guard(
        "expired-late-in-reclaim",
        Change(RECLAIM, "filter(expires_at__lte=now)", "filter(expires_at__lt=now)"),
        red=[RECLAIMED],
        on=BOTH,
    ),
    guard(
        "expired-late-in-renewal",
        Change(STATEMENTS, "held_until > %(now)s", "held_until >= %(now)s"),
        red=[f"{CONTRACT}::test_lost_leases_are_missing_and_the_others_are_renewed"],
    ),
    guard(
        "expired-late-in-renewal-portable",
        Change(LEASES, "seen.filter(expires_at__gt=now)", "seen.filter(expires_at__gte=now)"),
        red=[f"{CONTRACT}::test_lost_leases_are_missing_and_the_others_are_renewed"],
        on="sqlite",
    ),
    guard(
        "expired-late-in-held",
        Change(LEASES, "call=call, expires_at__gt=now", "call=call, expires_at__gte=now"),
        red=[f"{CONTRACT}::test_an_expired_lease_is_not_held"],
        on=BOTH,
    ),
    # -- in which order, and how large -----------------------------------------------------------
    guard(
        "line-without-seq",
        Change(JOB, '"priority", "available_at", "seq")', '"priority", "available_at")'),
        red=[LINE],
    ),
    guard(
        "line-without-seq-portable",
        Change(JOB, '"priority", "available_at", "seq")', '"priority", "available_at")'),
        red=[NEIGHBOURS],
        on="sqlite",
    ),
    guard(
        "claimed-without-seq",
        Change(STATEMENTS, "claimed.{available_at}, claimed.{seq}", "claimed.{available_at}"),
        red=[NEIGHBOURS],
    ),
    guard(
        "payload-limit-a-byte-low",
        Change(PAYLOAD, "len(data) > max_bytes", "len(data) >= max_bytes"),
        red=[LIMIT],
        on="sqlite",
    ),
    guard(
        "payload-limit-a-byte-high",
        Change(PAYLOAD, "len(data) > max_bytes", "len(data) > max_bytes + 1"),
        red=[LIMIT],
        on="sqlite",
    ),
    guard(
        "payload-counted-too-large",
        Change(WIRE, "self._spend(2 * len(items))", "self._spend(3 * len(items))"),
        red=[LIMIT],
        on="sqlite",
    ),
    # -- what a session has, and a plan that is kept ---------------------------------------------
    guard(
        "prepared-and-refused",
        Change(PREPARED, 'frozenset({"26000", "42P05", "0A000"})', "frozenset[str]()"),
        red=[
            f"{ONCE}::test_a_session_that_was_told_to_forget_costs_nothing",
            f"{ONCE}::test_a_statement_that_is_there_already_is_no_error",
            f"{ONCE}::test_a_column_of_another_type_is_no_error",
        ],
    ),
    guard(
        "prepared-in-a-transaction",
        Change(PREPARED, "or has_transaction(connection)", ""),
        red=[f"{ONCE}::test_inside_a_transaction_nothing_is_prepared"],
    ),
    guard(
        "prepared-for-whatever-jobs-share",
        Change(PREPARED, "key = id(alike) if alike else sql", "key = sql"),
        red=[f"{ONCE}::test_calls_that_differ_in_it_keep_apart"],
    ),
    guard(
        "prepared-for-the-table-as-it-is",
        Change(PREPARED, "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;", ""),
        red=[f"{ONCE}::TestPlans::test_a_claim_walks_along_its_indexes"],
    ),
]
