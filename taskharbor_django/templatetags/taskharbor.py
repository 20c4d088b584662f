"""What the templates of the admin ask for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import template
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from ..lifecycle import Priority

register = template.Library()


@register.simple_tag(takes_context=True)
def taskharbor_dashboard(context: template.Context) -> dict[str, Any]:
    # Here, because Django imports every tag library, also where its admin is not installed.
    from ..admin.dashboard import dashboard

    return dashboard(context["request"])


@register.filter
def number(value: Any) -> str:
    """A number with its thousands apart, "+" behind one that was capped."""
    count, more = value if isinstance(value, tuple) else (value, False)
    return number_format(count, use_l10n=True, force_grouping=True) + "+" * bool(more)


@register.filter
def span(duration: timedelta | None) -> str:
    """A duration in its two largest units."""
    if duration is None:
        return ""
    seconds = max(0.0, duration.total_seconds())
    if seconds < 1:
        return _("%(n)d ms") % {"n": seconds * 1000}
    if seconds < 60:
        return _("%(n).1f s") % {"n": seconds}
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 60:
        return _("%(m)d min %(s)d s") % {"m": minutes, "s": seconds % 60}
    if hours < 48:
        return _("%(h)d h %(m)d min") % {"h": hours, "m": minutes % 60}
    return _("%(d)d d %(h)d h") % {"d": days, "h": hours % 24}


@register.filter
def since(at: datetime | None, now: datetime) -> str:
    """How long ago, or how long until."""
    if at is None:
        return ""
    if at > now:
        return _("in %(span)s") % {"span": span(at - now)}
    return _("%(span)s ago") % {"span": span(now - at)}


@register.filter
def plus(at: datetime, duration: timedelta) -> datetime:
    return at + duration


@register.filter
def rank(priority: int) -> str:
    """A priority by the name of its level, where it is one."""
    return str(Priority(priority).label) if priority in list(Priority) else str(priority)


@register.filter
def dotted(name: str) -> tuple[str, str]:
    """A path in two parts: where it is, with the last dot, and what it is called there."""
    place, dot, last = name.rpartition(".")
    return place + dot, last


@register.filter
def silent(worker: Any, now: datetime) -> bool:
    """Whether a worker is no longer heard of."""
    return bool(worker.is_silent(now))


@register.filter
def minus(at: datetime | None, other: datetime | None) -> timedelta | None:
    return None if at is None or other is None else at - other


@register.filter
def pairs(mapping: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """Names and values; `.items` would be the value of that name, where people choose the names."""
    return list((mapping or {}).items())
