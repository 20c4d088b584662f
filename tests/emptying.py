"""
Empty the database after a test that commits, in a fraction of the time that Django's flush takes.

Django empties every table and lets post_migrate make content types and permissions anew: a quarter
of a second, a thousand times over. These two stay as they are here, and PostgreSQL, where to
truncate costs a file for each index, is asked which tables were written to at all.
"""

from django.core.management.color import no_style
from django.db import connections
from django.test import TransactionTestCase

KEPT = {"django_content_type", "auth_permission"}

# Also what was written and taken back, or is not committed yet: to truncate waits for that.
WRITTEN = """
SELECT relname FROM pg_class
WHERE relkind = 'r' AND relname = ANY(%s) AND pg_table_is_visible(oid) AND pg_relation_size(oid) > 0
"""


def install():
    """Let all tests of this process that commit be followed by this."""
    TransactionTestCase._fixture_teardown = empty_all


def empty_all(case):
    for alias in case._databases_names(include_mirrors=False):
        empty(connections[alias])


def empty(connection):
    """Leave the tables as a migration leaves them."""
    tables = written(connection)
    if tables:
        # What refers to an emptied table goes with it: named or not, nothing of it may stay.
        sql = connection.ops.sql_flush(no_style(), tables, allow_cascade=True)
        connection.ops.execute_sql_flush(sql)


def written(connection):
    """The tables that may have rows."""
    introspection = connection.introspection
    if connection.vendor != "postgresql":
        names = introspection.django_table_names(only_existing=True, include_views=False)
        return sorted(set(names) - KEPT)
    names = set(introspection.django_table_names(include_views=False)) - KEPT
    with connection.cursor() as cursor:
        cursor.execute(WRITTEN, [sorted(names)])
        return sorted(name for (name,) in cursor.fetchall())
