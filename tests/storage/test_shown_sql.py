"""The SQL that pages show to operators runs; here, because the pages are tested on SQLite."""

import pytest
from django.db import connection

from tests.docs.pages import PAGES, fences

SHOWN = [it for page in PAGES for it in fences(page) if it.language == "sql"]


@pytest.mark.postgresql
@pytest.mark.django_db
@pytest.mark.parametrize("snippet", SHOWN, ids=str)
def test_sql_that_is_shown_runs(snippet):
    with connection.cursor() as cursor:
        for statement in filter(str.strip, snippet.code.split(";")):
            cursor.execute(statement)
            assert cursor.description
