"""The jobs that are measured."""

import asyncio
import time

from taskharbor_django import task

from .meter import Meter

meter = Meter()


@task
def noop(number):
    """Do nothing."""
    meter.hit()


@task(keep=False)
def noop_unkept(number):
    """Do nothing, and leave nothing behind."""
    meter.hit()


@task
def note(sent):
    """Return how long the job took to begin."""
    return time.monotonic() - sent


@task
def wait(number):
    """Wait for something else, as a job that asks another server does."""
    time.sleep(0.005)


@task
def doze(number):
    time.sleep(0.01)
    meter.hit()


@task
async def adoze(number):
    await asyncio.sleep(0.01)
    meter.hit()


@task
async def anap(number):
    await asyncio.sleep(0.1)
    meter.hit()
