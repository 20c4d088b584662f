"""Settings of workers that know a second database: FAR_URL, and FAR_ROUTER how it is used."""

import os

from tests.faults.settings import *  # noqa: F403
from tests.settings import database, env

DATABASES["far"] = database(env.db_url("FAR_URL"))  # noqa: F405


class Reads:
    """Send what only reads to the other one, as for a replica."""

    def db_for_read(self, model, **_hints):
        return "far"

    def db_for_write(self, model, **_hints):
        return "default"


if os.environ.get("FAR_ROUTER") == "reads":
    DATABASE_ROUTERS = ["tests.faults.far_settings.Reads"]
