"""
What happened to jobs, from three witnesses that know nothing of each other, and the checker.

Triggers note each change of a job's row, in the transaction that made it. Handlers sign what they
do in an append-only file, and once more in a table. `violations` compares the three with each other
and with what the database says in the end.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from django.db import connection

from taskharbor_django.models import Attempt, DeadLetter, Dependency, Job, Lease
from taskharbor_django.payload import decode_value
from tests.testapp import fault_tasks as tasks
from tests.testapp.models import Move, Trail

ENDED = frozenset({"done", "dead", "cancelled"})
# The clock of a worker is the database's to within half of the time that an answer takes. A test
# that slows the line down says how much more that may be.
SLACK = 0.2
# Between the last line of a handler and the change of its row there is one clock, read twice.
ONE_CLOCK = 0.1
# What these return is the number of the run whose word it is.
RETURN_FENCE = frozenset(
    task.name
    for task in (
        tasks.touch,
        tasks.atouch,
        tasks.touch_apart,
        tasks.hold,
        tasks.ahold,
        tasks.hold_apart,
        tasks.linger,
        tasks.book,
    )
)


# -- the facts -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of a job's row; counters are differences, `fence` is the one after it."""

    job: UUID
    before: str
    after: str
    fence: int
    fences: int = 0
    executions: int = 0
    attempts: int = 0
    losses: int = 0
    held_until: float | None = None
    at: float = 0.0

    @property
    def counts(self):
        return self.fences, self.executions, self.attempts, self.losses


@dataclass(frozen=True, kw_only=True)
class Line:
    """What a handler has signed."""

    mark: str
    job: UUID
    fence: int
    attempt: int
    pid: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Final:
    """A job as it is in the end."""

    state: str
    fence: int = 0
    executions: int = 0
    attempts: int = 0
    losses: int = 0
    max_attempts: int = 0  # 0: without a limit of its own
    returned: int | None = None  # the number of the run whose result is stored
    reason: str = ""  # that of its open dead letter


@dataclass(frozen=True, kw_only=True)
class Record:
    """How a recorded attempt ended."""

    end: str
    category: str = ""


@dataclass(kw_only=True)
class Facts:
    enqueued: set[UUID] = field(default_factory=set)
    rolled_back: set[UUID] = field(default_factory=set)
    dependents: set[UUID] = field(default_factory=set)
    left_alone: set[UUID] = field(default_factory=set)  # nobody but workers may end these
    jobs: dict[UUID, Final] = field(default_factory=dict)
    steps: dict[UUID, list[Step]] = field(default_factory=lambda: defaultdict(list))
    lines: dict[UUID, list[Line]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[UUID, Counter[Line]] = field(default_factory=lambda: defaultdict(Counter))
    records: dict[UUID, dict[int, Record]] = field(default_factory=lambda: defaultdict(dict))
    letters: Counter[UUID] = field(default_factory=Counter)
    leases: int = 0
    processes: list[str] = field(default_factory=list)


# -- the checker ---------------------------------------------------------------------------------

# before, after, and the differences in fence, executions, attempts, losses -> what it was
FATES = {
    ("inflight", "done", 0, 0, 0, 0): "ack",
    ("inflight", "ready", 0, 0, 1, 0): "retry",
    ("inflight", "scheduled", 0, 0, 1, 0): "retry",
    ("inflight", "dead", 0, 0, 1, 0): "fail",
    ("inflight", "ready", 0, 0, 0, 1): "loss",
    ("inflight", "dead", 0, 0, 0, 1): "last loss",
    ("inflight", "ready", 0, 0, 0, 0): "release",
    ("inflight", "scheduled", 0, 0, 0, 0): "release",
    ("inflight", "ready", 0, -1, 0, 0): "return",
    ("inflight", "scheduled", 0, -1, 0, 0): "return",
    ("inflight", "cancelled", 0, 0, 0, 0): "cancel",
    ("inflight", "cancelled", 0, -1, 0, 0): "cancel",
    ("inflight", "cancelled", 0, 0, 1, 0): "last retry",
}
OTHERS = {
    ("", "ready", 0, 0, 0, 0),
    ("", "scheduled", 0, 0, 0, 0),
    ("scheduled", "ready", 0, 0, 0, 0),
    ("ready", "inflight", 1, 1, 0, 0),
    ("ready", "cancelled", 0, 0, 0, 0),
    ("scheduled", "cancelled", 0, 0, 0, 0),
}
RECORDED = {
    "retry": "failed",
    "last retry": "failed",  # somebody had asked to cancel it
    "fail": "failed",
    "loss": "lost",
    "last loss": "lost",
}
LOST = frozenset({"loss", "last loss"})
# What only the holder of a valid lease can say.
SETTLED = frozenset({"ack", "retry", "last retry", "fail", "release", "return"})


# What people, workflows and lifetimes make of a job, without touching what it was charged.
BY_OTHERS = {
    ("", "blocked"),
    ("", "dead"),
    ("", "cancelled"),
    ("blocked", "ready"),
    ("blocked", "scheduled"),
    ("ready", "scheduled"),
    ("dead", "cancelled"),
    *(
        (before, after)
        for before in ("blocked", "scheduled", "ready")
        for after in ENDED - {"done"}
    ),
    ("inflight", "dead"),
}
# What becomes of a job that waits for others.
OF_DEPENDENTS = {
    ("", "blocked"),
    ("blocked", "ready"),
    ("blocked", "scheduled"),
    ("blocked", "dead"),
    ("blocked", "cancelled"),
}
REVIVED = {("dead", after) for after in ("blocked", "scheduled", "ready")}


def fate(step: Step) -> str | None:
    return FATES.get((step.before, step.after, *step.counts))


def of_dependents(step: Step) -> bool:
    """Say whether this is what others that end make of a job that waits for them."""
    return (step.before, step.after) in OF_DEPENDENTS and not any(step.counts)


def by_others(step: Step) -> bool:
    """Say whether this is a move of an operator, a workflow or a lifetime."""
    if (step.before, step.after) in REVIVED:
        return step.fences == step.executions == 0 and step.losses <= 0
    return (step.before, step.after) in BY_OTHERS and not any(step.counts)


def violations(
    facts: Facts,
    waiting: Iterable[UUID] = (),
    *,
    stopped_anywhere: bool = False,
    operators: bool = False,
    signed: bool = True,
    slack: float = SLACK,
    in_line: float = 0.0,
    most_losses: int | None = None,
) -> list[str]:
    """
    Everything that must not have happened; the jobs in `waiting` need not have ended.

    A process that was stopped between its last look at the lease and the first line of a handler
    begins it when it goes on. Nothing prevents that, but its run may not count. With `operators`,
    people have cancelled, requeued and discarded, lifetimes have run out, workflows gone on.
    Where no handler ran, nothing was `signed`. Clocks agree within `slack` seconds; between the
    instant for which a worker settles and the change of the row it may stand `in_line`, behind a
    lock, for so many. A job may lose `most_losses` leases.
    """
    found = [f"there is still a lease ({facts.leases})"] if facts.leases else []
    found += [f"there is still a process: {process}" for process in facts.processes]
    waiting = set(waiting)
    found += [f"job {job}: {text}" for job in facts.rolled_back for text in _undone(facts, job)]
    known = {*facts.enqueued, *facts.jobs, *facts.steps, *facts.lines} - facts.rolled_back
    for job in sorted(known, key=str):
        told = [
            *_lost(facts, job, waiting),
            *_illegal_steps(facts, job, operators=operators),
            *_ends(facts, job, operators=operators),
            *_numbers(facts, job, operators=operators),
            *_limits(facts, job, most_losses),
            *_settled_late(facts.steps[job], slack + in_line, stopped_anywhere=stopped_anywhere),
            *_losses(facts.steps[job], slack),
            *_holders(facts.steps[job], slack),
            *_order(facts, job, stopped_anywhere=stopped_anywhere),
            *(_signatures(facts, job, slack) if signed else ()),
            *_results(facts, job),
            *_overlaps(facts, job),
            *_rows(facts, job),
        ]
        found += [f"job {job}: {text}" for text in told]
    return found


def _lost(facts, job, waiting):
    """I1: whatever was enqueued is there, and has ended or waits as it may."""
    final = facts.jobs.get(job)
    if final is None:
        yield "it is gone"
    elif final.state == "inflight":
        yield "it is still inflight"
    elif final.state not in ENDED and job not in waiting:
        yield f"it has not ended but is {final.state}"


def _undone(facts, job):
    """I2: of an enqueue that was rolled back there is nothing, and nobody ever ran it."""
    if facts.jobs.get(job) or facts.steps.get(job):
        yield "its enqueue was rolled back, and it is there"
    if facts.lines.get(job):
        yield f"its enqueue was rolled back, and it has signed {facts.lines[job]}"


def _illegal_steps(facts, job, *, operators):
    """Each change begins where the last one ended, and is one of those that there are."""
    state = ""
    for step in facts.steps[job]:
        if step.before != state:
            yield f"a change from {step.before!r} came when it was {state!r}"
        known = fate(step) is not None or (step.before, step.after, *step.counts) in OTHERS
        known |= job in facts.dependents and of_dependents(step)
        known |= operators and by_others(step) and not _ends_untouched(facts, job, step)
        if not known:
            yield f"no verb makes {step.before!r} to {step.after!r} with counts {step.counts}"
        state = step.after


def _ends_untouched(facts, job, step):
    return job in facts.left_alone and step.after in ENDED


def _ends(facts, job, *, operators):
    """I3: exactly one accepted end, with one open dead letter if that is what it was."""
    final = facts.jobs.get(job)
    ends = [step.after for step in facts.steps[job] if step.after in ENDED]
    if operators:  # a dead job may be revived or given up; the other ends are for good
        ends = ends[-1:] if "dead" in ends[-1:] else [it for it in ends if it != "dead"]
        if final and final.state not in ENDED and ends == ["dead"]:
            ends = []
    expected = [final.state] if final and final.state in ENDED else []
    if ends != expected:
        yield f"its accepted ends are {ends}, and not {expected}"
    if facts.letters[job] != (expected == ["dead"]):
        yield f"it has {facts.letters[job]} open dead letters"


def _numbers(facts, job, *, operators):
    """I4, I7: fencing numbers rise by one; counters and attempts add up with the history."""
    steps, final = facts.steps[job], facts.jobs.get(job)
    reserved = [step.fence for step in steps if step.fences]
    if reserved != list(range(1, len(reserved) + 1)):
        yield f"its fencing numbers are {reserved}"
    sums = tuple(map(sum, zip(*(step.counts for step in steps), strict=True))) or (0, 0, 0, 0)
    if final and sums != (final.fence, final.executions, final.attempts, final.losses):
        yield f"its counters {final} do not add up with its history {sums}"
    ends = [step for step in steps if step.before == "inflight"]
    allowed = {step.fence: _may_be_recorded(step, operators=operators) for step in ends}
    recorded = {fence: record.end for fence, record in facts.records[job].items()}
    for fence in sorted(allowed.keys() | recorded.keys()):
        may_be = allowed.get(fence, {None})
        if (end := recorded.get(fence)) not in may_be:
            yield f"the attempt of run {fence} is recorded as {end}, and may be {may_be}"


def _limits(facts, job, most_losses):
    """I7: nothing is tried, or taken back, more often than it may be; a dead letter says why."""
    final = facts.jobs.get(job)
    if final is None:
        return
    attempts = losses = 0
    for step in facts.steps[job]:
        attempts, losses = attempts + step.attempts, losses + step.losses
        if 0 < final.max_attempts < attempts:
            yield f"it has failed {attempts} times, and may {final.max_attempts} times"
        if most_losses is not None and losses > most_losses:
            yield f"it has lost {losses} leases, and may lose {most_losses}"
        if fate(step) == "last loss" and most_losses not in (None, losses):
            yield f"it died of {losses} lost leases, and may lose {most_losses}"
    if final.reason == "exhausted" and final.attempts < final.max_attempts:
        yield f"it is exhausted after {final.attempts} of {final.max_attempts} attempts"


def _settled_late(steps, allowed, *, stopped_anywhere):
    """I5: who settles holds a lease, and a valid one."""
    for step in steps:
        if fate(step) not in SETTLED:
            continue
        if step.held_until is None:
            yield f"the {fate(step)} of run {step.fence} came without a lease"
        # Who is stopped between its last word and the send of it is late, and no less right.
        elif step.at > step.held_until + allowed and not stopped_anywhere:
            yield f"the {fate(step)} of run {step.fence} came at {step.at}, held {step.held_until}"


def _may_be_recorded(step, *, operators):
    """How the attempt that ends with this change may be recorded; None when it is not."""
    how = fate(step) or ""
    if operators and (step.before, step.after) == ("inflight", "dead") and not how:
        # Of a lifetime that is over the worker learns before it begins, or from others.
        return {"failed", "lost"}
    if how == "cancel":
        # By its worker, or by force, or when it was taken back and somebody had asked to cancel it.
        over = step.held_until is not None and step.held_until <= step.at
        return {"lost"} if over and not operators else {None, "lost"}
    return {RECORDED.get(how)}


def _losses(steps, slack):
    """I4: a job is taken back only when its lease has expired."""
    for step in steps:
        if fate(step) in LOST and (step.held_until is None or step.held_until > step.at + slack):
            yield f"the lease {step.fence} was lost at {step.at}, held until {step.held_until}"


def _holders(steps, slack):
    """I4: nobody gets a job while the lease of another is valid."""
    valid_until = float("-inf")
    for step in steps:
        if step.fences and step.at < valid_until - slack:
            yield f"the lease {step.fence} began at {step.at}, another was held until {valid_until}"
        if step.before == "inflight":
            # Whoever settles gives its lease up; of whom it is taken, its lease has to be over.
            valid_until = step.held_until if fate(step) in LOST and step.held_until else step.at


def _order(facts, job, *, stopped_anywhere):
    """Handlers began in the order in which the database gave out numbers, each once."""
    fences = [line.fence for line in facts.lines[job] if line.mark == "START"]
    lost = {step.fence for step in facts.steps[job] if fate(step) in LOST}
    ordered = [fence for fence in fences if not (stopped_anywhere and fence in lost)]
    if ordered != sorted(ordered) or len(fences) > len(set(fences)):
        yield f"its runs began as {fences}"


def late_starts(facts: Facts) -> int:
    """How many runs began after another one of their job had."""
    count = 0
    for lines in facts.lines.values():
        fences = [line.fence for line in lines if line.mark == "START"]
        count += sum(fence < max(fences[: at + 1]) for at, fence in enumerate(fences))
    return count


def _signatures(facts, job, slack):
    """Handlers ran under the numbers that the database gave out, and fully."""
    starts = [line for line in facts.lines[job] if line.mark == "START"]
    given, executions = {}, 0
    for step in facts.steps[job]:
        executions += step.executions
        if step.fences:
            given[step.fence] = executions, step.at
    for line in starts:
        attempt, at = given.get(line.fence, (None, 0.0))
        if line.attempt != attempt or line.at < at - slack:
            yield f"its run {line} was not reserved as such ({attempt}, {at})"
    marks = defaultdict(list)
    for line in facts.lines[job]:
        marks[line.fence].append(line.mark)
    for step in facts.steps[job]:
        if fate(step) == "ack" and (marks[step.fence][:1], marks[step.fence][-1:]) != (
            ["START"],
            ["END"],
        ):
            yield f"its run {step.fence} was accepted and has signed {marks[step.fence]}"
        if fate(step) == "return" and marks[step.fence]:
            yield f"its run {step.fence} began, and was given back as if it had not"


def _results(facts, job):
    """I5: the result that is stored is that of the accepted run."""
    final = facts.jobs.get(job)
    accepted = [step.fence for step in facts.steps[job] if fate(step) == "ack"]
    if final and final.returned is not None and [final.returned] != accepted[-1:]:
        yield f"its result is that of run {final.returned}, and accepted was {accepted}"


def _overlaps(facts, job):
    """I4: a run is over before its job is anybody else's, unless its lease was lost."""
    last = {line.fence: line for line in facts.lines[job]}
    for step in facts.steps[job]:
        line, how = last.get(step.fence), fate(step)
        if how is None or line is None or how in LOST or how == "cancel":
            continue
        if facts.records[job].get(step.fence, Record(end="")).category == "timeout":
            continue  # a thread that would not stop was left behind
        if line.at > step.at + ONE_CLOCK:
            yield f"its run {step.fence} went on after its {how} ({line.mark})"


def _rows(facts, job):
    """The table has nothing that the file has not, and all of an accepted run."""
    lines, rows = Counter(facts.lines[job]), facts.rows[job]
    if rows - lines:
        yield f"the table has what the file has not: {list(rows - lines)}"
    accepted = {step.fence for step in facts.steps[job] if fate(step) == "ack"}
    stored = {(row.fence, row.mark) for row in rows}
    for line in lines:
        signed = line.fence in accepted and line.mark in {"START", "END"}
        if signed and (line.fence, line.mark) not in stored:
            yield f"the accepted run {line.fence} has lost its {line.mark}"


# -- where the facts come from -------------------------------------------------------------------

_INTO = """
INSERT INTO testapp_move (job, {before}, {after}, fence, fences, executions, attempts, losses,
                          held_until, at)
"""
_INSERTED = """
NEW.id, '', NEW.state, NEW.lease_version, NEW.lease_version, NEW.executions, NEW.attempts,
NEW.lease_losses, NULL, {now}
"""
_DELETED = "OLD.id, OLD.state, '', OLD.lease_version, 0, 0, 0, 0, NULL, {now}"
_UPDATED = """
NEW.id, OLD.state, NEW.state, NEW.lease_version, NEW.lease_version - OLD.lease_version,
NEW.executions - OLD.executions, NEW.attempts - OLD.attempts,
NEW.lease_losses - OLD.lease_losses,
(SELECT {expiry} FROM taskharbor_lease WHERE token = OLD.lease), {now}
"""
_CHANGED = """
OLD.state <> NEW.state OR OLD.lease_version <> NEW.lease_version
OR OLD.executions <> NEW.executions OR OLD.attempts <> NEW.attempts
OR OLD.lease_losses <> NEW.lease_losses OR {lease_changed}
"""

_WORDS = {
    "postgresql": {
        "now": "EXTRACT(EPOCH FROM clock_timestamp())",
        "expiry": "EXTRACT(EPOCH FROM expires_at)",
        "lease_changed": "OLD.lease IS DISTINCT FROM NEW.lease",
    },
    "sqlite": {
        "now": "(julianday('now') - 2440587.5) * 86400.0",
        "expiry": "(julianday(expires_at) - 2440587.5) * 86400.0",
        "lease_changed": "OLD.lease IS NOT NEW.lease",
    },
    "mysql": {
        "now": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6",
        "expiry": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at) / 1e6",
        "lease_changed": "NOT (OLD.lease <=> NEW.lease)",
    },
}
EVENTS = {"insert": _INSERTED, "update": _UPDATED, "delete": _DELETED}


def _statement(event):
    quote = connection.ops.quote_name
    into = _INTO.format(before=quote("before"), after=quote("after"))
    return into, EVENTS[event].format(**_WORDS[connection.vendor])


def _make_trigger(event):
    into, values = _statement(event)
    changed = _CHANGED.format(**_WORDS[connection.vendor]) if event == "update" else ""
    head = f"CREATE TRIGGER faults_{event} AFTER {event} ON taskharbor_job FOR EACH ROW"
    if connection.vendor == "postgresql":
        yield f"""
            CREATE OR REPLACE FUNCTION faults_{event}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN {into} VALUES ({values}); RETURN NULL; END $$
        """
        when = f"WHEN ({changed})" if changed else ""
        yield f"{head} {when} EXECUTE FUNCTION faults_{event}()"
    elif connection.vendor == "sqlite":
        when = f"WHEN {changed}" if changed else ""
        yield f"{head} {when} BEGIN {into} VALUES ({values}); END"
    else:
        where = f"WHERE {changed}" if changed else ""
        yield f"{head} {into} SELECT {values} FROM DUAL {where}"


def _drop_trigger(event):
    on = " ON taskharbor_job" if connection.vendor == "postgresql" else ""
    return f"DROP TRIGGER IF EXISTS faults_{event}{on}"


@contextmanager
def noted():
    """Let triggers note each change of a job inside the block."""
    with connection.cursor() as cursor:
        for event in EVENTS:
            cursor.execute(_drop_trigger(event))
            for statement in _make_trigger(event):
                cursor.execute(statement)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            for event in EVENTS:
                cursor.execute(_drop_trigger(event))


_READ = (
    "pk",
    "task",
    "state",
    "lease_version",
    "executions",
    "attempts",
    "lease_losses",
    "max_attempts",
    "result",
)


def _final(job, reason):
    returned = None
    if job["task"] in RETURN_FENCE and job["result"]:  # empty once it is erased
        returned = decode_value(bytes(job["result"]))
    return Final(
        state=job["state"],
        fence=job["lease_version"],
        executions=job["executions"],
        attempts=job["attempts"],
        losses=job["lease_losses"],
        max_attempts=job["max_attempts"],
        returned=returned,
        reason=reason,
    )


class History:
    """The history of the jobs of one test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.enqueued: set[UUID] = set()
        self.rolled_back: set[UUID] = set()
        self.left_alone: set[UUID] = set()

    @property
    def environment(self) -> dict[str, str]:
        return {"TASKHARBOR_TRAIL": str(self.path)}

    def enqueue(self, task, *args, **kwargs):
        handle = task.enqueue(*args, **kwargs)
        self.enqueued.add(handle.id)
        return handle

    def lines(self, mark=None, job=None):
        """What handlers have signed in the file, in its order."""
        text = self.path.read_text("ascii") if self.path.exists() else ""
        told = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        lines = [Line(**facts | {"job": UUID(facts["job"])}) for facts in told]
        lines = [line for line in lines if mark in (None, line.mark)]
        return [line for line in lines if job in (None, line.job)]

    def processes(self):
        """All living processes that have come from the test's workers, whatever they became."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment = (path / "environ").read_bytes().split(b"\0")
                if f"TASKHARBOR_TRAIL={self.path}".encode() in environment:
                    found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it has just ended, or is somebody else's
                continue
        found.pop(os.getpid(), None)
        return found

    def facts(self):
        facts = Facts(enqueued=set(self.enqueued), rolled_back=set(self.rolled_back))
        facts.left_alone.update(self.left_alone)
        facts.leases = Lease.objects.count()
        facts.dependents.update(Dependency.objects.values_list("job", flat=True))
        for move in Move.objects.order_by("pk").values():
            del move["id"]
            facts.steps[move["job"]].append(Step(**move))
        for line in self.lines():
            facts.lines[line.job].append(line)
        for row in Trail.objects.order_by("pk").values():
            del row["id"]
            facts.rows[row["job"]][Line(**row)] += 1
        letters = DeadLetter.objects.exclude(open_for=None)
        reasons = dict(letters.values_list("open_for", "reason"))
        for job in Job.objects.values(*_READ):
            facts.jobs[job["pk"]] = _final(job, reasons.get(job["pk"], ""))
        for row in Attempt.objects.values_list("job", "lease_version", "end", "category"):
            facts.records[row[0]][row[1]] = Record(end=row[2], category=row[3])
        facts.letters.update(letters.values_list("open_for", flat=True))
        facts.processes = [f"{pid} {command}" for pid, command in self.processes().items()]
        return facts

    def check(self, *, waiting=(), **options):
        """After the last graceful stop: raise what must not have happened."""
        facts = self.facts()
        found = violations(facts, [getattr(job, "id", job) for job in waiting], **options)
        assert not found, self.tell(found, facts)

    def tell(self, found, facts=None):
        """What was found, and all that is known of the first jobs that it is about."""
        return "\n".join([*found[:50], *self._tell(facts or self.facts(), found[:3])])

    def _tell(self, facts, found):
        for job in {UUID(text.split()[1].rstrip(":")) for text in found if text.startswith("job ")}:
            yield f"-- {job}: {facts.jobs.get(job)} {facts.records[job]}"
            yield from (f"   {step}" for step in facts.steps[job])
            yield from (f"   {line}" for line in facts.lines[job])
