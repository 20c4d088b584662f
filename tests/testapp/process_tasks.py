"""Tasks for workers that run as processes of their own; they talk to the tests through files."""

import os
import signal
import time
from pathlib import Path

from django.db import connection

from taskharbor_django import task

MIB = 1024 * 1024
kept = []  # what `grow` never gives back


def say(path):
    """Append this process's id; one short write to a file is never mixed with another's."""
    with Path(path).open("a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


@task
def mark(path):
    """Leave a line behind."""
    say(path)


@task
def hold(path, until):
    """Say that it runs, and go on until the other file is there."""
    say(path)
    while not Path(until).exists():
        time.sleep(0.01)


@task(isolation="process")
def hold_apart(path, until):
    """The same in a child process of the worker."""
    hold(path, until)


@task
def resist(path, until):
    """The same, and nothing stops it before."""
    say(path)
    while True:
        try:
            while not Path(until).exists():
                time.sleep(0.01)
        except BaseException:  # noqa: BLE001, S112  what it is for
            continue
        return


@task
def kill_process_once(path):
    """Kill the process that runs it, the first time."""
    first = not Path(path).exists()
    say(path)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)


@task
def exit_once(path, code):
    """End the process that runs it with this code, the first time."""
    first = not Path(path).exists()
    say(path)
    if first:
        os._exit(code)


@task
def ask(path, until):
    """Say that it has had an answer from the database, and ask again until the file is there."""
    _ask()
    say(path)
    while not Path(until).exists():
        _ask()
        time.sleep(0.01)


def _ask():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@task
def grow(path, size):
    """Keep so many MiB for ever."""
    say(path)
    kept.append(b"x" * (size * MIB))
