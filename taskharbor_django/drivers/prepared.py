"""
Statements that a session of PostgreSQL parses and plans once.

That is most of what a small claim costs: of the server's CPU 1.7 ms for one that finds nothing, 0.5
when it is prepared; for one job 2.0 and 0.9, for a hundred 5.2 and 4.1; to ack one job 1.1 and 0.7.
An INSERT of one job, each with its commit, takes a sixth less time, and with what jobs have in
common written into the statement, so that three parameters are left, another tenth.

Locks:  none of its own. PREPARE and EXECUTE are sent as SQL, in one message and only outside of
        transactions, so they are one transaction, and behind a pooler in one session.
Fence:  a session that does not have the statement refuses before anything is done: a pooler gave
        another one, somebody said DISCARD ALL. It is sent in full then, and so is all that follows.
Repeat: as the statement itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from django.db import DatabaseError
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from .transient import has_transaction

# A plan that is kept has to suit the table as it will be, not as it was: one that was made when
# there were no jobs would read all of them later. Without these two only an index is left to read.
# And it is for any parameters from the beginning, which the server would not choose by itself.
FOR_ANY_TABLE = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
    " SET LOCAL plan_cache_mode = force_generic_plan; "
)
# Acks and INSERTs differ by what their jobs have in common; a session keeps so many statements and
# no more.
MOST = 30
# So often a session has to send an INSERT before it prepares it, like psycopg itself: to a request
# that enqueues one job it would be one statement more to parse.
OFTEN = 5
COUNTED = 200  # INSERTs of a session that are told apart for that
# It is not there; it is there already; it is, but columns had other types then.
_REFUSALS = frozenset({"26000", "42P05", "0A000"})

_PLACE = re.compile(r"%\((\w+)\)s")

# What each session of this process was told to prepare, and which INSERTs it has sent.
_told: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
_inserts: WeakKeyDictionary[Any, dict[Any, _Sent]] = WeakKeyDictionary()


@dataclass(slots=True)
class _Sent:
    """An INSERT that a session sends: how often until now, and then the texts that prepare it."""

    alike: Sequence[Any]
    times: int = 0
    texts: tuple[str, str] | None = None


class Prepared:
    """Sends the statements of one driver, prepared until a session refuses that."""

    def __init__(self) -> None:
        self._refused = False

    def execute(self, cursor: Any, verb: str, sql: str, parameters: dict[str, Any]) -> None:
        """Execute with named parameters; the cursor has the rows, whichever way it was sent."""
        text = _text(cursor.db, *_prepared(verb, sql)) if self._can(cursor.db) else None
        if text is None or not self._send(cursor, f"{FOR_ANY_TABLE}{text}", parameters):
            # The limit written out: the planner does 12-19 % better with a literal.
            cursor.execute(sql.replace("%(limit)s", str(parameters.get("limit"))), parameters)

    def insert(self, cursor: Any, sql: str, own: Sequence[Any], alike: Sequence[Any]) -> None:
        """
        Execute with the job's own parameters and, behind those, what all made alike share.

        From the sixth time on that a session sends it, prepared with what they share in it. They
        share one tuple: values that are equal may still be written otherwise, as a `fold` is.
        """
        text = _insert_text(cursor, sql, len(own), alike) if self._can(cursor.db) else None
        if text is None or not self._send(cursor, text, own):
            cursor.execute(sql, [*own, *alike])

    def _can(self, connection: Any) -> bool:
        return not self._refused and _can_prepare(connection)

    def _send(self, cursor: Any, text: str, parameters: Mapping[str, Any] | Sequence[Any]) -> bool:
        """Send it; False when the session refused it before anything was done."""
        try:
            cursor.execute(text, parameters)
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", None) not in _REFUSALS:
                raise
            self._refused = True
            return False
        while not text.startswith("EXECUTE") and cursor.nextset():
            pass  # that of the last statement is the one that is asked for
        return True


def _insert_text(cursor: Any, sql: str, own: int, alike: Sequence[Any]) -> str | None:
    known = _inserts.setdefault(cursor.db.connection, {})
    key = id(alike) if alike else sql  # kept beside it, so nothing else gets that id
    sent = known.get(key)
    if sent is None:
        if len(known) == COUNTED:
            known.clear()
        sent = known[key] = _Sent(alike)
    sent.times += 1
    if sent.times <= OFTEN:
        return None
    sent.texts = sent.texts or _prepared_insert(cursor, sql, own, alike)
    return _text(cursor.db, *sent.texts)


def _text(connection: Any, prepare: str, execute: str) -> str | None:
    """What to send instead of the statement, None where it is to be sent in full."""
    told = _told.setdefault(connection.connection, set())
    if prepare in told:
        return execute
    if len(told) == MOST:
        return None
    told.add(prepare)  # before it is sent: whatever fails then, the session may have it
    return f"{prepare}; {execute}"


def _can_prepare(connection: Any) -> bool:
    return not (
        # What Django's own documentation asks for where a pooler shares sessions.
        connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        or connection.features.uses_server_side_binding  # it sends one statement at a time
        or not is_psycopg3  # the older one cannot find the rows among several results
        or has_transaction(connection)  # which a refusal would end
    )


@lru_cache(maxsize=256)
def _prepared(verb: str, sql: str) -> tuple[str, str]:
    """The texts that prepare and execute a statement with named parameters."""
    places = list(dict.fromkeys(_PLACE.findall(sql)))
    body = _PLACE.sub(lambda place: f"${places.index(place[1]) + 1}", sql)
    return _named(verb, body, [f"%({place})s" for place in places])


def _prepared_insert(cursor: Any, sql: str, own: int, alike: Sequence[Any]) -> tuple[str, str]:
    """The same for parameters in their order, of which psycopg writes those behind the first."""
    for number in range(1, own + 1):
        sql = sql.replace("%s", f"${number}", 1)
    body = str(cursor.mogrify(sql, alike)).replace("%", "%%")
    return _named("insert", body, ["%s"] * own)


def _named(verb: str, body: str, values: list[str]) -> tuple[str, str]:
    """
    Name it by its verb and its own text.

    In a session that others use too, who finds that name finds the same statement.
    """
    name = f"taskharbor_{verb}_{hashlib.sha256(body.encode()).hexdigest()[:24]}"
    return f"PREPARE {name} AS {body}", f"EXECUTE {name} ({', '.join(values)})"
