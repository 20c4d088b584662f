"""
What a worker and its isolated children say to each other; isolation.py tells the whole story.

A message is a map, sent as JSON with its length in front. What JSON lacks (bytes, times, ids) is
tagged as in payloads. Nothing is pickled, and nothing that a message names is imported.
"""

from __future__ import annotations

import contextlib
import enum
import json
import select
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from django.db import utils as database_errors

from .. import exceptions
from ..exceptions import TaskHarborError
from ..lifecycle import FailureCategory, OutcomeKind
from ..values import FailureUpdate, JobRecord, Lease, Outcome, Reservation
from ..wire import Writer, untag

Message = dict[str, Any]

# Payload, checkpoint and result are limited to 16 MiB each; more is not a message of ours.
LARGEST = 128 * 1024 * 1024
CHUNK = 256 * 1024
_length = struct.Struct("!I")


class ChannelClosed(Exception):
    """The other side is gone, or no longer says anything that can be understood."""


class Channel:
    """One end of the line. Any thread may send; one thread at a time receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()
        self._received = bytearray()
        # Not select(), which knows no file descriptor from 1024 on.
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, message: Message) -> None:
        data = json.dumps(Writer(LARGEST).write(message)).encode("ascii")
        try:
            with self._sending:
                self._end.sendall(_length.pack(len(data)) + data)
        except ConnectionError as error:
            raise ChannelClosed(str(error)) from error
        except BaseException:
            # A signal handler of the job's raised in the midst of it: the rest would be garbage.
            self.hang_up()
            raise

    def receive(self, timeout: float | None = None) -> Message | None:
        """Wait for the next message; None when there was none in time."""
        while (message := self._take()) is None:
            if not self._poll.poll(None if timeout is None else max(0, round(timeout * 1000))):
                return None
            try:
                data = self._end.recv(CHUNK)
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("the line was closed")
            self._received += data
        return message

    def _take(self) -> Message | None:
        """Cut one whole message off what was received."""
        if len(self._received) < _length.size:
            return None
        (size,) = _length.unpack_from(self._received)
        if size > LARGEST:
            raise ChannelClosed("what came was no message")
        end = _length.size + size
        if len(self._received) < end:
            return None
        data = bytes(self._received[_length.size : end])
        del self._received[:end]
        return _read(data)

    def hang_up(self) -> None:
        """Let both sides see the end; whoever waits in this process is woken, too."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end.close()


def _read(data: bytes) -> Message:
    try:
        message = json.loads(data, object_hook=untag)
    except (ValueError, LookupError, TypeError) as error:
        raise ChannelClosed("what came was no message") from error
    if not isinstance(message, dict):
        raise ChannelClosed("what came was no message")
    return message


# -- values as messages carry them -------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, memoryview):
        return bytes(value)
    return dict(value) if isinstance(value, Mapping) else value


def _facts(value: Any, *left_out: str) -> Message:
    names = (field.name for field in fields(value) if field.name not in left_out)
    return {name: _plain(getattr(value, name)) for name in names}


def reservation_facts(reservation: Reservation) -> Message:
    # A driver fills in only what a run needs; the class answers for the rest.
    job = {name: _plain(value) for name, value in vars(reservation.job).items()}
    return {"job": job, "lease": _facts(reservation.lease)}


def read_reservation(facts: Message) -> Reservation:
    return Reservation(JobRecord(**facts["job"]), Lease(**facts["lease"]))


def outcome_facts(outcome: Outcome) -> Message:
    """Everything but whose outcome it is: that the worker knows better."""
    facts = _facts(outcome, "job_id", "token", "version", "update")
    return facts | {"update": None if outcome.update is None else _facts(outcome.update)}


def read_outcome(facts: Message, reservation: Reservation) -> Outcome:
    lease, update = reservation.lease, facts.pop("update")
    kind = OutcomeKind(facts.pop("kind"))
    if update is not None:
        category = FailureCategory(update.pop("category"))
        update = FailureUpdate(category=category, **update)
    return Outcome(
        job_id=reservation.job.id,
        token=lease.token,
        version=lease.version,
        kind=kind,
        update=update,
        **facts,
    )


def error_facts(error: Exception) -> Message:
    return {"class": type(error).__name__, "text": str(error)}


def read_error(facts: Message) -> Exception:
    """The error that a handler in the worker itself would have seen."""
    for known in (exceptions, database_errors):
        kind = getattr(known, facts["class"], None)
        if isinstance(kind, type) and issubclass(kind, TaskHarborError | database_errors.Error):
            return kind(facts["text"])
    return TaskHarborError(f"{facts['class']}: {facts['text']}")
