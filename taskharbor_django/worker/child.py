"""
The program of an isolated child: `python -m taskharbor_django.worker.child <file descriptor>`.

It becomes what its worker is (same path, same arguments, same settings), says that it is ready, and
serves jobs until it is told to end. isolation.py has the whole story, serving.py the jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from io import TextIOWrapper
from types import FrameType

from .messages import Channel, ChannelClosed, Message

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHOWN = 20_000


def main() -> int:
    channel = _channel(int(sys.argv[1]))
    _leave_stopping_to_the_worker()
    try:
        told = channel.receive()
        if told is not None:
            _become(told)
            _serve(channel, told["using"])
    except ChannelClosed:
        return 1  # the worker was gone before there was anything to give back
    finally:
        channel.close()
    return 0


def _channel(descriptor: int) -> Channel:
    os.set_inheritable(descriptor, False)  # the line is not for what handlers start
    # By a copy: the worker sees the end of the line when the process has ended, and not while the
    # interpreter cleans up.
    return Channel(socket.socket(fileno=os.dup(descriptor)))


def _leave_stopping_to_the_worker() -> None:
    """
    Do nothing on a signal that was meant to stop the worker and all around it.

    By handlers, for what is ignored stays ignored in the programs that a job starts.
    """
    for number in STOP:
        signal.signal(number, _carry_on)
    # The worker had them held back until somebody would be there to take them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)


def _carry_on(_number: int, _frame: FrameType | None) -> None:
    pass


def _become(told: Message) -> None:
    """Look like the worker to settings that look around, and to whatever jobs start."""
    sys.path[:], sys.argv[:] = told["path"], told["argv"]
    os.environ.pop("PYTHONPATH", None)
    if told["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = told["pythonpath"]
    for stream in (sys.stdout, sys.stderr):
        # What a handler prints is seen when it prints it, and not lost when it is killed.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _serve(channel: Channel, using: str) -> None:
    try:
        import django

        django.setup()
        from .serving import Serving

        serving = Serving(channel, using)
    except BaseException:
        with contextlib.suppress(ChannelClosed):
            channel.send({"kind": "broken", "text": traceback.format_exc()[-SHOWN:]})
        raise
    channel.send({"kind": "ready"})
    serving.serve()


if __name__ == "__main__":
    sys.exit(main())
