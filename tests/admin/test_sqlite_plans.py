"""SQLite reads an index for every tab too; it is pickier about partial ones than PostgreSQL."""

import pytest
from django.db import connection

from taskharbor_django.lifecycle import JobState
from tests.factories import job_in
from tests.storage.plans import statements

from . import url

pytestmark = [pytest.mark.sqlite, pytest.mark.django_db]


def plan_of(statement):
    sql, parameters = statement
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
        return [row[3] for row in cursor.fetchall()]


@pytest.mark.parametrize("state", JobState)
def test_no_tab_reads_the_table_of_jobs(operator, state):
    job_in(state)
    sent = statements(lambda: operator.get(url("job_changelist", state=state)))
    plans = [plan_of(each) for each in sent if each[0].lstrip().startswith("SELECT")]
    steps = [step for plan in plans for step in plan if "taskharbor_job" in step]
    assert len(steps) >= 2
    assert [step for step in steps if "INDEX" not in step] == []
