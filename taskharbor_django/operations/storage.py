"""Which database a queue lives in, and the driver for it."""

from __future__ import annotations

from functools import cache, partial

from django.core.signals import setting_changed
from django.db import router
from django.dispatch import receiver

from ..conf import get_settings
from ..drivers import DatabaseDriver
from ..models import Job
from . import followers


def alias_of(queue: str) -> str:
    """The database alias that keeps this queue's jobs."""
    settings = get_settings()
    return settings.queue_databases.get(queue) or default_alias()


def default_alias() -> str:
    """The alias of queues that none was named for; never a replica."""
    return get_settings().database or router.db_for_write(Job)


def aliases() -> list[str]:
    """Every alias that keeps queues, the default one first."""
    return list(dict.fromkeys([default_alias(), *get_settings().queue_databases.values()]))


@cache
def driver_for(using: str) -> DatabaseDriver:
    """The one driver of an alias, which tells the app what has ended."""
    driver = DatabaseDriver(using)
    driver.on_end = partial(followers.ended, driver)
    return driver


@receiver(setting_changed)
def _forget(*, setting: str, **_: object) -> None:
    if setting in {"TASKHARBOR", "DATABASES", "DATABASE_ROUTERS"}:
        driver_for.cache_clear()
