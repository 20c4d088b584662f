"""
Each question has its own index, also when 200,000 other rows lie around it, and whichever way the
parameters are handed over.
"""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection, connections, transaction

from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Job, Lease

from .drivers import END, PortableDriver, acks, hold, outcome, put, reclaim, take
from .plans import explain, explain_generic, only, statements
from .raw import LEASE, NOW
from .sessions import execute

pytestmark = pytest.mark.django_db

TABLES = f"{Job._meta.db_table}, {Lease._meta.db_table}"
BOUND = "bound"

COMMON = "(id, task, queue, payload, seq, created_at, updated_at, state, available_at"
FILL_POSTGRESQL = [
    f"""
    INSERT INTO taskharbor_job {COMMON}, lease, finished_at)
    SELECT gen_random_uuid(), 't', 'default', '', n, %(now)s, %(now)s, 'done', %(now)s,
        gen_random_uuid(), %(now)s::timestamptz FROM generate_series(1, 120000) AS n
    """,
    f"""
    INSERT INTO taskharbor_job {COMMON}, lease)
    SELECT gen_random_uuid(), 't', 'default', '', n, %(now)s, %(now)s, 'inflight', %(now)s,
        md5((n %% 5000)::text)::uuid FROM generate_series(1, 20000) AS n
    """,
    """
    INSERT INTO taskharbor_lease (token, call, worker, acquired_at, expires_at)
    SELECT md5(n::text)::uuid, md5(n::text)::uuid, 'w', %(now)s,
        %(ahead)s::timestamptz + n * interval '1 ms' FROM generate_series(0, 4999) AS n
    """,
    f"""
    INSERT INTO taskharbor_job {COMMON}, run_at)
    SELECT gen_random_uuid(), 't', 'default', '', n, %(now)s, %(now)s, 'scheduled',
        %(ahead)s::timestamptz + n * interval '1 s', %(ahead)s FROM generate_series(1, 20000) AS n
    """,
    f"""
    INSERT INTO taskharbor_job {COMMON}, priority)
    SELECT gen_random_uuid(), 't', 'other-' || n %% 10, '', n, %(now)s, %(now)s, 'ready',
        %(now)s::timestamptz + n * interval '1 ms', n %% 3 * 50
    FROM generate_series(1, 40000) AS n
    """,
    "ANALYZE taskharbor_job",
    "ANALYZE taskharbor_lease",
]
AHEAD = NOW + timedelta(days=1)


@pytest.fixture(scope="module")
def crowd(django_db_setup, django_db_blocker):
    """200,000 jobs that no verb of the tests may look at."""
    with django_db_blocker.unblock():
        for sql in FILL_POSTGRESQL:
            execute(sql, {"now": NOW, "ahead": AHEAD})
        yield
        execute(f"TRUNCATE {TABLES}")


@pytest.fixture
def bound(crowd, db):
    """Open a connection that hands parameters over apart from the statement."""
    settings = {**connection.settings_dict}
    settings["OPTIONS"] = {**settings["OPTIONS"], "server_side_binding": True}
    connections[BOUND] = type(connection)(settings, BOUND)
    yield BOUND
    connections[BOUND].close()
    del connections[BOUND]


def verbs(driver):
    """Do everything that a worker does all day; return what was sent."""
    with transaction.atomic(using=driver.using):
        hold(driver, 100, queue="mine")
        put(driver, 100, queue="mine")
        put(driver, 5, queue="mine", run_at=END)
        held = []
        sent = {
            "reserve": statements(lambda: held.extend(again(driver)), driver.using),
            "renew": statements(lambda: renew(driver, held), driver.using),
            "ack": statements(lambda: driver.settle(acks(held[:100]), now=END), driver.using),
            "fail": statements(lambda: driver.settle(fails(held[100:]), now=END), driver.using),
            "held": statements(lambda: driver.held(uuid4(), now=END), driver.using),
        }
        transaction.set_rollback(True, using=driver.using)
    return sent


def again(driver):
    """Promote what is due, take back what has expired, and reserve all of it."""
    taken = take(driver, queue="mine", now=END, limit=300)
    assert len(taken) == 205
    return taken


def renew(driver, held):
    tokens = {each.lease.token for each in held}
    assert len(driver.extend_leases(tokens, now=END, lease_for=2 * LEASE)) == len(tokens) == 101


def fails(held):
    return [outcome(OutcomeKind.FAIL, each) for each in held]


WAYS = {
    "literals": (explain, "default"),
    "server-side binding": (explain, BOUND),
    "generic": (explain_generic, "default"),
    "generic with server-side binding": (explain_generic, BOUND),
}


@pytest.mark.postgresql
@pytest.mark.parametrize("way", WAYS)
class TestPostgreSQL:
    @pytest.fixture
    def plan(self, way, bound, crowd, db):
        """Explain the one statement of a verb that says these words."""
        how, using = WAYS[way]

        def make(form, verb, *words):
            sent = verbs(form(using))[verb]
            with transaction.atomic(using=using):
                return how(only(sent, *words), using)

        return make

    def test_the_peek_uses_both_indexes(self, plan):
        found = plan(DatabaseDriver, "reserve", "EXISTS", "'scheduled'")
        assert found.indexes == {"taskharbor_job_scheduled", "taskharbor_lease_expiry"}
        assert not found.scanned

    def test_a_promotion_walks_along_its_index(self, plan):
        found = plan(DatabaseDriver, "reserve", "'scheduled'", "SKIP LOCKED")
        picking = found.first("LockRows")
        assert picking.indexes == {"taskharbor_job_scheduled"}
        assert not picking.kinds & {"Sort", "Incremental Sort", "Seq Scan"}
        assert found.indexes == {"taskharbor_job_scheduled", "taskharbor_job_pkey"}

    @pytest.mark.parametrize("form", [DatabaseDriver, PortableDriver])
    def test_a_claim_walks_along_its_index_in_order(self, plan, form):
        found = plan(form, "reserve", "\"state\" = 'ready'", "SKIP LOCKED")
        picking = found.first("LockRows")
        assert "taskharbor_job_ready" in picking.indexes
        assert picking.indexes <= {"taskharbor_job_ready", "taskharbor_queue_pkey"}
        assert not picking.kinds & {"Sort", "Incremental Sort"}
        assert "taskharbor_job" not in found.scanned

    def test_a_claim_fetches_what_it_picked_by_primary_key(self, plan):
        found = plan(DatabaseDriver, "reserve", "\"state\" = 'ready'", "SKIP LOCKED")
        assert "taskharbor_job_pkey" in found.indexes

    @pytest.mark.parametrize("form", [DatabaseDriver, PortableDriver])
    def test_a_reclaim_finds_leases_by_expiry_and_jobs_by_lease(self, plan, form):
        leases = plan(form, "reserve", "taskharbor_lease", "FOR UPDATE SKIP LOCKED")
        assert leases.indexes == {"taskharbor_lease_expiry"}
        assert not leases.kinds & {"Sort", "Seq Scan"}
        jobs = plan(form, "reserve", "'inflight'", "FOR NO KEY UPDATE SKIP LOCKED", "IN (")
        assert jobs.indexes == {"taskharbor_job_inflight"}
        assert not jobs.scanned

    def test_acks_find_their_jobs_by_primary_key(self, plan):
        found = plan(DatabaseDriver, "ack", "'done'")
        assert "taskharbor_job_pkey" in found.indexes
        assert "taskharbor_job" not in found.scanned
        assert not found.indexes & {"taskharbor_job_inflight", "taskharbor_job_ended"}

    def test_other_outcomes_find_their_jobs_by_primary_key(self, plan):
        locking = plan(DatabaseDriver, "fail", "FOR NO KEY UPDATE SKIP LOCKED")
        assert locking.indexes == {"taskharbor_job_pkey"}
        writing = plan(DatabaseDriver, "fail", "UPDATE", "unnest")
        assert writing.indexes == {"taskharbor_job_pkey"}
        assert not locking.scanned | writing.scanned

    def test_a_heartbeat_finds_leases_by_token_and_looks_for_jobs_by_lease(self, plan):
        found = plan(DatabaseDriver, "renew", "UPDATE")
        assert found.indexes == {"taskharbor_lease_pkey", "taskharbor_job_inflight"}
        assert not found.scanned

    def test_what_is_held_is_found_by_lease(self, plan):
        sent = plan(DatabaseDriver, "renew", "UPDATE").first("LockRows")
        assert "taskharbor_job_inflight" in sent.indexes


@pytest.mark.postgresql
def test_queues_are_found_by_one_probe_each(crowd, db):
    (statement,) = statements(DatabaseDriver().ready_queues)
    found = explain(statement)
    assert found.indexes == {"taskharbor_job_ready"}
    assert not found.scanned
    assert "Sort" not in found.kinds
