"""What is said afterwards: to the visitor, and to the log of the admin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..operations import Left, Moved
from ..templatetags.taskharbor import number


def told(left: Mapping[str, int]) -> list[tuple[int, str]]:
    """How many were left alone, and why, the largest number first."""
    return sorted(((count, str(Left(why).label)) for why, count in left.items()), reverse=True)


def say(request: HttpRequest, done: str | Promise, moved: Moved) -> None:
    """Tell the visitor how many were moved, asked and left."""
    count = moved.moved
    text = ngettext("%(n)s job %(done)s.", "%(n)s jobs %(done)s.", count)
    level = messages.SUCCESS if count or moved.asked else messages.WARNING
    messages.add_message(request, level, text % {"n": number(count), "done": done})
    if moved.asked:
        asked = ngettext(
            "%(n)s running job was asked to stop.",
            "%(n)s running jobs were asked to stop.",
            moved.asked,
        )
        messages.success(request, asked % {"n": number(moved.asked)})
    for count, why in told(moved.left):
        left = ngettext("%(n)s job was left: %(why)s.", "%(n)s jobs were left: %(why)s.", count)
        messages.warning(request, left % {"n": number(count), "why": why})
    if moved.causes:
        names = ", ".join(str(cause) for cause in moved.causes[:5])
        messages.info(request, _("Requeue instead: %(names)s") % {"names": names})


def log(
    request: HttpRequest,
    model: type[Model],
    objects: Iterable[tuple[str | None, str]],
    message: str,
) -> None:
    """Write who did what to each object, given as (id, how it is shown)."""
    user: Any = request.user
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user.pk,
            content_type=ContentType.objects.get_for_model(model),
            object_id=object_id,
            object_repr=shown[:200],
            action_flag=CHANGE,
            change_message=message,
        )
        for object_id, shown in objects
    )
