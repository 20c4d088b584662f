"""Which refusals of a database are worth the same attempt again, and the attempt."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import DatabaseError, DataError, IntegrityError, connections

T = TypeVar("T")

TRIES = 6
FIRST_PAUSE = 0.01

_SQLSTATES = frozenset({"40001", "40P01", "55P03"})  # serialisation, deadlock, lock timeout
_BAD_DATA = frozenset({"22", "23", "54"})  # values, constraints, more than the server can hold
_MYSQL_CODES = frozenset({1205, 1213})  # lock wait timeout, deadlock
# Larger than a packet may be; wrong for its column, too long, out of range.
_MYSQL_BAD_DATA = (1153, 1366, 1406, 1264)
_SQLITE_TEXTS = ("database is locked", "database table is locked")
# Disk full, too many clients, shut down, crashed, starting, read-only.
_SERVER_SQLSTATES = frozenset({"53100", "53300", "57P01", "57P02", "57P03", "25006"})
_SERVER_MYSQL_CODES = (1021, 1040, 1053, 1114, 1203, 1226, 1290, 1792, 1836)
_SERVER_SQLITE_TEXTS = ("database or disk is full", "attempt to write a readonly database")


def is_transient(error: BaseException) -> bool:
    """Say whether the server undid the transaction only because of who else was at work."""
    cause = error.__cause__ or error
    if getattr(cause, "sqlstate", None) in _SQLSTATES:
        return True
    code = cause.args[0] if cause.args else None
    return code in _MYSQL_CODES or str(code).startswith(_SQLITE_TEXTS)


def is_of_server(error: BaseException) -> bool:
    """Say whether the server can do nothing of the kind just now, whatever the values."""
    cause = error.__cause__ or error
    if getattr(cause, "sqlstate", None) in _SERVER_SQLSTATES:
        return True
    code = cause.args[0] if cause.args else None
    return code in _SERVER_MYSQL_CODES or str(code).startswith(_SERVER_SQLITE_TEXTS)


def is_bad_data(error: BaseException) -> bool:
    """Say whether the database refused the values, so that the same ones will never do."""
    state = getattr(error.__cause__, "sqlstate", None)
    if state is not None:
        # XX000 has no better number, but that of a value too large for memory.
        return state[:2] in _BAD_DATA or (state == "XX000" and "alloc" in str(error))
    if error.args and error.args[0] in _MYSQL_BAD_DATA:
        return True
    return isinstance(error, DataError | IntegrityError | ValueError | TypeError | OverflowError)


def is_in_transaction(using: str) -> bool:
    """Say whether the caller has opened a transaction, by `atomic` or by hand."""
    return has_transaction(connections[using])


def has_transaction(connection: Any) -> bool:
    """The same of a connection."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        connection.ensure_connection()
    return not connection.autocommit


def repeat(using: str, verb: Callable[[], T]) -> T:
    """
    Run a verb that opens its own transaction, again if the database says it was unlucky.

    Inside a caller's transaction there is nothing to repeat: the error is the caller's.
    """
    tries = 1 if is_in_transaction(using) else TRIES
    for turn in range(1, tries):
        try:
            return verb()
        except DatabaseError as error:
            if not is_transient(error):
                raise
        time.sleep(random.uniform(0.5, 1.0) * FIRST_PAUSE * 2**turn)  # noqa: S311  jitter
    return verb()
