"""The backend: what Django's task API asks of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core import checks
from django.db import Error as DatabaseTrouble

from ..conf import get_settings
from ..signals import on_commit
from ..values import is_queue_name, shown
from . import results
from .api import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from .arguments import plain_call
from .declared import DECLARED, HarborTask, refuse, register


class TaskHarborBackend(BaseTaskBackend):
    """Jobs of this package behind Django's own API; `OPTIONS` are defaults of its tasks."""

    task_class = HarborTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        results.connect()

    def validate_task(self, task: AnyTask) -> None:
        """Refuse what cannot run; make known to workers what can."""
        refuse(task)
        super().validate_task(task)
        register(task, self.options)

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AnyResult:
        """Store a job in the caller's transaction; Django's signal follows its commit."""
        self.validate_task(task)
        plain_args, plain_kwargs = plain_call(args, kwargs)
        wish = register(task, self.options).using(
            queue=task.queue_name,
            priority=-int(task.priority),
            run_at=task.run_after,
            **getattr(task, "called", {}),
        )
        handle = wish.enqueue(*plain_args, **plain_kwargs)
        # A worker may have been faster, and its task one that keeps no job.
        result = results.read(handle.using, handle.id, self.alias) or results.brief(
            handle.id, task, task.queue_name, TaskResultStatus.READY
        )
        if handle.created:
            on_commit(handle.using, lambda: self._tell(result))
        return result

    def _tell(self, result: AnyResult) -> None:
        task_enqueued.send_robust(sender=type(self), task_result=result)

    def get_result(self, result_id: str) -> AnyResult:
        """The result of a task of this API by the id of its job, wherever that is kept."""
        try:
            job_id = UUID(str(result_id))
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        away: DatabaseTrouble | None = None
        for using in self._databases():
            try:
                found = results.read(using, job_id, self.alias)
            except DatabaseTrouble as problem:  # it may still be in another one
                away = problem
                continue
            if found is not None:
                return found
        raise away or TaskResultDoesNotExist(result_id)

    def _databases(self) -> Iterable[str]:
        from ..operations.storage import alias_of, default_alias

        queues = self.queues or get_settings().queue_databases
        return dict.fromkeys([*map(alias_of, sorted(queues)), default_alias()])

    def check(self, **_: Any) -> list[checks.CheckMessage]:
        return list(self._problems())

    def _problems(self) -> Iterator[checks.CheckMessage]:
        where = f"TASKS[{self.alias!r}]"
        if not apps.is_installed("taskharbor_django"):
            yield checks.Error(
                f"{where} keeps its jobs in the tables of an app that is not installed.",
                hint="Add 'taskharbor_django' to INSTALLED_APPS.",
                id="taskharbor.E010",
            )
        for name in sorted(map(str, self.options.keys() - DECLARED)):
            yield checks.Error(
                f"{where}['OPTIONS'] has an entry {name!r}, which is no option of tasks.",
                hint=f"There are {', '.join(sorted(DECLARED))}.",
                id="taskharbor.E011",
            )
        for name in sorted(filter(lambda it: not is_queue_name(it), self.queues), key=str):
            yield checks.Error(
                f"{where}['QUEUES'] names {shown(name)}, which is no queue name.",
                hint="Use 1 to 128 of A-Z a-z 0-9 _ . : -",
                id="taskharbor.E012",
            )
