"""Pages of a list: a cursor is the value that the list is in the order of, and the id."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser
from django.db.models import Q, QuerySet

from .filters import UsageError, count, moment


def add_paging(parser: CommandParser, what: str) -> None:
    parser.add_argument("--limit", metavar="N", type=count, default=20, help=f"{what} on a page.")
    parser.add_argument("--after", metavar="CURSOR", help="Go on after the last page.")


def page(
    rows: QuerySet[Any], order: str, columns: tuple[str, ...], options: dict[str, Any]
) -> tuple[list[tuple[Any, ...]], str | None]:
    """The values of one page, in an order of ids or times, and the cursor of the next one."""
    if options["after"]:
        rows = rows.filter(_behind(order, options["after"]))
    ties = () if order == "id" else ("-id" if order.startswith("-") else "id",)
    limit = options["limit"]
    found = list(rows.order_by(order, *ties).values_list(*columns)[: limit + 1])
    if not len(found) > limit > 0:
        return found[:limit], None
    last = dict(zip(columns, found[limit - 1], strict=True))
    return found[:limit], _cursor(last[order.lstrip("-")], last["id"])


def _cursor(value: Any, pk: UUID) -> str:
    if not isinstance(value, datetime):
        return str(pk)
    at = value.astimezone(UTC).replace(tzinfo=None)
    return f"{at.isoformat()}Z_{pk}"  # short enough for a line of 80


def _behind(order: str, cursor: str) -> Q:
    column, past = order.lstrip("-"), "lt" if order.startswith("-") else "gt"
    value, _, pk = cursor.rpartition("_")
    try:
        if order == "id":
            return Q(pk__gt=UUID(cursor))
        at, last = moment(value), UUID(pk)
    except (ValueError, ArgumentTypeError):
        raise UsageError(f"--after: {cursor!r} is no cursor of this list.") from None
    return Q(**{f"{column}__{past}": at}) | Q(**{column: at, f"pk__{past}": last})
