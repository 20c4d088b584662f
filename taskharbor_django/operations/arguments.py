"""What a job was called with, by the names of its parameters: a secret is known by its name."""

from __future__ import annotations

from inspect import Parameter
from typing import Any

from ..models import Job
from ..tasks import registry


def by_name(job: Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments by name; None where no task is known that they fit."""
    if not args:
        return kwargs
    try:
        signature = registry.get(job.task).signature
        parameters = list(signature.parameters.values())
        # What a job takes from others is put first by the worker, and is not among its arguments.
        if job.input and parameters[0].kind != Parameter.VAR_POSITIONAL:
            del parameters[0]
        fitted = signature.replace(parameters=parameters)
        return dict(fitted.bind_partial(*args, **kwargs).arguments)
    except (LookupError, TypeError, ValueError):
        return None
