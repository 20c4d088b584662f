"""The terms on which a job waits, worked out anew: its lifetime, its attempts, its time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import Model

from ..callbacks import destination
from ..conf import get_settings
from ..exceptions import InvalidJob
from ..task_options import DEFAULT, Default
from ..tasks import registry
from ..values import JobRecord, is_storable, shown
from .storage import alias_of


def lifetime_of(task: str, created_at: datetime, expires_at: datetime | None) -> timedelta | None:
    """
    The lifetime that a job starts anew with; None when it has no end.

    That of its task or of the settings, or the shorter one that its own call asked for: the row
    keeps only when it ended, so a longer one of a call is not remembered.
    """
    if expires_at is None:
        return None
    own = expires_at - created_at
    asked = registry.get(task).lifetime if task in registry else DEFAULT
    usual = get_settings().lifetime if isinstance(asked, Default) else asked
    return own if usual is None else min(own, usual)


def attempts_of(max_attempts: int) -> int:
    return max_attempts or get_settings().max_attempts


def check_remark(by: Any, note: Any) -> None:
    """Refuse what cannot be kept of who did something, and why."""
    if not isinstance(note, str) or not is_storable(note):
        raise InvalidJob(f"note: {shown(note)} is no text that can be stored", field="note")
    user = get_user_model()
    author = getattr(by, "pk", by)
    foreign = isinstance(by, Model) and not isinstance(by, user)
    if foreign or (isinstance(author, str) and not is_storable(author)):
        raise _nobody(by)
    try:
        key: Any = user._meta.pk
        key.run_validators(key.to_python(author))
    except (ValidationError, OverflowError):
        raise _nobody(by) from None


def _nobody(by: Any) -> InvalidJob:
    return InvalidJob(f"by: {shown(by)} is no user, and no id of one", field="by")


def check_terms(using: str | None = None, **given: Any) -> None:
    """Refuse, in the words of enqueue, what no job can be stored with."""
    JobRecord(task="-", **given).validate()
    if given.get("callback_url"):
        destination(given["callback_url"], get_settings().callback_hosts)
    queue = given.get("queue")
    if using is not None and queue is not None:
        refuse_queue(queue, using)


def refuse_queue(queue: str, using: str) -> None:
    """Refuse a queue that is kept elsewhere than the other jobs, or than the job itself."""
    home = alias_of(queue)
    if home != using:
        raise InvalidJob(
            f"queue: {queue} is kept in another database, {home!r} and not {using!r}", field="queue"
        )
