"""What a verb costs: statements by the count of the client, rows and WAL by that of the server."""

import contextlib
import re
from collections import Counter
from typing import NamedTuple

from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from .sessions import execute


class Cost(NamedTuple):
    statements: int
    transactions: int


def cost(work):
    """
    Count what the work sends.

    A statement outside a transaction is one by itself; BEGIN and COMMIT are no statements. Many
    rows given to one prepared statement are one: how often that travels is up to the client.
    """
    with CaptureQueriesContext(connection) as captured:
        work()
    statements = transactions = 0
    inside = False
    for query in captured:
        if query["sql"].startswith("BEGIN"):
            inside = True
        elif query["sql"] in ("COMMIT", "ROLLBACK"):
            transactions += 1
            inside = False
        else:
            statements += 1
            transactions += not inside
    return Cost(statements, transactions)


@contextlib.contextmanager
def written():
    """Count the rows that the block inserts, updates and deletes, by the server's own count."""
    counted = "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_xact_user_tables"
    counts = Counter()

    def read():
        rows = execute(counted)
        return {name: Counter(inserted=i, updated=u, deleted=d) for name, i, u, d in rows}

    before = read()
    yield counts
    after = read()
    for name, made in after.items():
        made.subtract(before.get(name, {}))
        short = re.sub("^taskharbor_", "", name)
        counts.update({f"{short} {what}": times for what, times in made.items() if times})


def wal_position(using):
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        return int(cursor.fetchone()[0])
