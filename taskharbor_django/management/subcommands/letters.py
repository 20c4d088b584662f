"""dlq list, requeue, replay, discard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from django.db.models import Count, Max, QuerySet

from ...lifecycle import DeadReason, JobState
from ...models import DeadLetter
from ...operations import Selection, discard, replay, requeue
from ...operations.storage import default_alias
from ..filters import UsageError, add_filters, add_which, count, cursor, move, seconds, selection_of
from ..output import Output
from .parsing import Adding, Options

COLUMNS = (
    *("job_id", "task", "queue", "reason", "category", "attempts", "died_at"),
    *("fingerprint", "error"),
)
SPARE = ("category", "attempts", "queue", "fingerprint", "died_at")
GROUPED = ("fingerprint", "task", "reason", "error_class", "jobs", "latest")
FINGERPRINT_CHARS = 12  # are enough to tell groups apart, and to name one with --fingerprint


def add(adding: Adding) -> None:
    text = "Dead letters: list, requeue, replay or discard them."
    below = adding.group("dlq", list_letters, text, "list|requeue|replay|discard")
    parser = below.command("list", list_letters, "List dead jobs, the latest first.")
    add_filters(parser, states=False)
    parser.add_argument("--limit", metavar="N", type=count, default=20, help="Letters on a page.")
    parser.add_argument("--after", metavar="CURSOR", type=cursor, help="Go on after the last page.")
    parser.add_argument("--groups", action="store_true", help="Count them by error instead.")
    parser = below.command("requeue", requeue_jobs, "Let dead jobs run again.")
    add_which(parser, states=False)
    parser.add_argument("--to-queue", metavar="NAME", help="Into another queue.")
    parser.add_argument("--delay", metavar="SECONDS", type=seconds, help="Not before this time.")
    parser.add_argument("--one-more", action="store_true", help="One attempt, not all of them.")
    parser.add_argument("--note", default="", help="Why.")
    parser = below.command("replay", replay_jobs, "Make new jobs of dead ones.")
    add_which(parser, states=False)
    parser.add_argument("--note", default="", help="Why.")
    parser = below.command("discard", discard_jobs, "Give dead jobs up.")
    add_which(parser, states=False)
    parser.add_argument("--note", default="", help="Why.")


def list_letters(options: Options, out: Output) -> int:
    which = selection_of(options) if "limit" in options else None
    using = options["database"] or (which.using if which else default_alias())
    letters = (which or Selection(everything=True)).letters(using)
    if not (which and which.reason):
        letters = letters.exclude(reason=DeadReason.DEPENDENCY)  # they belong to their cause
    if options.get("groups"):
        return _groups(letters, options, out)
    if options.get("after") is not None:
        letters = letters.filter(pk__lt=options["after"])
    limit = options.get("limit", 20)
    page = list(letters.order_by("-pk").values_list("pk", *COLUMNS)[: limit + 1])
    after = str(page[limit - 1][0]) if len(page) > limit > 0 else None
    rows = _briefly(COLUMNS, (row[1:] for row in page[:limit]), out)
    out.rows(COLUMNS, rows, after=after, spare=SPARE)
    return 0


def _groups(letters: QuerySet[DeadLetter], options: Options, out: Output) -> int:
    if options["after"] is not None:
        raise UsageError("--groups has one page, the largest first: leave out --after.")
    groups = letters.values("fingerprint", "task", "reason", "error_class").annotate(
        jobs=Count("pk"), latest=Max("died_at")
    )
    limit = options["limit"]
    found = list(groups.order_by("-jobs", "fingerprint").values_list(*GROUPED)[: limit + 1])
    out.rows(GROUPED, _briefly(GROUPED, found[:limit], out))
    if len(found) > limit:
        out.say("\nThere are smaller groups, too: --limit shows more.")
    return 0


def _briefly(
    columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]], out: Output
) -> Iterator[tuple[Any, ...]]:
    """Cut fingerprints for people; programs get all of them."""
    place = columns.index("fingerprint")
    for row in rows:
        mark = row[place] if out.as_json else row[place][:FINGERPRINT_CHARS]
        yield (*row[:place], mark, *row[place + 1 :])


def open_letters(using: str, most: int) -> int:
    """How many dead letters are open, counted up to `most`."""
    return DeadLetter.objects.using(using).filter(open_for__isnull=False)[:most].count()


def requeue_jobs(options: Options, out: Output) -> int:
    wish = {"queue": options["to_queue"], "delay": options["delay"], "note": options["note"]}
    verb = partial(requeue, one_more=options["one_more"], **wish)
    return move(options, out, verb, "requeued", state=JobState.DEAD)


def replay_jobs(options: Options, out: Output) -> int:
    verb = partial(replay, note=options["note"])
    return move(options, out, verb, "replayed", state=JobState.DEAD)


def discard_jobs(options: Options, out: Output) -> int:
    verb = partial(discard, note=options["note"])
    return move(options, out, verb, "discarded", state=JobState.DEAD)
