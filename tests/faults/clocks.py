"""Clocks that are wrong: what the environment of a process needs for one."""

import shutil
import time
from pathlib import Path

# The wall clock alone: none that only counts is ever an hour off.
REAL = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
# by how much the clock of a worker is off, and how many of its seconds go to one
CLOCKS = {"behind": "-3600", "ahead and fast": "+3600 x1.5", "behind and slow": "-3600 x0.5"}


def library():
    """Where faketime's library is, None when it is not installed."""
    if not shutil.which("faketime"):
        return None
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(found[0]) if found else None


def environment(preload, clock):
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    # Its own cache would hide that time goes on.
    off = {"LD_PRELOAD": preload, "FAKETIME": clock, "FAKETIME_NO_CACHE": "1"}
    return {**off, **REAL, "TASKHARBOR_BOOTED": str(booted)}
