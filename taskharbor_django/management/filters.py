"""Which jobs a command is meant for: ids, or the same filters that the admin has."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from ..exceptions import InvalidJob
from ..lifecycle import DeadReason, FailureCategory, JobState
from ..models import DeadLetter, Job
from ..operations import Moved, Selection
from ..operations.schedules import find
from ..operations.storage import alias_of, default_alias
from ..values import as_duration
from .output import Output

STEP = 500
SHORTEST = 4  # characters of a fingerprint that are enough, when they begin only one
MOST_NAMED = 5

# option -> (placeholder, help)
_TEXTS = {
    "queue": ("NAME", "Jobs of this queue."),
    "task": ("NAME", "Jobs of this task."),
    "correlation-id": ("ID", "Jobs with this correlation id."),
    "fingerprint": ("HASH", "Dead jobs of this group of errors; its beginning will do."),
    "error-class": ("NAME", "Dead jobs with this class of error."),
}
_IDS = {
    "workflow": "Jobs of this workflow.",
    "parent": "Jobs that this one has enqueued.",
    "replay-of": "Replays of this job.",
}
_OTHERS = ("schedule", "priority", "state", "reason", "category", "died-from", "died-until")


class UsageError(CommandError):
    """The command line says what cannot be meant."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, returncode=2)


def add_filters(parser: CommandParser, *, states: bool = True) -> None:
    for name, (placeholder, text) in _TEXTS.items():
        parser.add_argument(f"--{name}", metavar=placeholder, help=text)
    for name, text in _IDS.items():
        parser.add_argument(f"--{name}", metavar="ID", type=UUID, help=text)
    parser.add_argument("--schedule", metavar="NAME", help="Jobs of this schedule.")
    parser.add_argument("--priority", metavar="RANK", type=int, help="Jobs of this rank.")
    parser.add_argument(
        "--tag", metavar="KEY=VALUE", action="append", help="Jobs with this tag; may be repeated."
    )
    if states:
        text = "Jobs in this state; running is another word for inflight."
        parser.add_argument("--state", type=state, choices=JobState.values, help=text)
    parser.add_argument("--reason", choices=DeadReason.values, help="Dead for this reason.")
    parser.add_argument("--category", choices=FailureCategory.values, help="Failed in this way.")
    parser.add_argument("--died-from", metavar="TIME", type=moment, help="Dead since then.")
    parser.add_argument("--died-until", metavar="TIME", type=moment, help="Dead until then.")


def add_which(parser: CommandParser, *, states: bool = True) -> None:
    """Ids or a filter, for a verb that changes jobs."""
    parser.add_argument("ids", nargs="*", metavar="ID", type=UUID, help="Jobs, by id.")
    add_filters(parser, states=states)
    parser.add_argument("--all", action="store_true", help="All jobs; alone, instead of a filter.")
    parser.add_argument("--dry-run", action="store_true", help="Only say how many match.")


def selection_of(options: dict[str, Any], **fixed: Any) -> Selection | None:
    """The filter of the command line; None when it names none."""
    given = {name.replace("-", "_"): options.get(name.replace("-", "_")) for name in _TEXTS}
    given |= {name.replace("-", "_"): options.get(name.replace("-", "_")) for name in _IDS}
    for name in ("priority", "state", "reason", "category", "died_from", "died_until"):
        given[name] = options.get(name)
    if options.get("schedule") == "":
        raise UsageError("schedule: is empty; leave it out to select any")
    if options.get("schedule") is not None:
        given["schedule"] = find(options["schedule"], using=_home(options)).pk
    if options.get("tag"):
        given["tags"] = dict(_tag(text) for text in options["tag"])
    if given["fingerprint"]:
        given["fingerprint"] = _whole_fingerprint(given["fingerprint"], options)
    asked = {name: value for name, value in given.items() if value is not None}
    if options.get("all") and asked:
        raise UsageError("--all means every job: leave it out, or leave out the filter.")
    if not asked and not options.get("all"):
        return None
    try:
        return Selection(**asked | fixed, everything=bool(options.get("all")))
    except InvalidJob as problem:
        raise UsageError(str(problem)) from problem


def _home(options: dict[str, Any]) -> str:
    """The database that the filter looks into: the one that is named, or that of its queue."""
    queue = options.get("queue")
    named: str | None = options.get("database")
    return named or (alias_of(queue) if queue else default_alias())


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--tag must be KEY=VALUE, not {text!r}.")
    return key, value


def _whole_fingerprint(begin: str, options: dict[str, Any]) -> str:
    """The one fingerprint among the open dead letters that begins so; itself if there is none."""
    if len(begin) < SHORTEST:
        raise UsageError(f"--fingerprint: give at least {SHORTEST} characters, not {begin!r}.")
    letters = DeadLetter.objects.using(_home(options)).filter(open_for__isnull=False)
    alike = letters.filter(fingerprint__startswith=begin.lower()).values_list("fingerprint")
    found = [mark for (mark,) in alike.order_by("fingerprint").distinct()[: MOST_NAMED + 1]]
    if len(found) > 1:
        named = ", ".join(found[:MOST_NAMED]) + (", ..." if found[MOST_NAMED:] else "")
        raise UsageError(f"--fingerprint {begin} begins more than one: {named}.")
    return found[0] if found else begin


def move(
    options: dict[str, Any], out: Output, verb: Callable[..., Moved], done: str, **fixed: Any
) -> int:
    """Run a verb over what the command line names; 1 when it moved nothing."""
    which = selection_of(options, **fixed)
    if bool(options["ids"]) == (which is not None):
        raise UsageError("Name jobs by their ids, or by a filter; --all means every job.")
    if which is None:
        named = Job.objects.using(options["database"] or default_alias())
        jobs = named.filter(pk__in=options["ids"], **fixed)
    else:
        jobs = which.jobs(options["database"])
    matching = jobs.count()
    if options["dry_run"]:
        out.facts({"would be " + done: matching})
    else:
        total = _over(options, out, verb, which, matching)
        out.facts(_counts(done, total, out))
    if not matching:
        out.say(_nothing(options, fixed))
    elif options["dry_run"] or total.moved or total.asked:
        return 0
    return 1


def _counts(done: str, total: Moved, out: Output) -> dict[str, Any]:
    if out.as_json:
        return {done: total.moved, "asked": total.asked, "left": dict(total.left)}
    counts: dict[str, Any] = {done: total.moved}
    if total.asked:
        counts["asked to stop"] = total.asked
    return counts | {f"left, {reason}": count for reason, count in total.left.items()}


def _nothing(options: dict[str, Any], fixed: dict[str, Any]) -> str:
    """Say that nothing matches, in the words of the command line."""
    given = [
        f"--{name} {options[name.replace('-', '_')]}"
        for name in (*_TEXTS, *_IDS, *_OTHERS)
        if options.get(name.replace("-", "_")) is not None
    ]
    given += [f"--tag {text}" for text in options.get("tag") or ()]
    kind = "dead job" if fixed.get("state") == JobState.DEAD else "job"
    if options["ids"]:
        return f"No {kind} has {'this id' if len(options['ids']) == 1 else 'one of these ids'}."
    return f"No {kind} matches {' '.join(given)}." if given else f"There is no {kind}."


def _over(
    options: dict[str, Any],
    out: Output,
    verb: Callable[..., Moved],
    which: Selection | None,
    matching: int,
) -> Moved:
    if which is None:
        return verb(options["ids"], using=options["database"])
    total = Moved()
    while True:
        part = verb(which, using=options["database"], limit=STEP, after=total.after)
        total += part
        out.progress(total.seen, matching)
        if part.after is None:
            out.end_progress()
            return total


# -- values --------------------------------------------------------------------------------------


def moment(text: str) -> datetime:
    """Read a time: ISO 8601, in the project's time zone unless it has one."""
    try:
        if read := parse_datetime(text):
            return (make_aware(read) if is_naive(read) else read).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-05-17T09:30")


def state(text: str) -> str:
    """Read a state; people say running where the state is called inflight."""
    return JobState.INFLIGHT.value if text == "running" else text


def seconds(text: str) -> timedelta:
    try:
        return as_duration(float(text))
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: {problem}") from None


def cursor(text: str) -> int:
    if not text.isdecimal() or len(text) > 19 or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no cursor of this list")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal() or len(text) > 6 or int(text) > 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 100,000")
    return int(text)
