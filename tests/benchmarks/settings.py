"""A plain project as a user would deploy it: nothing but what a worker and its tasks need."""

import os

import environ

from .meter import POLLING

env = environ.Env()

SECRET_KEY = "only-for-benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "taskharbor_django",
    "tests.benchmarks",
]
TASKHARBOR = {"NOTIFY": "auto"}
DATABASES = {"default": env.db_url("DATABASE_URL")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 30,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
if os.environ.get(POLLING):
    TASKHARBOR["NOTIFY"] = False
