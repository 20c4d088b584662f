"""What a worker promises: what it holds is renewed, settled once, and given back as it was."""

from . import Change, guard
from .storage import BOTH, CLAIMS, CONTRACT, MOVES, STATEMENTS

PACKAGE = "taskharbor_django"
WORKER = f"{PACKAGE}/worker"
POOLS, COMPLETER = f"{WORKER}/pools.py", f"{WORKER}/completer.py"
NOTIFY = f"{PACKAGE}/operations/notify.py"
ON_COMMIT = "transaction.on_commit(lambda: _notify_all(wanted, using), using=using, robust=True)"

IN_COMPLETER = "tests/worker/test_completer.py"
IN_WORKER = "tests/worker/test_worker.py"
IN_TROUBLE = "tests/worker/test_trouble.py"
IN_NOTIFY = "tests/operations/test_notify.py"
QUARANTINE = (
    f"{IN_WORKER}::test_the_job_of_a_dead_worker_runs_in_quarantine_and_its_loss_is_written_down"
)
LEFT_ALONE = (
    "tests/worker/test_reserving.py"
    "::test_whoever_calls_a_database_that_fails_again_and_again_is_left_alone"
)
LAST_ACT = f"{IN_WORKER}::test_the_job_of_a_handler_that_will_not_stop_is_released_as_the_last_act"
RELEASED = "self._settle_rest([(it, last_acts.released(it, run_at)) for it in running])"
REFUSED = f"{IN_COMPLETER}::test_one_outcome_that_the_database_refuses_does_not_block_its_batch"
PLAIN_FAILURE = (
    "tests/operations/test_settle.py"
    "::test_a_refused_outcome_becomes_a_plain_failure_and_the_others_are_settled"
)
ALONE = f"{CONTRACT}::test_a_job_that_lost_a_lease_is_alone_in_its_next"

FOUND = "tests/worker/test_heartbeat.py::test_what_a_reserve_had_taken_and_lost_since_is_left_alone"
GUARDS = [
    guard(
        "emptied-lease-is-lost",
        Change(f"{WORKER}/heartbeat.py", " and not self._holdings.all_ended(token)", ""),
        red=[f"{IN_WORKER}::test_a_lease_that_a_settle_without_a_reply_has_emptied_is_not_lost"],
        on=BOTH,
    ),
    guard(
        "found-and-not-renewed",
        Change(f"{WORKER}/heartbeat.py", "in found if it.lease.token in renewed", "in found"),
        red=[FOUND],
        on=BOTH,
    ),
    guard(
        "heartbeat-forgets-prefetched",
        Change(
            f"{WORKER}/holdings.py",
            "return list(self._leases)",
            "return [\n"
            "                token\n"
            "                for token, hold in self._leases.items()\n"
            "                if any(running.started_at for running in hold.jobs.values())\n"
            "            ]",
        ),
        red=[f"{IN_WORKER}::test_the_lease_of_a_job_in_the_line_is_renewed"],
    ),
    guard(
        "release-charges-a-loss",
        Change(
            MOVES,
            '        "executions": held.executions - ',
            '        "lease_losses": held.lease_losses + 1,\n'
            '        "executions": held.executions - ',
        ),
        red=[f"{CONTRACT}::test_a_release_gives_the_job_back_as_it_was"],
        on=BOTH,
    ),
    guard(
        "woken-before-commit",
        Change(
            NOTIFY,
            ON_COMMIT,
            "from contextlib import closing\n"
            "        with closing(connection.copy()) as other, other.cursor() as cursor:\n"
            "            for queue in wanted:\n"
            "                cursor.execute(_NOTIFY, [CHANNEL, queue])",
        ),
        red=[f"{IN_NOTIFY}::test_nobody_is_woken_before_the_commit"],
    ),
    guard(
        "woken-in-the-transaction",
        # The server holds such a call back by itself until the commit.
        Change(NOTIFY, ON_COMMIT, "_notify_all(wanted, using)"),
        red=[
            f"{IN_NOTIFY}::test_the_wake_up_is_no_part_of_the_transaction",
            f"{IN_NOTIFY}::test_what_was_rolled_back_does_not_use_up_the_next_call",
        ],
    ),
    guard(
        "refused-outcome-blocks-its-batch",
        Change(
            f"{PACKAGE}/operations/settle.py",
            "        if len(outcomes) > 1:\n",
            "        if len(outcomes) > 1:\n            raise\n",
        ),
        red=[REFUSED, PLAIN_FAILURE],
        on=BOTH,
    ),
    guard(
        "waiting-outcome-blocks-its-batch",
        Change(
            COMPLETER,
            "            if rejection is None or rejection.repeated:\n",
            "            rejection = rejection or rejections[0]\n"
            "            if rejection.repeated:\n",
        ),
        red=[f"{IN_COMPLETER}::test_what_has_to_wait_keeps_nothing_else_waiting"],
        on="sqlite",
    ),
    guard(
        "expired-while-renewed-is-final",
        Change(
            COMPLETER, "rejection.error, JobLocked | LeaseExpired", "rejection.error, JobLocked"
        ),
        red=[f"{IN_COMPLETER}::test_a_lock_or_a_renewal_on_its_way_only_delays"],
        on="sqlite",
    ),
    guard(
        "quarantine-off",
        Change(POOLS, "quarantined = reservation.job.lease_losses > 0", "quarantined = False"),
        red=[QUARANTINE],
    ),
    guard(
        "quarantine-off-for-coroutines",
        Change(
            f"{WORKER}/dispatch.py",
            "if job.lease_losses or self._isolate_all",
            "if self._isolate_all",
        ),
        red=[f"{QUARANTINE}[anothing]"],
    ),
    guard(
        "quarantine-shares-a-lease",
        Change(
            STATEMENTS,
            "CASE WHEN {lease_losses} > 0 THEN gen_random_uuid() ELSE %(token)s::uuid END",
            "%(token)s::uuid",
        ),
        red=[ALONE],
    ),
    guard(
        "quarantine-shares-a-lease-portable",
        Change(CLAIMS, "uuid4() if losses else lease.token", "lease.token"),
        red=[ALONE],
        on="sqlite",
    ),
    guard(
        "released-before-the-last-thread",
        Change(
            f"{WORKER}/worker.py",
            "        self.stragglers = not self.slots.close(",
            "        self._leave_nothing()\n        self.stragglers = not self.slots.close(",
        ),
        red=[LAST_ACT],
    ),
    guard(
        "released-before-the-last-line",
        Change(
            f"{WORKER}/worker.py",
            "        self._presence.stop(given_back=len(running))\n",
            "",
        ),
        Change(
            f"{WORKER}/worker.py",
            f"        return {RELEASED}\n",
            f"        released = {RELEASED}\n"
            "        self._presence.stop(given_back=len(running))\n"
            "        return released\n",
        ),
        red=[LAST_ACT],
    ),
    guard(
        "no-head-start",
        Change(
            f"{WORKER}/last_acts.py",
            ", started_at=running.started_at, run_at=run_at",
            ", started_at=running.started_at",
        ),
        red=[LAST_ACT],
    ),
    guard(
        "connection-of-timed-out-thread",
        Change(
            POOLS,
            "django_connections.close_all()  # it may have been raised in the midst of a query",
            "pass",
        ),
        red=[f"{IN_WORKER}::test_the_connection_of_a_timed_out_thread_is_not_used_again"],
    ),
    guard(
        "session-of-thread-left-behind",
        Change(POOLS, "        self.opened.cut(thread)\n", ""),
        red=[f"{IN_WORKER}::test_the_session_of_a_thread_that_was_left_behind_is_cut"],
    ),
    guard(
        "flap-forgotten-at-once",
        Change(
            f"{WORKER}/trouble.py",
            "if not self.seconds and steady() - self._well_since >= WELL_FOR:",
            "if not self.seconds:",
        ),
        red=[
            f"{IN_TROUBLE}::test_a_success_ends_the_pause_and_the_next_failure_goes_on_where_it_was"
        ],
        on="sqlite",
    ),
    guard(
        "failing-reserve-calls-itself",
        Change(f"{WORKER}/heartbeat.py", "if sent >= self._tell_at:", "if self._interval:"),
        red=["tests/worker/test_heartbeat.py::test_a_beat_that_a_doubt_calls_for_calls_nobody"],
        on="sqlite",
    ),
    guard(
        "calls-end-a-pause",
        Change(f"{WORKER}/reserving.py", "if left := self.trouble.pause.left:", "if left := 0.0:"),
        red=[LEFT_ALONE],
        on="sqlite",
    ),
    guard(
        "reserved-while-nothing-is-settled",
        Change(
            f"{WORKER}/worker.py",
            "return refusals - 1 if refusals else MOST_UNSETTLED",
            "return MOST_UNSETTLED if refusals else MOST_UNSETTLED",
        ),
        red=[f"{IN_WORKER}::test_while_the_server_can_settle_nothing_no_more_is_reserved"],
        on="sqlite",
    ),
    guard(
        "full-disk-divides-a-batch",
        Change(COMPLETER, "        if self._server_failed:\n", "        if not batch:\n"),
        red=[f"{IN_COMPLETER}::test_what_no_outcome_can_help_divides_no_batch_and_sets_none_aside"],
        on="sqlite",
    ),
    guard(
        "calls-starve-other-queues",
        Change(f"{WORKER}/queues.py", "bool(called) and self._idle, False", "bool(called), False"),
        red=[
            "tests/worker/test_queues.py::test_calls_for_one_queue_do_not_keep_the_others_waiting"
        ],
        on="sqlite",
    ),
    guard(
        "locked-row-is-a-hot-loop",
        Change(COMPLETER, "min(2 * self._locked_pause, LONGEST_LOCKED_PAUSE)", "LOCKED_PAUSE"),
        red=[f"{IN_COMPLETER}::test_what_stays_locked_is_tried_ever_later_and_not_with_each_batch"],
        on="sqlite",
    ),
    guard(
        "set-aside-by-one-timer",
        Change(
            COMPLETER,
            "        due, self._aside = _due(self._aside, now)\n",
            "        latest = max((due for due, _ in self._aside), default=0.0)\n"
            "        self._aside = [(latest, it) for _, it in self._aside]\n"
            "        due, self._aside = _due(self._aside, now)\n",
        ),
        red=[f"{IN_COMPLETER}::test_each_outcome_that_was_set_aside_has_its_own_time"],
        on="sqlite",
    ),
    guard(
        "outcomes-wait-for-logs",
        Change(
            f"{WORKER}/presence.py",
            "self._lines.put(partial(_tell, failed), len(failed))",
            "_tell(failed)",
        ),
        red=[
            "tests/worker/test_failures.py::test_a_log_that_does_not_return_keeps_no_outcome_waiting"
        ],
        on="sqlite",
    ),
    guard(
        "progress-after-the-end",
        Change(
            f"{PACKAGE}/operations/report.py",
            "Job.objects.using(driver.using).inflight()\n        jobs",
            "Job.objects.using(driver.using)\n        jobs",
        ),
        red=[
            "tests/operations/test_report.py::test_progress_that_comes_after_the_end_is_not_written"
        ],
        on=BOTH,
    ),
    guard(
        "waits-for-a-locked-row-for-ever",
        Change(f"{WORKER}/worker.py", "return rested and not self", "return False and not self"),
        red=[
            (
                f"{IN_WORKER}"
                "::test_a_process_that_is_to_be_replaced_does_not_wait_for_a_locked_row_for_ever"
            )
        ],
    ),
]
