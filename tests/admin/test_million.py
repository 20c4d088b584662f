"""The admin with a million jobs: how much a page reads, which no other process can change."""

import json
import time

import pytest
from django.db import connection

from .test_speed import PAGES, READS_MUCH, asked, operator, stored  # noqa: F401  a fixture

pytestmark = [pytest.mark.postgresql, pytest.mark.slow, pytest.mark.django_db]

# Pages of 8 KiB that one answer may touch. A warm server reads 100,000 of them in a tenth of a
# second; a filter without an index looks at 100,000 jobs, each perhaps in a page of its own.
MOST, MOST_FILTERED = 20_000, 120_000


@pytest.fixture(scope="module")
def million(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), stored(900_000, 100_000):
        yield


def touched(statement):
    sql, parameters = statement
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters)
        (told,) = cursor.fetchone()
    plan = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.parametrize("name", PAGES)
def test_with_a_million_jobs_a_page_reads_little(million, operator, name, capsys):  # noqa: F811
    blocks = sum(touched(statement) for statement in asked(operator, name))
    address, _ = PAGES[name]
    address = address if isinstance(address, str) else address()
    took = []
    for _ in range(5):
        started = time.perf_counter()
        assert operator.get(address).status_code in (200, 302)
        took.append(time.perf_counter() - started)
    with capsys.disabled():
        print(f"\n{name}: {blocks:,} pages read, {1000 * min(took):.0f} ms", end="")  # noqa: T201
    assert blocks < (MOST_FILTERED if name in READS_MUCH else MOST)
