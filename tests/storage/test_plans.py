"""
Each question has its own index, also when 200,000 other rows lie around it, and whichever way the
parameters are handed over.
"""

import pytest
from django.db import connections, transaction

from taskharbor_django.drivers import DatabaseDriver
from taskharbor_django.lifecycle import OutcomeKind
from taskharbor_django.operations import prune

from .crowds import disperse, gather
from .drivers import END, PortableDriver, acks, hold, outcome, put, take
from .plans import explain, explain_generic, only, statements
from .raw import LEASE, NOW
from .sessions import execute

pytestmark = pytest.mark.django_db

BOUND = "bound"
IN_CLAIM = '"taskharbor_job"."state" = \'ready\''
# The forms of a claim: by what they are sent, and words that only they have.
CLAIMS = {
    "after others": (DatabaseDriver, "reserve", ("WITH claimed",)),
    "at once": (DatabaseDriver, "reserve at once", ()),
    "above a floor": (DatabaseDriver, "reserve above a floor", ()),
    "portable": (PortableDriver, "reserve", ()),
}


@pytest.fixture(scope="module")
def crowd(django_db_setup, django_db_blocker):
    """Jobs that no verb of the tests may look at, 200,000 on PostgreSQL; stored once for all."""
    with django_db_blocker.unblock():
        gather()
        yield
        disperse()


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
            "ack": statements(lambda: driver.settle(acks(held[100:]), now=END), using),
            "ack of many leases": statements(
                lambda: driver.settle(acks(held[:50]), now=END), using
            ),
            "fail": statements(lambda: driver.settle(fails(held[50:100]), now=END), using),
            "queues": statements(driver.ready_queues, using),
            "reserve at once": statements(lambda: take_more(driver), using),
            "reserve above a floor": statements(lambda: take_more(driver, floor=(0, NOW)), using),
        }
        transaction.set_rollback(True, using=using)
    return sent


def take_all(driver):
    """Promote what is due, take back what has expired, and reserve all of it."""
    taken = take(driver, queue="mine", now=END, limit=300)
    assert len(taken) == 205
    return taken


def take_more(driver, **options):
    """Reserve when nothing is due and nothing has expired."""
    put(driver, 20, queue="mine", created_at=END)
    assert len(take(driver, queue="mine", now=END, limit=10, **options)) == 10


def renew(driver, held):
    tokens = {each.lease.token for each in held[:5] + held[-5:]}
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
@pytest.mark.parametrize("form", [DatabaseDriver, PortableDriver])
def test_the_line_is_asked_for_and_not_left_to_an_index(form):
    driver = form()
    held = hold(driver, 5)
    for each in reversed(held):  # so that they lie in the table in this order
        assert driver.settle([outcome(OutcomeKind.RELEASE, each)], now=NOW) == []
    for scan in ("indexscan", "indexonlyscan", "bitmapscan"):
        execute(f"SET LOCAL enable_{scan} = off")
    line = [take(driver)[0].job.id for _ in held]
    assert line == [each.job.id for each in held]


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

    @pytest.mark.parametrize("verb", ["reserve at once", "reserve above a floor"])
    def test_a_claim_that_peeks_uses_both_indexes_for_that(self, plan, verb):
        found = plan(DatabaseDriver, verb, "peek")
        assert found.indexes >= {"taskharbor_job_scheduled", "taskharbor_lease_expiry"}
        assert not found.scanned & {"taskharbor_job", "taskharbor_lease"}

    def test_a_promotion_walks_along_its_index(self, plan):
        found = plan(DatabaseDriver, "reserve", "'scheduled'", "SET \"state\" = 'ready'")
        picking = found.first("LockRows")
        assert picking.indexes == {"taskharbor_job_scheduled"}
        assert not picking.kinds & {"Sort", "Incremental Sort", "Seq Scan"}
        assert found.indexes == {"taskharbor_job_scheduled", "taskharbor_job_pkey"}

    @pytest.mark.parametrize("claim", CLAIMS)
    def test_a_claim_walks_along_its_index_in_order(self, plan, claim):
        form, verb, words = CLAIMS[claim]
        found = plan(form, verb, IN_CLAIM, "SKIP LOCKED", *words)
        ranges = [node for node in found.all() if node.kind == "LockRows"]
        assert len(ranges) == (2 if claim == "above a floor" else 1)
        for picking in ranges:
            assert "taskharbor_job_ready" in picking.indexes
            assert picking.indexes <= {"taskharbor_job_ready", "taskharbor_queue_pkey"}
            assert not picking.kinds & {"Sort", "Incremental Sort"}
        assert "taskharbor_job" not in found.scanned

    @pytest.mark.parametrize("claim", list(CLAIMS)[:3])
    def test_a_claim_fetches_what_it_picked_by_primary_key(self, plan, claim):
        form, verb, words = CLAIMS[claim]
        found = plan(form, verb, IN_CLAIM, "SKIP LOCKED", *words)
        assert "taskharbor_job_pkey" in found.indexes

    def test_above_a_floor_the_index_is_entered_at_it(self, plan):
        found = plan(DatabaseDriver, "reserve above a floor", IN_CLAIM, "SKIP LOCKED")
        entered = [node.entry for node in found.all() if node.index == "taskharbor_job_ready"]
        assert ["available_at" in each and "priority" in each for each in entered] == [False, True]

    @pytest.mark.parametrize("form", [DatabaseDriver, PortableDriver])
    def test_a_reclaim_finds_leases_by_expiry_and_jobs_by_lease(self, plan, form):
        leases = plan(form, "reserve", "taskharbor_lease", "FOR UPDATE SKIP LOCKED")
        assert leases.indexes == {"taskharbor_lease_expiry"}
        assert not leases.kinds & {"Sort", "Seq Scan"}
        jobs = plan(form, "reserve", "'inflight'", "FOR NO KEY UPDATE SKIP LOCKED", "IN (")
        assert jobs.indexes == {"taskharbor_job_inflight"}
        assert not jobs.scanned

    @pytest.mark.parametrize("verb", ["ack", "ack of many leases"])
    def test_acks_are_written_by_primary_key_and_no_job_is_scanned(self, plan, verb):
        found = plan(DatabaseDriver, verb, "'done'")
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


@pytest.fixture(scope="module")
def sent_portably(crowd):
    return verbs(DatabaseDriver())


@pytest.mark.sqlite
class TestSQLite:
    @pytest.fixture
    def plan(self, sent_portably):
        def make(verb, *words):
            sql, parameters = only(sent_portably[verb], *words)
            return [detail for *_, detail in execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]

        return make

    def test_a_claim_walks_along_its_index_in_order(self, plan):
        steps = plan("reserve", IN_CLAIM, "ORDER BY", "lease_losses", "LIMIT 300")
        assert steps[0] == "SEARCH taskharbor_job USING INDEX taskharbor_job_ready (queue=?)"
        assert not [step for step in steps if "TEMP B-TREE" in step]

    def test_a_promotion_walks_along_its_index(self, plan):
        (step,) = plan("reserve", "'scheduled'", "ORDER BY")
        assert "INDEX taskharbor_job_scheduled (available_at<?)" in step

    def test_a_reclaim_finds_leases_by_expiry_and_jobs_by_lease(self, plan):
        (step,) = plan("reserve", '"taskharbor_lease"."expires_at" <=', "ORDER BY")
        assert step == "SEARCH taskharbor_lease USING INDEX taskharbor_lease_expiry (expires_at<?)"
        steps = plan("reserve", "'inflight'", "ORDER BY", '"taskharbor_job"."lease" IN')
        assert "USING INDEX taskharbor_job_inflight (lease=?)" in steps[0]

    def test_outcomes_find_their_jobs_by_primary_key(self, plan):
        for verb in ("ack", "fail"):
            steps = plan(verb, "SELECT", '"taskharbor_job"."id" IN')
            assert steps[0].endswith("INDEX sqlite_autoindex_taskharbor_job_1 (id=?)")

    def test_a_heartbeat_finds_leases_by_token(self, plan):
        (step,) = plan("renew", "UPDATE", '"expires_at" = %s')
        assert "INDEX sqlite_autoindex_taskharbor_lease_1 (token=?)" in step


@pytest.mark.mariadb
class TestMariaDB:
    """A step without the right index locks rows that are none of its business there."""

    @pytest.fixture
    def plan(self, sent_portably):
        def make(verb, *words):
            sql, parameters = only(sent_portably[verb], *words)
            steps = execute(f"EXPLAIN {sql}", parameters)
            return [(step[2], step[5], step[9]) for step in steps]

        return make

    def test_a_claim_walks_along_its_index_in_order(self, plan):
        steps = plan("reserve", "`taskharbor_job`.`state` = 'ready'", "SKIP LOCKED")
        assert steps[0][:2] == ("taskharbor_job", "taskharbor_job_ready")
        # A sort would lock every ready job of the queue for the sake of a few.
        assert "filesort" not in steps[0][2]

    def test_a_promotion_walks_along_its_index(self, plan):
        (step,) = plan("reserve", "'scheduled'", "SKIP LOCKED")
        assert step[:2] == ("taskharbor_job", "taskharbor_job_scheduled")
        assert "filesort" not in step[2]

    def test_a_reclaim_finds_leases_by_expiry_and_jobs_by_lease(self, plan):
        (step,) = plan("reserve", "`taskharbor_lease`.`expires_at` <=", "SKIP LOCKED")
        assert step[:2] == ("taskharbor_lease", "taskharbor_lease_expiry")
        (step,) = plan("reserve", "'inflight'", "SKIP LOCKED")
        assert step[:2] == ("taskharbor_job", "taskharbor_job_inflight")

    def test_outcomes_find_their_jobs_by_primary_key(self, plan):
        for verb in ("ack", "fail"):
            (step,) = plan(verb, "SKIP LOCKED")
            assert step[:2] == ("taskharbor_job", "PRIMARY")

    def test_a_heartbeat_finds_leases_by_token(self, plan):
        (step,) = plan("renew", "UPDATE", "`expires_at` = %s")
        assert step[:2] == ("taskharbor_lease", "PRIMARY")


@pytest.mark.postgresql
@pytest.mark.parametrize("how", [explain, explain_generic])
@pytest.mark.parametrize("state", ["done", "cancelled", "results"])
def test_what_is_pruned_is_found_by_the_index_of_ended_jobs(crowd, how, state):
    """Nothing of the crowd is old: the next batch is none, and the table is not read for that."""
    driver = DatabaseDriver()
    steps = {what: rows for what, rows, _ in prune._plan(driver, NOW)}
    sent = statements(lambda: list(driver.locked(steps[state], key=True)[:500].values_list("pk")))
    plan = how(only(sent, "FOR UPDATE"))
    assert "taskharbor_job_ended" in plan.indexes
    assert "taskharbor_job" not in plan.scanned
