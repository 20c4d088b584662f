"""
The world outside the shop, which a task cannot rely on.

Each function plays its part in the demo: `call` says how often it was tried, so that what fails in
the beginning and works in the end does so each time.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

STROKE, PAGE, SHELF, RATE = 0.04, 0.05, 0.1, 0.5
"""seconds that one of them takes"""


class Busy(Exception):
    def __init__(self, seconds):
        self.seconds = seconds
        super().__init__(f"busy, call again in {seconds} s")


def order_goods(sku, quantity, *, reference, call):
    """Order goods from a supplier; the reference makes a repeated order the same order."""
    if call < 3:
        raise Busy(seconds=0.2 * call)
    return f"{quantity} x {sku} will come ({reference})"


def book_amount(reference):
    """Tell a ledger that was switched off last year."""
    raise ConnectionError(f"the ledger does not answer about {reference}")


def boat_is_in(*, call):
    return call > 1


def weigh(*, call):
    """Read a scale, which hangs at first."""
    while call == 1:
        time.sleep(0.05)
    return "1.3 kg"


async def customs_answer():
    """Wait for an answer that never comes."""
    await asyncio.Event().wait()


async def rate_of(currency):
    await asyncio.sleep(RATE)
    return {"EUR": "1", "CHF": "0.93", "DKK": "7.46"}[currency]


def draw_line():
    time.sleep(STROKE)


def print_page():
    time.sleep(PAGE)


def goods_on(shelf):
    time.sleep(SHELF)
    return shelf % 3 + 1


def unpack(name):
    """Unpack a file with a library that has a bug: some files end the whole process."""
    if Path(name).stem == "bomb":
        os._exit(70)
    return f"{name}: 3 pictures"


def power_cut(*, call):
    """End this process as a kernel out of memory does: by a signal that nothing can catch."""
    if call == 1:
        os.kill(os.getpid(), signal.SIGKILL)
