"""
Statements that a session of PostgreSQL parses and plans once.

That is most of what a small claim costs: of the server's CPU 1.7 ms for one that finds nothing, 0.5
when it is prepared; for one job 2.0 and 0.9, for a hundred 5.2 and 4.1; to ack one job 1.1 and 0.7.

Locks:  none of its own. PREPARE and EXECUTE are sent as SQL, in one message and only outside of
        transactions, so they are one transaction, and behind a pooler in one session.
Fence:  a session that does not have the statement refuses before anything is done: a pooler gave
        another one, somebody said DISCARD ALL. It is sent in full then, and so is all that follows.
Repeat: as the statement itself.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from django.db import DatabaseError
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from .transient import is_in_transaction

# A plan that is kept has to suit the table as it will be, not as it was: one that was made when
# there were no jobs would read all of them later. Without these two only an index is left to read.
# And it is for any parameters from the beginning, which the server would not choose by itself.
FOR_ANY_TABLE = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
    " SET LOCAL plan_cache_mode = force_generic_plan; "
)
# Acks differ by what their jobs have in common; so many statements a session keeps, and no more.
MOST = 20
# It is not there; it is there already; it is, but columns had other types then.
_REFUSALS = frozenset({"26000", "42P05", "0A000"})

_PLACE = re.compile(r"%\((\w+)\)s")

# What each session of this process was told to prepare.
_told: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class Prepared:
    """Sends the statements of one driver, prepared until a session refuses that."""

    def __init__(self) -> None:
        self._refused = False

    def execute(self, cursor: Any, verb: str, sql: str, parameters: dict[str, Any]) -> None:
        """Execute with named parameters; the cursor has the rows, whichever way it was sent."""
        text = None if self._refused else _text(cursor.db, verb, sql)
        if text is not None:
            try:
                cursor.execute(text, parameters)
            except DatabaseError as error:
                if getattr(error.__cause__, "sqlstate", None) not in _REFUSALS:
                    raise
                self._refused = True
            else:
                while cursor.nextset():
                    pass
                return
        # The limit written out: the planner does 12-19 % better with a literal.
        cursor.execute(sql.replace("%(limit)s", str(parameters.get("limit"))), parameters)


def _text(connection: Any, verb: str, sql: str) -> str | None:
    """What to send instead of the statement, None where it is to be sent in full."""
    if not _can_prepare(connection):
        return None
    prepare, execute = _prepared(verb, sql)
    told = _told.setdefault(connection.connection, set())
    if sql in told:
        return f"{FOR_ANY_TABLE}{execute}"
    if len(told) == MOST:
        return None
    told.add(sql)  # before it is sent: whatever fails then, the session may have it
    return f"{FOR_ANY_TABLE}{prepare}; {execute}"


def _can_prepare(connection: Any) -> bool:
    return not (
        # What Django's own documentation asks for where a pooler shares sessions.
        connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        or connection.features.uses_server_side_binding  # it sends one statement at a time
        or not is_psycopg3  # the older one cannot find the rows among several results
        or is_in_transaction(connection.alias)  # which a refusal would end
    )


@lru_cache(maxsize=256)
def _prepared(verb: str, sql: str) -> tuple[str, str]:
    """
    The texts that prepare and execute a statement.

    It is named by its verb and its own text: in a session that others use too, who finds that name
    finds the same statement.
    """
    places = list(dict.fromkeys(_PLACE.findall(sql)))
    body = _PLACE.sub(lambda place: f"${places.index(place[1]) + 1}", sql)
    name = f"taskharbor_{verb}_{hashlib.sha256(body.encode()).hexdigest()[:24]}"
    values = ", ".join(f"%({place})s" for place in places)
    return f"PREPARE {name} AS {body}", f"EXECUTE {name} ({values})"
