"""Pages by key: each begins where another ended, so that page 1,000 costs what page 1 does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core import signing
from django.db.models import F, Field, Func, Model, QuerySet, TextField, Value
from django.db.models.functions import Coalesce
from django.db.models.lookups import GreaterThan, LessThan

PAGE = 50


class Row(Func):
    """Several columns as one value, compared from the left."""

    function = ""
    template = "(%(expressions)s)"
    output_field = TextField()


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """The columns of an index, all in one direction, and the primary key behind them."""

    names: tuple[str, ...]
    newest_first: bool = False
    by_index: bool = True
    """whether rows may be read in this order; else all are read first, and sorted"""

    def sorted(self, rows: QuerySet[Any], *, reverse: bool = False) -> QuerySet[Any]:
        sign = "-" if self.newest_first != reverse else ""
        names: list[Any] = [f"{sign}{name}" for name in self.names]
        if not self.by_index:
            # An expression that no index has the order of, and that changes nothing.
            first = Coalesce(F(self.names[0]), F(self.names[0]))
            names[0] = first.desc() if sign else first.asc()
        return rows.order_by(*names)

    def behind(self, rows: QuerySet[Any], key: Sequence[Any], *, reverse: bool = False) -> Any:
        """The rows behind this key; with `reverse`, those before it."""
        columns = Row(*self.names)
        fields = [_field(rows.model, name) for name in self.names]
        values = Row(*(Value(value, field) for field, value in zip(fields, key, strict=True)))
        beyond = LessThan if self.newest_first != reverse else GreaterThan
        return rows.filter(beyond(columns, values))

    def key(self, row: Any) -> list[Any]:
        return [getattr(row, name) for name in self.names]


def _field(model: type[Model], name: str) -> Field[Any, Any]:
    return model._meta.get_field(name)  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Rows, and the keys by which to go on."""

    rows: list[Any]
    newer: str = ""
    older: str = ""


def page(rows: QuerySet[Any], order: Order, asked: Any, size: int = PAGE) -> Page:
    """Read the page that `after` or `before` of the address asks for, or the first."""
    before, after = _key(asked.get("before"), order, rows), _key(asked.get("after"), order, rows)
    if before:
        above = order.sorted(order.behind(rows, before, reverse=True), reverse=True)
        found = list(above[: size + 1])
        shown = found[:size][::-1]
        return _made(shown, order, newer=len(found) > size, older=bool(shown))
    found = list(order.sorted(order.behind(rows, after) if after else rows)[: size + 1])
    return _made(found[:size], order, newer=bool(after), older=len(found) > size)


def _made(shown: list[Any], order: Order, *, newer: bool, older: bool) -> Page:
    if not shown:
        return Page(rows=[])
    return Page(
        rows=shown,
        newer=_text(order.key(shown[0])) if newer else "",
        older=_text(order.key(shown[-1])) if older else "",
    )


def _text(key: Sequence[Any]) -> str:
    plain = [value.isoformat() if isinstance(value, datetime) else str(value) for value in key]
    return signing.b64_encode(json.dumps(plain).encode()).decode()


def _key(text: str | None, order: Order, rows: QuerySet[Any]) -> list[Any] | None:
    """The key that an address carries; one that somebody has changed is the first page."""
    try:
        plain = json.loads(signing.b64_decode((text or "").encode()))
        fields = [_field(rows.model, name) for name in order.names]
        return [field.to_python(value) for field, value in zip(fields, plain, strict=True)]
    except Exception:  # noqa: BLE001  whatever a made-up address may raise
        return None
