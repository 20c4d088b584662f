"""
Settings of the example; the environment, or a file `.env` beside manage.py, may change them.

    DATABASE_URL   where everything is kept; an SQLite file in this directory without it
    DEBUG          on unless told otherwise, for this is an example
    SECRET_KEY     needed when DEBUG is off
    ALLOWED_HOSTS  likewise, with commas between them
    CALLBACK_URL   an https:// address that is told when a parcel has gone; CALLBACK_SECRET signs it
                   CALLBACK_NETWORK (10.1.0.0/16) lets it be a private address there
"""

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent

env = environ.Env()
env.read_env(BASE_DIR.parent / ".env")

DEBUG = env.bool("DEBUG", default=True)
# Good for a machine of one's own and nothing else; without DEBUG there has to be a real one.
INSECURE_KEY = {"default": "django-insecure-for-the-example-only"} if DEBUG else {}
SECRET_KEY = env.str("SECRET_KEY", **INSECURE_KEY)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "taskharbor_django",
    "example_project.shop",
    "example_project.demo",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"

# What a queue wants of each kind of database; the address may say otherwise (`?timeout=60`).
OPTIONS = {
    "django.db.backends.sqlite3": {
        # A transaction that reads first and writes later is refused otherwise, without waiting.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    },
    "django.db.backends.mysql": {"charset": "utf8mb4", "isolation_level": "read committed"},
}
CLIENTS = {
    "django.db.backends.postgresql": ("psycopg", "postgresql"),
    "django.db.backends.mysql": ("MySQLdb", "mysql"),
}


def database():
    """Read DATABASE_URL, or fall back to the file."""
    config = {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "example.sqlite3"}
    if env.str("DATABASE_URL", default=""):
        config = env.db_url("DATABASE_URL")
    if not config.get("ENGINE"):
        raise ImproperlyConfigured("DATABASE_URL is no address such as postgres://me@host/name.")
    module, extra = CLIENTS.get(config["ENGINE"], ("sqlite3", ""))
    if find_spec(module) is None:
        raise ImproperlyConfigured(f'Run: python -m pip install -e ".[example,{extra}]"')
    return {**config, "OPTIONS": OPTIONS.get(config["ENGINE"], {}) | config.get("OPTIONS", {})}


DATABASES = {"default": database()}

SHOP_CALLBACK_URL = env.str("CALLBACK_URL", default="")
TASKHARBOR = {}
if SHOP_CALLBACK_URL:
    host, network = urlsplit(SHOP_CALLBACK_URL).hostname, env.str("CALLBACK_NETWORK", default="")
    TASKHARBOR["CALLBACK_HOSTS"] = [f"{host}={network}" if network else host]
    TASKHARBOR["CALLBACK_SECRET"] = env.str("CALLBACK_SECRET")
