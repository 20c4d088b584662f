"""Facts that a caller may have to know. One root; a docstring's first line is the message."""

from __future__ import annotations

from typing import Any


class TaskHarborError(Exception):
    """Something in TaskHarbor went wrong."""

    def __init__(self, message: str = "", /, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


# -- what a caller handed in ------------------------------------------------------------------


class InvalidJob(TaskHarborError, ValueError):
    """The job has a field that cannot be stored."""

    field: str = ""


class InvalidPayload(InvalidJob):
    """An argument cannot be stored."""

    field = "payload"
    argument: str = ""


class PayloadTooLarge(InvalidPayload):
    """The encoded arguments are larger than PAYLOAD_MAX_BYTES."""


class InvalidTask(TaskHarborError, ValueError):
    """The task is declared with options that do not fit."""


class InvalidSchedule(TaskHarborError, ValueError):
    """The schedule is declared with options that do not fit."""


class UnknownTask(TaskHarborError, LookupError):
    """No installed app has registered a task of this name."""


class UnknownSchedule(TaskHarborError, LookupError):
    """There is no schedule of this name."""


class DuplicateJob(TaskHarborError):
    """A job with this id exists already."""


class IdempotencyConflict(TaskHarborError):
    """The idempotency key was used before, with other arguments."""


class TransactionElsewhere(TaskHarborError):
    """The transaction that is open is one of another database than the job's."""

    queue: str = ""
    using: str = ""
    open_in: list[str]


class InvalidWorkflow(TaskHarborError, ValueError):
    """The jobs cannot be made to wait for each other like this."""


class DependencyCycle(InvalidWorkflow):
    """Jobs of the workflow wait for each other in a circle."""


class UnknownDependency(InvalidWorkflow, LookupError):
    """A job that is to be waited for does not exist."""


class TooManyDependencies(InvalidWorkflow):
    """A job names more jobs to wait for than MAX_DEPENDENCIES allows."""


class TooDeep(InvalidWorkflow):
    """A path of dependencies is longer than MAX_DEPTH allows."""


class TooManyJobs(InvalidWorkflow):
    """The workflow has more jobs than WORKFLOW_MAX_JOBS allows."""


# -- what a driver answers --------------------------------------------------------------------


class DriverClosed(TaskHarborError):
    """The driver is closed."""


class InvalidLeaseDuration(TaskHarborError, ValueError):
    """A lease must last longer than zero."""


class JobNotInflight(TaskHarborError):
    """The job is not inflight."""


class JobNotFound(JobNotInflight):
    """There is no job with this id."""


class WorkflowNotFound(TaskHarborError, LookupError):
    """There is no workflow with this id."""


class StaleLease(TaskHarborError):
    """The job is no longer held by the lease that was shown."""


class LeaseExpired(StaleLease):
    """The job's lease has expired."""


class LeaseMismatch(StaleLease):
    """The token shown is not the token of the job's lease."""


class JobLocked(TaskHarborError):
    """Another transaction holds the job's row; nothing was changed, try again."""


class NotSettled(TaskHarborError):
    """What follows the end of the job has failed; nothing was changed, try again."""


# -- what a handle answers --------------------------------------------------------------------


class PayloadCorrupt(TaskHarborError):
    """The stored bytes cannot be decoded."""


class ResultNotReady(TaskHarborError):
    """The job has not ended yet."""


class ResultNotStored(TaskHarborError):
    """The job is done but its result was not stored, or has expired."""


class JobFailed(TaskHarborError):
    """The job is dead; its error is in the dead letter."""


class JobCancelled(TaskHarborError):
    """The job was cancelled."""


# -- what a handler may raise -----------------------------------------------------------------


class TemporaryError(TaskHarborError):
    """Trying again later may help."""

    retry_after: Any

    def __init__(self, message: str = "", /, *, retry_after: Any = None) -> None:
        super().__init__(message, retry_after=retry_after)


class PermanentError(TaskHarborError):
    """Trying again will fail in the same way."""

    code: str

    def __init__(self, message: str = "", /, *, code: str = "") -> None:
        super().__init__(message, code=code)


class Snooze(TaskHarborError):
    """Run this job later; no attempt is counted."""

    delay: Any

    def __init__(self, delay: Any, /) -> None:
        super().__init__(delay=delay)


class CancelRequested(TaskHarborError):
    """The job should stop."""


class JobTimeout(TaskHarborError):
    """The job ran longer than its timeout."""
