"""What the peers have in common that are backends of Django's tasks."""

import contextlib

import django
import environ
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from .command import Queue


class DjangoQueue(Queue):
    """A project with nothing but the peer in it."""

    app: str
    backend: str

    def __init__(self, url):
        super().__init__(url)
        settings.configure(
            SECRET_KEY="only-for-benchmarks",
            USE_TZ=True,
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            INSTALLED_APPS=[self.app],
            TASKS={"default": {"BACKEND": self.backend}},
            DATABASES={"default": database(url)},
        )
        django.setup()

    def prepare(self):
        call_command("migrate", verbosity=0)

    def clear(self):
        call_command("flush", interactive=False, verbosity=0)

    @contextlib.contextmanager
    def sender(self, handler):
        from . import jobs

        connection.ensure_connection()
        yield getattr(jobs, handler).enqueue


def database(url):
    """
    Describe the database as the project of our own benchmarks has it.

    Connections stay open: by default these workers connect anew for each job. Prepared
    statements, which Django has as an option, made no difference.
    """
    found = environ.Env.db_url_config(url) | {"CONN_MAX_AGE": None}
    if found["ENGINE"] == "django.db.backends.sqlite3":
        found["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
    return found
