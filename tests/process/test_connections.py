"""The page about sizes says how many connections a worker has; they are counted at the server."""

import pytest
from django.db import connection
from django.db.models import F

from taskharbor_django.models import Worker

from .harness import wait_until

pytestmark = [pytest.mark.postgresql, pytest.mark.session]

# Those that began since: one of an earlier test may still be on its way out.
SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND backend_start > %s
"""


def ask(sql, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()[0]


def test_an_idle_process_has_four_and_its_supervisor_none(processes):
    since = ask("SELECT clock_timestamp()")
    # A short lease, so that the first heartbeat is soon.
    module = {"DJANGO_SETTINGS_MODULE": "tests.faults.settings"}  # where workers listen
    worker = processes.start("--processes", "2", "--lease", "3", **module)
    beaten = Worker.objects.filter(last_beat_at__gt=F("started_at"))
    wait_until(lambda: beaten.count() == 2, what="a heartbeat of both")
    wait_until(lambda: ask(SESSIONS, since) == 8, what="loop, heartbeat, settling, listener")
    worker.stop()
    wait_until(lambda: ask(SESSIONS, since) == 0, what="their end")
