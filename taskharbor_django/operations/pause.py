"""
pause: a queue whose jobs are not reserved for a while, or until somebody resumes it.

Locks:  the queue's own row.
Fence:  none; a claim that began before it is one from before the pause.
Repeat: safe; the latest word counts.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..drivers.transient import repeat
from ..exceptions import InvalidJob
from ..models import Queue
from .notify import notify_on_commit
from .storage import alias_of, driver_for
from .terms import check_remark, check_terms


def pause(
    queue: str,
    *,
    until: datetime | None = None,
    by: Any = None,
    note: str = "",
    using: str | None = None,
) -> Queue:
    """Let nobody reserve from a queue, until a time or for good; running jobs go on."""
    check_terms(queue=queue)
    check_remark(by, note)
    try:
        check_terms(run_at=until)
    except InvalidJob as problem:
        why = str(problem).removeprefix("run_at: ")
        raise InvalidJob(f"until: {why}", field="until") from None
    driver = driver_for(using or alias_of(queue))
    said = {
        "paused_at": driver.now(),
        "paused_until": until,
        "paused_by_id": getattr(by, "pk", by),
        "note": note,
    }
    stored = Queue.objects.using(driver.using)
    return repeat(driver.using, lambda: stored.update_or_create(name=queue, defaults=said)[0])


def resume(queue: str, *, using: str | None = None) -> bool:
    """Let a queue's jobs be reserved again; False when it was not paused."""
    check_terms(queue=queue)
    driver = driver_for(using or alias_of(queue))
    paused = Queue.objects.using(driver.using).paused(driver.now()).filter(name=queue)
    said = {"paused_at": None, "paused_until": None, "paused_by": None, "note": ""}
    changed = repeat(driver.using, lambda: paused.update(**said))
    notify_on_commit([queue], driver.using)
    return bool(changed)
