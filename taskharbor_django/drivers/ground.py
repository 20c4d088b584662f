"""
The ground that verbs stand on: transactions, locks and the clock of one database.

Locks:  none of its own but SQLite's write lock, which its transactions begin with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Model, QuerySet

from ..clock import pretended
from ..models import Lease
from . import inserts
from .patience import Patience, patience
from .transient import is_in_transaction

LOCK_WAIT = 5  # seconds
# MariaDB counts whole seconds; 0 does not wait at all.
SHORT_WAIT, NO_WAIT = 1, 0

AnyModel = TypeVar("AnyModel", bound=Model)


class Ground:
    """What differs between databases, in portable form."""

    using: str

    @property
    def connection(self) -> Any:
        return connections[self.using]

    # -- transactions ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """A transaction for a handler's statements, with SQLite's write lock from its beginning."""
        with transaction.atomic(using=self.using):
            if self.connection.vendor == "sqlite":
                self._begin()
            yield

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of several statements that begins with its write lock on SQLite."""
        outermost = not is_in_transaction(self.using)
        with transaction.atomic(using=self.using):
            if outermost:
                self._begin()
            yield

    def _begin(self) -> None:
        """
        Take SQLite's write lock, unless BEGIN IMMEDIATE has.

        A transaction that reads first and writes later is refused there at once, without waiting,
        when another has written in between.
        """
        if self.connection.vendor == "sqlite" and self.connection.transaction_mode != "IMMEDIATE":
            table = self.connection.ops.quote_name(Lease._meta.db_table)
            with self.connection.cursor() as cursor:
                cursor.execute(f"DELETE FROM {table} WHERE 0")  # noqa: S608  name from the model

    # -- locks -----------------------------------------------------------------------------------

    @property
    def hurries(self) -> bool:
        """Whether transactions can be told to wait less than usual."""
        return self._is_mariadb

    @property
    def _is_mariadb(self) -> bool:
        return bool(getattr(self.connection, "mysql_is_mariadb", False))

    def short_waits(self) -> contextlib.AbstractContextManager[None]:
        """Let statements inside wait for locks no longer than elsewhere; MariaDB's own is 50 s."""
        if not self._is_mariadb:  # MySQL has no SET STATEMENT
            return contextlib.nullcontext()
        wrapped: contextlib.AbstractContextManager[None] = self.connection.execute_wrapper(_hurried)
        return wrapped

    def locked(self, queryset: QuerySet[AnyModel], *, key: bool = False) -> QuerySet[AnyModel]:
        """Skip what others hold; `key` locks against deletion too, where there is a difference."""
        return queryset.select_for_update(skip_locked=True, no_key=not key and self._no_key)

    def waiting_for(self, queryset: QuerySet[AnyModel]) -> QuerySet[AnyModel]:
        """Wait for what others hold: for people, and for what must not be left out."""
        return queryset.select_for_update(no_key=self._no_key)

    def among(
        self, queryset: QuerySet[AnyModel], ids: Collection[UUID], column: str = "pk"
    ) -> QuerySet[AnyModel]:
        """Those with one of these ids, of which there may be very many."""
        return queryset.filter(**{f"{column}__in": ids})

    @property
    def _no_key(self) -> bool:
        return bool(self.connection.features.has_select_for_no_key_update)

    # -- the clock -------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The database's time; without a server, the local clock is its clock."""
        if (told := pretended()) is not None:
            return told
        clock = inserts.SERVER_CLOCKS.get(self.connection.vendor)
        if clock is None:
            return datetime.now(UTC)
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT {clock.now}")
            read: datetime = cursor.fetchone()[0]
        return read if read.tzinfo else read.replace(tzinfo=UTC)


def bound_connecting(connection: Any, limits: Mapping[str, int]) -> None:
    """Give a connection that is not open yet these options, as far as it has none of its own."""
    asked = connection.settings_dict
    # A dict of this thread's own: the one in settings is shared with all the others.
    connection.settings_dict = {**asked, "OPTIONS": {**limits, **asked["OPTIONS"]}}


def _hurried(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001  Django's signature
    waits = {Patience.USUAL: LOCK_WAIT, Patience.SHORT: SHORT_WAIT, Patience.NONE: NO_WAIT}
    limit = f"SET STATEMENT innodb_lock_wait_timeout={waits[patience()]} FOR"
    return execute(f"{limit} {sql}", params, many, context)
