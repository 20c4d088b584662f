"""
Each question has its own index, also when 200,000 other rows lie around it, and whichever way the
parameters are handed over.
"""

from datetime import timedelta

import pytest
from django.db import connections, transaction

from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.models import Job, Lease

from .drivers import END, PortableDriver, acks, hold, outcome, put, take
from .plans import explain, explain_generic, only, statements
from .raw import LEASE, NOW
from .sessions import execute

pytestmark = pytest.mark.django_db

TABLES = f"{Job._meta.db_table}, {Lease._meta.db_table}"
BOUND = "bound"
IN_CLAIM = "\"taskharbor_job\".\"state\" = 'ready'"

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
    """200,000 jobs that no verb of the tests may look at; stored once for all tests."""
    with django_db_blocker.unblock():
        for sql in FILL_POSTGRESQL:
            execute(sql, {"now": NOW, "ahead": AHEAD})
        yield
        execute(f"TRUNCATE {TABLES}")


@pytest.fixture(scope="module")
def bound(crowd):
    """Open a connection that hands parameters over apart from the statement."""
    usual = connections["default"]
    settings = {**usual.settings_dict}
    settings["OPTIONS"] = {**settings["OPTIONS"], "server_side_binding": True}
    connections[BOUND] = type(usual)(settings, BOUND)
    yield BOUND
    connections[BOUND].close()
    del connections[BOUND]


def verbs(driver):
    """Do everything that a worker does all day, and undo it; return what was sent."""
    using, held = driver.using, []
    with transaction.atomic(using=using):
        hold(driver, 100, queue="mine")
        put(driver, 100, queue="mine")
        put(driver, 5, queue="mine", run_at=END)
        sent = {
            "reserve": statements(lambda: held.extend(take_all(driver)), using),
            "renew": statements(lambda: renew(driver, held), using),
            "ack": statements(lambda: driver.settle(acks(held[:100]), now=END), using),
            "fail": statements(lambda: driver.settle(fails(held[100:]), now=END), using),
            "queues": statements(driver.ready_queues, using),
        }
        transaction.set_rollback(True, using=using)
    return sent


def take_all(driver):
    """Promote what is due, take back what has expired, and reserve all of it."""
    taken = take(driver, queue="mine", now=END, limit=300)
    assert len(taken) == 205
    return taken


def renew(driver, held):
    tokens = {each.lease.token for each in held[-10:]}
    assert len(driver.extend_leases(tokens, now=END, lease_for=2 * LEASE)) == len(tokens)


def fails(held):
    return [outcome(OutcomeKind.FAIL, each) for each in held]


WAYS = {
    "literals": (explain, "default"),
    "server-side binding": (explain, BOUND),
    "generic": (explain_generic, "default"),
    "generic with server-side binding": (explain_generic, BOUND),
}


@pytest.fixture(scope="module")
def sent(bound):
    """What each form of the driver sends over each kind of connection."""
    return {
        (form, using): verbs(form(using))
        for form in (DatabaseDriver, PortableDriver)
        for using in ("default", bound)
    }


@pytest.mark.postgresql
@pytest.mark.parametrize("way", WAYS)
class TestPostgreSQL:
    @pytest.fixture
    def plan(self, way, sent):
        """Explain the one statement of a verb that says these words."""
        how, using = WAYS[way]

        def make(form, verb, *words):
            with transaction.atomic(using=using):
                return how(only(sent[form, using][verb], *words), using)

        return make

    def test_the_peek_uses_both_indexes(self, plan):
        found = plan(DatabaseDriver, "reserve", "min(")
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
        found = plan(form, "reserve", IN_CLAIM, "SKIP LOCKED")
        picking = found.first("LockRows")
        assert "taskharbor_job_ready" in picking.indexes
        assert picking.indexes <= {"taskharbor_job_ready", "taskharbor_queue_pkey"}
        assert not picking.kinds & {"Sort", "Incremental Sort"}
        assert "taskharbor_job" not in found.scanned

    def test_a_claim_fetches_what_it_picked_by_primary_key(self, plan):
        found = plan(DatabaseDriver, "reserve", IN_CLAIM, "SKIP LOCKED")
        assert "taskharbor_job_pkey" in found.indexes

    @pytest.mark.parametrize("form", [DatabaseDriver, PortableDriver])
    def test_a_reclaim_finds_leases_by_expiry_and_jobs_by_lease(self, plan, form):
        leases = plan(form, "reserve", "taskharbor_lease", "FOR UPDATE SKIP LOCKED")
        assert leases.indexes == {"taskharbor_lease_expiry"}
        assert not leases.kinds & {"Sort", "Seq Scan"}
        jobs = plan(form, "reserve", "'inflight'", "FOR NO KEY UPDATE SKIP LOCKED", "IN (")
        assert jobs.indexes == {"taskharbor_job_inflight"}
        assert not jobs.scanned

    def test_acks_are_written_by_primary_key_and_nothing_is_scanned(self, plan):
        found = plan(DatabaseDriver, "ack", "'done'")
        # The rows to lock may be found through their lease too: as many entries as it has jobs.
        ways = {"taskharbor_job_pkey", "taskharbor_job_inflight", "taskharbor_lease_pkey"}
        assert "taskharbor_job_pkey" in found.indexes <= ways
        assert "taskharbor_job" not in found.scanned

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

    def test_queues_are_found_by_one_probe_each(self, plan):
        found = plan(DatabaseDriver, "queues", "RECURSIVE")
        assert found.indexes == {"taskharbor_job_ready"}
        assert not found.scanned
        assert "Sort" not in found.kinds
