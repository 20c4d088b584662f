"""
The life of a job as data: states, moves, what must hold in each state, and the words beside them.

The verbs, the check constraints, the admin's buttons, the diagram in the docs and the tests read
these tables; nothing else lists states or moves.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from django.db.models import TextChoices
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

QUEUE_NAME_PATTERN = r"\A[A-Za-z0-9_.:-]{1,128}\Z"


class JobState(TextChoices):
    BLOCKED = "blocked", _("blocked")
    SCHEDULED = "scheduled", _("scheduled")
    READY = "ready", _("ready")
    INFLIGHT = "inflight", _("running")  # to people: every screen says so
    DONE = "done", _("done")
    DEAD = "dead", _("dead")
    CANCELLED = "cancelled", _("cancelled")


WAITING = frozenset({JobState.BLOCKED, JobState.SCHEDULED, JobState.READY})
ENDED = frozenset({JobState.DONE, JobState.DEAD, JobState.CANCELLED})


class Verb(TextChoices):
    ENQUEUE = "enqueue", _("enqueue")
    ADVANCE = "advance", _("advance")
    PROMOTE = "promote", _("promote")
    RESCHEDULE = "reschedule", _("reschedule")
    RESERVE = "reserve", _("reserve")
    ACK = "ack", _("ack")
    RETRY = "retry", _("retry")
    FAIL = "fail", _("fail")
    RELEASE = "release", _("release")
    RECLAIM = "reclaim", _("reclaim")
    CANCEL = "cancel", _("cancel")
    EXPIRE = "expire", _("expire")
    BURY = "bury", _("bury")
    REQUEUE = "requeue", _("requeue")
    DISCARD = "discard", _("discard")


_B, _S, _R, _I = JobState.BLOCKED, JobState.SCHEDULED, JobState.READY, JobState.INFLIGHT
_DONE, _DEAD, _CANCELLED = JobState.DONE, JobState.DEAD, JobState.CANCELLED

# verb -> {state before (None: no job yet): the states it may move to}
TRANSITIONS: dict[Verb, dict[JobState | None, frozenset[JobState]]] = {
    # A dependency that is already dead or cancelled sends the new job to the matching end.
    Verb.ENQUEUE: {None: frozenset({_B, _S, _R, _DEAD, _CANCELLED})},
    Verb.ADVANCE: {_B: frozenset({_S, _R, _DEAD, _CANCELLED})},
    Verb.PROMOTE: {_S: frozenset({_R})},
    Verb.RESCHEDULE: {_S: frozenset({_R, _S}), _R: frozenset({_S, _R}), _B: frozenset({_B})},
    Verb.RESERVE: {_R: frozenset({_I})},
    Verb.ACK: {_I: frozenset({_DONE})},
    Verb.RETRY: {_I: frozenset({_S, _R, _CANCELLED})},
    Verb.FAIL: {_I: frozenset({_DEAD})},
    Verb.RELEASE: {_I: frozenset({_S, _R, _CANCELLED})},
    Verb.RECLAIM: {_I: frozenset({_R, _DEAD, _CANCELLED})},
    Verb.CANCEL: {state: frozenset({_CANCELLED}) for state in (_B, _S, _R, _I)},
    Verb.EXPIRE: {state: frozenset({_DEAD}) for state in (_B, _S, _R, _I)},
    Verb.BURY: {state: frozenset({_DEAD}) for state in (_B, _S, _R, _I)},
    Verb.REQUEUE: {_DEAD: frozenset({_B, _S, _R})},
    Verb.DISCARD: {_DEAD: frozenset({_CANCELLED})},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Which columns must be empty, set, zero or above zero while a job is in a state."""

    empty: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()


_UNHELD = ("lease", "cancel_requested_at", "finished_at")
_OPEN = ("dependencies_left",)

# Token rules: `done`, and `dead` by `fail`, keep the token that ended them; `cancelled` never has
# one, so that a worker whose token was taken away cannot mistake the end for its own success.
STATE_RULES: dict[JobState, Rule] = {
    JobState.BLOCKED: Rule(empty=_UNHELD, positive=_OPEN),
    JobState.SCHEDULED: Rule(empty=_UNHELD, filled=("run_at",), zero=_OPEN),
    JobState.READY: Rule(empty=_UNHELD, zero=_OPEN),
    JobState.INFLIGHT: Rule(empty=("finished_at",), filled=("lease",), zero=_OPEN),
    JobState.DONE: Rule(filled=("lease", "finished_at"), zero=_OPEN),
    JobState.DEAD: Rule(filled=("finished_at",)),
    JobState.CANCELLED: Rule(empty=("lease",), filled=("finished_at",)),
}


class Priority(enum.IntEnum):
    """The five levels; the value is the stored rank, lower first, from -100 to 100."""

    CRITICAL = -100
    HIGH = -50
    NORMAL = 0
    LOW = 50
    BULK = 100

    @property
    def label(self) -> Promise:
        return _PRIORITIES[self]

    @property
    def level(self) -> int:
        return (self.value + 100) // 50

    @classmethod
    def at_level(cls, level: int) -> Priority:
        return cls(level * 50 - 100)


_PRIORITIES = {
    Priority.CRITICAL: _("critical"),
    Priority.HIGH: _("high"),
    Priority.NORMAL: _("normal"),
    Priority.LOW: _("low"),
    Priority.BULK: _("bulk"),
}
PRIORITY_FIRST, PRIORITY_LAST = -100, 100


class FailureCategory(TextChoices):
    TEMPORARY = "temporary", _("temporary")
    PERMANENT = "permanent", _("permanent")
    TIMEOUT = "timeout", _("timeout")
    CANCELLED = "cancelled", _("cancelled")
    SYSTEM = "system", _("system")


class DeadReason(TextChoices):
    EXHAUSTED = "exhausted", _("all attempts used")
    PERMANENT = "permanent", _("permanent failure")
    LEASE_LOST = "lease_lost", _("lease lost too often")
    LIFETIME = "lifetime", _("lifetime over")
    NO_HANDLER = "no_handler", _("no such task")
    DEPENDENCY = "dependency", _("a dependency died")
    MANUAL = "manual", _("buried by hand")


class OutcomeKind(TextChoices):
    """What a worker reports about a job it held."""

    ACK = "ack", _("ack")
    RETRY = "retry", _("retry")
    FAIL = "fail", _("fail")
    RELEASE = "release", _("release")
    CANCEL = "cancel", _("cancel")


class DependencyKind(TextChoices):
    """What a job waits for in another one."""

    AFTER = "after", _("done")
    AFTER_END = "after_end", _("ended")
    AFTER_ANY = "after_any", _("the first end")


class WorkflowState(TextChoices):
    """How a workflow is: open, or how the worst of its jobs has ended."""

    OPEN = "open", _("open")
    DONE = "done", _("done")
    DEAD = "dead", _("dead")
    CANCELLED = "cancelled", _("cancelled")


class Input(TextChoices):
    """How a job takes the results of those it waited for, before its own arguments."""

    VALUE = "value", _("one result")
    LIST = "list", _("a list of results")


class AttemptEnd(TextChoices):
    """How an attempt ended; a lost one was taken back by reclaim."""

    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    LOST = "lost", _("lost")


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFacts:
    """What another vocabulary needs, beside the stored state, to name it."""

    state: str
    failures: int = 0
    started: bool = False
    reason: str = ""


def _contracts(facts: StateFacts) -> str:
    if facts.state == JobState.SCHEDULED:
        return "retry" if facts.failures else "scheduled"
    if facts.state == JobState.INFLIGHT:
        return "running" if facts.started else "claimed"
    if facts.state == JobState.DEAD:
        return "failed" if facts.reason == DeadReason.PERMANENT else "dlq"
    return {"blocked": "scheduled", "ready": "scheduled", "done": "success"}.get(facts.state, "")


def _gopherqueue(facts: StateFacts) -> str:
    if facts.state == JobState.SCHEDULED:
        return "RETRYING" if facts.failures else "DELAYED"
    if facts.state == JobState.DEAD:
        return "FAILED" if facts.reason == DeadReason.PERMANENT else "DEAD_LETTER"
    return {
        "blocked": "PENDING",
        "ready": "SCHEDULED",
        "inflight": "RUNNING",
        "done": "COMPLETED",
        "cancelled": "CANCELLED",
    }[facts.state]


_TASKHARBOR = {state.value: state.value for state in JobState} | {"dead": "dlq"}
_TASKHARBOR |= {"blocked": "", "cancelled": ""}
_QUEUE_SEMANTICS = {
    "scheduled": "Ready",
    "ready": "Ready",
    "inflight": "InFlight",
    "done": "Succeeded",
    "dead": "Failed",
}

# Other vocabularies for the same life; a state that one of them lacks is the empty string there.
DIALECTS: dict[str, Any] = {
    "taskharbor": lambda facts: _TASKHARBOR[facts.state],
    "contracts": _contracts,
    "queue_semantics": lambda facts: _QUEUE_SEMANTICS.get(facts.state, ""),
    "gopherqueue": _gopherqueue,
}


def state_in(dialect: str, facts: StateFacts) -> str:
    """Name a job's state in another vocabulary."""
    try:
        name = DIALECTS[dialect]
    except KeyError:
        known = ", ".join(sorted(DIALECTS))
        raise ValueError(f"unknown vocabulary {dialect!r}; there are {known}") from None
    return str(name(facts))
