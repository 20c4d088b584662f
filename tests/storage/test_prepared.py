"""What a session has prepared (claims, acks, INSERTs), and sessions that have it no more."""

import json
import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4
from zoneinfo import ZoneInfo

import environ
import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction

from taskharbor_django.drivers import DatabaseDriver, JobRecord, Outcome, prepared
from taskharbor_django.drivers.prepared import COUNTED, FOR_ANY_TABLE, MOST, OFTEN
from taskharbor_django.exceptions import DuplicateJob
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Job
from tests.servers import PgBouncer, PostgreSQL
from tests.servers.plugin import go_without

from .drivers import NOW, acks, hold, outcome, put, take
from .plans import Node, statements
from .sessions import execute

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.session,
    pytest.mark.django_db(transaction=True),
]

KEPT = "SELECT name, statement FROM pg_prepared_statements WHERE name LIKE 'taskharbor%'"
# What tells them apart: words of them, and words of others.
CLAIM, DELETE = ("'ready'", "'done'"), ("DELETE FROM", "'done'")
ACK, ACK_OF_MANY = ("'done'", "g.token"), ("g.token", "DELETE")
LONG_AGO = (0, NOW - timedelta(days=1))


@pytest.fixture(autouse=True)
def fresh(transactional_db):
    """Let each test begin with a session that nobody has told anything."""
    connection.close()
    yield
    connection.close()


@pytest.fixture
def driver(fresh):
    return DatabaseDriver()


def runs():
    """How often each of the session's statements ran, by a plan for any parameters."""
    found = execute(KEPT.replace("name, statement", "generic_plans, custom_plans"))
    assert not any(custom for _, custom in found)
    return sorted(generic for generic, _ in found)


def live(driver, rounds=1, jobs=3):
    """Let some jobs be enqueued, reserved and acked, and see that each one was."""
    for _ in range(rounds):
        put(driver, jobs)
        held = take(driver, limit=jobs, floor=LONG_AGO)
        assert len({each.job.id for each in held}) == jobs
        assert driver.settle(acks(held), now=NOW) == []


def in_full(sent):
    return [sql for sql, _ in sent if "EXECUTE" not in sql and "WITH" in sql]


def test_a_session_plans_a_claim_and_an_ack_once(driver):
    live(driver, rounds=7)
    assert runs() == [7, 7]


def test_each_is_one_statement(driver):
    live(driver)
    assert len(statements(lambda: take(driver))) == 1
    held = hold(driver)
    assert len(statements(lambda: driver.settle(acks(held), now=NOW))) == 1


def test_drivers_share_what_their_session_has(driver):
    live(driver)
    assert in_full(statements(lambda: live(DatabaseDriver()))) == []
    assert runs() == [2, 2]


def test_nothing_of_it_stays_behind_in_the_session(driver):
    before = execute("SELECT name, setting FROM pg_settings ORDER BY name")
    live(driver)
    assert execute("SELECT name, setting FROM pg_settings ORDER BY name") == before


def test_inside_a_transaction_nothing_is_prepared(driver):
    with transaction.atomic():
        live(driver)
        assert runs() == []


@pytest.mark.parametrize(
    "setting",
    [{"DISABLE_SERVER_SIDE_CURSORS": True}, {"OPTIONS": {"server_side_binding": True}}],
    ids=["of who has a pooler", "of who binds at the server"],
)
def test_with_a_setting_nothing_is_prepared(setting, fresh):
    connections["other"] = type(connections["default"])(
        {**connection.settings_dict, **setting}, "other"
    )
    try:
        driver = DatabaseDriver("other")
        assert len(in_full(statements(lambda: live(driver), "other"))) == 2
    finally:
        connections["other"].close()
        del connections["other"]


@pytest.mark.parametrize("said", ["DISCARD ALL", "DEALLOCATE ALL", "DISCARD PLANS"])
def test_a_session_that_was_told_to_forget_costs_nothing(driver, said):
    live(driver, rounds=2)
    execute(said)
    live(driver, rounds=2)


def test_after_a_refusal_all_is_sent_in_full(driver):
    live(driver)
    execute("DEALLOCATE ALL")
    sent = statements(lambda: live(driver, rounds=3))
    assert len(in_full(sent)) == 6
    assert len([sql for sql, _ in sent if "EXECUTE" in sql]) == 1
    assert runs() == []


def test_a_session_that_was_replaced_is_told_anew(driver):
    live(driver)
    connection.close()
    live(driver, rounds=2)
    assert runs() == [2, 2]


def test_a_statement_that_failed_may_be_prepared_all_the_same(driver):
    execute("ALTER TABLE taskharbor_lease ADD CONSTRAINT none CHECK (worker <> 'nobody')")
    try:
        put(driver, 3)
        with pytest.raises(Exception, match="none"):
            take(driver, worker="nobody", floor=LONG_AGO)
    finally:
        execute("ALTER TABLE taskharbor_lease DROP CONSTRAINT none")
    assert len(take(driver, limit=3, floor=LONG_AGO)) == 3
    live(driver)
    assert runs() == [1, 3]


def test_a_statement_that_is_there_already_is_no_error(driver):
    live(driver)
    found = execute(KEPT)
    connection.close()
    for _, text in found:
        execute(re.search("PREPARE.*(?=; EXECUTE)", text, re.DOTALL)[0])
    live(driver, rounds=2)
    assert runs() == [0, 0]


def test_a_column_of_another_type_is_no_error(driver):
    live(driver)
    alter = "ALTER TABLE taskharbor_job ALTER COLUMN handler_misses TYPE"
    execute(f"{alter} bigint")
    try:
        live(driver, rounds=2)
    finally:
        execute(f"{alter} integer")


def test_a_session_keeps_a_bounded_number_of_them(driver):
    """Each of these has other columns in common, which makes another statement."""
    facts = ["started_at", "finished_at", "result_expires_at"]
    shapes = [{name: bool(bits & 1 << n) for n, name in enumerate(facts)} for bits in range(8)]
    for shape in shapes:
        for results in ([b"1", b"1"], [b"1", b"2"]):
            for versions in (True, False):
                ack_in_shape(driver, shape, results, versions=versions)
    assert len(runs()) == MOST
    live(driver)


def ack_in_shape(driver, shape, results, *, versions):
    held = hold(driver, 2)
    told = []
    for number, (each, result) in enumerate(zip(held, results, strict=True)):
        times = {n: NOW + number * timedelta(seconds=1) for n, varies in shape.items() if varies}
        version = each.lease.version if versions or number else None
        told.append(outcome(OutcomeKind.ACK, each, result=result, version=version, **times))
    assert driver.settle(told, now=NOW) == []


class TestPlans:
    """A plan is kept: it has to suit the thousands that come after it was made."""

    @pytest.fixture(params=["made for no job", "made for many"])
    def plans(self, request, driver):
        """What the session does from now on, by words of the statement."""
        if request.param == "made for many":
            put(driver, 5000)
            put(driver, 5000, run_at=NOW + timedelta(days=1))
        else:
            execute("TRUNCATE taskharbor_job, taskharbor_lease")
        execute("VACUUM ANALYZE taskharbor_job, taskharbor_lease")
        take(driver, queue="empty", floor=LONG_AGO)
        for strays in ([stray()], [stray(keep=False)], [stray(), stray()]):
            driver.settle(strays, now=NOW)
        found = {word: explained(word) for word in (CLAIM, ACK, ACK_OF_MANY, DELETE)}
        return found.get

    def test_a_claim_walks_along_its_indexes(self, plans):
        found = plans(CLAIM)
        ranges = [node for node in found.all() if node.kind == "LockRows"]
        for picking in ranges:
            assert "taskharbor_job_ready" in picking.indexes
            assert not picking.kinds & {"Sort", "Incremental Sort"}
        assert len(ranges) == 2
        assert found.indexes >= {"taskharbor_job_scheduled", "taskharbor_lease_expiry"}
        assert "Aggregate" not in found.first("Limit").kinds
        assert not found.scanned

    @pytest.mark.parametrize("words", [ACK, ACK_OF_MANY, DELETE])
    def test_an_ack_fetches_its_jobs_by_primary_key(self, plans, words):
        found = plans(words)
        assert found.indexes == {"taskharbor_job_pkey", "taskharbor_lease_pkey"}
        assert all(node.entry for node in found.all() if node.index)
        assert not found.scanned


def stray(**facts):
    return Outcome(job_id=uuid4(), token=uuid4(), version=1, kind=OutcomeKind.ACK, **facts)


def explained(words):
    there, absent = words
    ((name, text),) = [row for row in execute(KEPT) if there in row[1] and absent not in row[1]]
    unknown = ", ".join(["NULL"] * max(int(place) for place in re.findall(r"\$(\d+)", text)))
    with transaction.atomic():
        execute(FOR_ANY_TABLE)
        ((plan,),) = execute(f"EXPLAIN (FORMAT JSON) EXECUTE {name} ({unknown})")
    return Node((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])


class TestBehindAPooler:
    """Nobody has said that there is one: two sessions are shared by whoever comes."""

    @pytest.fixture
    def pooler(self, fresh):
        if reason := PgBouncer.missing():
            go_without(reason)
        usual = connection.settings_dict
        options = {"default_pool_size": 2, "server_idle_timeout": 600}
        with PostgreSQL() as server, PgBouncer(server, options=options) as pooler:
            address = environ.Env.db_url_config(pooler.plain_url)
            connections["pooled"] = type(connections["default"])({**usual, **address}, "pooled")
            try:
                call_command("migrate", "taskharbor", database="pooled", verbosity=0)
                yield pooler
            finally:
                connections["pooled"].close()
                del connections["pooled"]

    def test_a_claim_that_comes_to_another_session_takes_its_jobs_once(self, pooler):
        driver = DatabaseDriver("pooled")
        live(driver)
        with psycopg.connect(pooler.plain_url, prepare_threshold=None) as other:
            # The session that was used last is given out first, and held: it has the statements.
            found = other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
            assert found == (2,)
            sent = statements(lambda: live(driver, rounds=2), "pooled")
        assert len(in_full(sent)) == 4

    def test_a_session_that_another_driver_has_told_serves_both(self, pooler):
        drivers = [DatabaseDriver("pooled") for _ in range(2)]
        live(drivers[0])
        connections["pooled"].close()  # another client of the same session from here on
        live(drivers[1], rounds=2)
        live(drivers[0], rounds=2)

    def test_others_who_share_the_session_prepare_as_they_like(self, pooler):
        driver = DatabaseDriver("pooled")
        live(driver)
        with psycopg.connect(pooler.plain_url, autocommit=True, prepare_threshold=0) as other:
            assert other.execute("SELECT %s::int", [1]).fetchone() == (1,)
            other.execute("DEALLOCATE ALL")
        live(driver, rounds=2)


# -- one job at a time ---------------------------------------------------------------------------


def inserted(driver, times):
    """Enqueue so many, one by one; return what was sent for it, and see that all are stored."""
    records = [JobRecord(task="t", payload=b"%d" % number) for number in range(times)]
    sent = statements(lambda: [driver.enqueue(record) for record in records])
    stored = Job.objects.in_bulk([record.id for record in records])
    assert {pk: bytes(job.payload) for pk, job in stored.items()} == {
        record.id: record.payload for record in records
    }
    return [sql for sql, _ in sent]


def test_a_session_that_enqueues_often_prepares_it(driver):
    sent = inserted(driver, OFTEN + 4)
    assert [sql.split()[0] for sql in sent] == ["INSERT"] * OFTEN + ["PREPARE"] + ["EXECUTE"] * 3


def test_one_that_enqueues_in_a_transaction_does_not(driver):
    with transaction.atomic():
        sent = inserted(driver, OFTEN + 2)
    assert {sql.split()[0] for sql in sent} == {"INSERT"}


def test_an_id_that_is_known_is_refused_by_it_too(driver):
    inserted(driver, OFTEN + 1)
    record = JobRecord(task="t")
    driver.enqueue(record)
    with pytest.raises(DuplicateJob):
        driver.enqueue(record)


def test_a_session_that_forgot_it_is_sent_it_in_full(driver):
    inserted(driver, OFTEN + 1)
    execute("DEALLOCATE ALL")
    first, second, *_ = inserted(driver, 3)
    assert first.startswith("EXECUTE")
    assert second.startswith("INSERT")


def alike(times, **facts):
    """Records that are made alike, as those of a task are."""
    record = JobRecord(**facts)
    record.validate()
    return [record, *(record.alike(record.payload) for _ in range(times - 1))]


def test_what_jobs_have_in_common_is_no_parameter_of_it(driver):
    for record in alike(OFTEN + 2, task="t"):
        driver.enqueue(record)
    ((types,),) = execute(KEPT.replace("name, statement", "parameter_types::text"))
    assert types == "{uuid,bytea,bigint}"


def test_what_is_written_into_it_comes_back_as_it_was(driver):
    """Signs that psycopg, PREPARE or a cursor read as something else."""
    odd = "100 %s of 'it'; \\ $1 \"%(id)s\" %%"
    payload, tags = b"%s \x00 '\\", {odd: odd}
    facts = {"correlation_id": odd, "max_attempts": 3, "tags": tags}
    records = alike(OFTEN + 3, task=odd, payload=payload, **facts)
    sent = statements(lambda: [driver.enqueue(record) for record in records])
    assert [sql.split()[0] for sql, _ in sent[-2:]] == ["PREPARE", "EXECUTE"]
    stored = list(Job.objects.values_list("task", "correlation_id", "max_attempts", "tags"))
    assert stored == [(odd, odd, 3, tags)] * len(records)
    assert {bytes(job.payload) for job in Job.objects.all()} == {payload}


def test_calls_that_differ_in_it_keep_apart(driver):
    """The same statement, but for what is written into it."""
    night = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    wanted = {}
    for run_at in (night, night.replace(fold=1)):  # equal for Python, and an hour apart
        for record in alike(OFTEN + 3, task="t", run_at=run_at):
            wanted[driver.enqueue(record)] = run_at.astimezone(UTC)
    assert {job.id: job.run_at for job in Job.objects.all()} == wanted
    assert len(execute(KEPT)) == 2


def test_jobs_that_share_nothing_but_their_columns_share_it_too(driver):
    for number in range(OFTEN + 2):
        driver.enqueue(JobRecord(task="t", tags={"n": str(number)}, checkpoint=bytearray(b"x")))
    assert len(execute(KEPT)) == 1


def test_what_a_session_sends_now_and_then_is_not_remembered_without_end(driver):
    for _ in range(COUNTED + 10):
        for record in alike(2, task="t"):
            driver.enqueue(record)
    assert len(prepared._inserts[connection.connection]) <= COUNTED
    assert len(execute(KEPT)) == 1
