"""Settings of the test suite; DATABASE_URL says where it stores things."""

import tempfile
from pathlib import Path

import environ

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent
SECRET_KEY = "only-for-tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.urls"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "taskharbor_django",
    "tests.testapp",
]

MIDDLEWARE = [
    "tests.policy.strict_policy",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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

STATIC_URL = "static/"

# Tests count statements; those about the wake-up switch it on.
TASKHARBOR = {"NOTIFY": False}

# Django's own task API; before 6.0 it is in a package.
TASKS = {
    "default": {
        "BACKEND": "taskharbor_django.backend.TaskHarborBackend",
        "QUEUES": ["default", "reports"],
    }
}

# Users of the tests log in often, and nobody attacks their passwords.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def database(config):
    """Add what the tests want of each kind of database to what the address says."""
    options = config.setdefault("OPTIONS", {})
    if config["ENGINE"] == "django.db.backends.sqlite3":
        options |= {
            "transaction_mode": "IMMEDIATE",
            "timeout": options.get("timeout", 30),
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
        # A file, because threads with connections of their own cannot share one in memory.
        name = Path(config["NAME"])
        config["TEST"] = {"NAME": str(name.with_name(f"test_{name.name}"))}
    elif config["ENGINE"] == "django.db.backends.mysql":
        options |= {"isolation_level": "read committed", "charset": "utf8mb4"}
        config["TEST"] = {"CHARSET": "utf8mb4"}
    return config


DATABASES = {
    "default": database(
        env.db_url("DATABASE_URL", default=f"sqlite:///{tempfile.gettempdir()}/taskharbor.sqlite3")
    )
}
