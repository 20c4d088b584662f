"""The checker itself: silent about a good history, and loud about each way to spoil it."""

from dataclasses import replace
from uuid import uuid4

import pytest

from .history import Facts, Final, Line, Record, Step, late_starts, violations

pytestmark = pytest.mark.quick

JOB, UNDONE = uuid4(), uuid4()


def step(before, after, fence, *counts, **facts):
    names = ("fences", "executions", "attempts", "losses")
    return Step(
        job=JOB,
        before=before,
        after=after,
        fence=fence,
        **dict(zip(names, counts, strict=False)),
        **facts,
    )


def line(mark, fence, at, attempt=None):
    return Line(mark=mark, job=JOB, fence=fence, attempt=attempt or fence, pid=1, at=at)


def good():
    """Enqueued; lost with its first lease; failed; given back; done."""
    facts = Facts(enqueued={JOB}, rolled_back={UNDONE})
    facts.steps[JOB] = [
        step("", "ready", 0),
        step("ready", "inflight", 1, 1, 1, at=10),
        step("inflight", "ready", 1, 0, 0, 0, 1, held_until=20.1, at=20),
        step("ready", "inflight", 2, 1, 1, at=20),
        step("inflight", "scheduled", 2, 0, 0, 1, held_until=30, at=22),
        step("scheduled", "ready", 2, at=23),
        step("ready", "inflight", 3, 1, 1, at=24),
        step("inflight", "ready", 3, 0, -1, held_until=40, at=25),
        step("ready", "inflight", 4, 1, 1, at=26),
        step("inflight", "done", 4, held_until=40, at=28),
    ]
    facts.lines[JOB] = [
        line("START", 1, 10.5),
        line("START", 2, 20.5),
        line("END", 1, 21),  # of a worker that was stopped and went on
        line("START", 4, 26.5, attempt=3),
        line("END", 4, 27.5, attempt=3),
    ]
    facts.rows[JOB].update(facts.lines[JOB])
    facts.records[JOB] = {1: Record(end="lost"), 2: Record(end="failed", category="temporary")}
    facts.jobs[JOB] = Final(
        state="done", fence=4, executions=3, attempts=1, losses=1, max_attempts=2, returned=4
    )
    return facts


def test_a_good_history_is_good():
    assert violations(good()) == []
    assert violations(good(), most_losses=1) == []


def test_what_waits_must_be_allowed_to():
    facts = Facts(enqueued={JOB}, jobs={JOB: Final(state="ready")})
    facts.steps[JOB] = [step("", "ready", 0)]
    assert len(violations(facts)) == 1
    assert violations(facts, waiting=[JOB]) == []


def test_a_lost_run_may_begin_late_where_processes_were_stopped_anywhere():
    facts = good()
    spoil, _ = SPOILERS["a lost run begun later"]
    spoil(facts)
    assert late_starts(facts) == 1
    assert violations(facts, stopped_anywhere=True) == []


def test_any_other_run_may_not():
    facts = good()
    drop("START", 2)(facts)
    sign(line("START", 2, 21.9), line("START", 4, 27, attempt=3))(facts)
    assert "its runs began as" in " ".join(violations(facts, stopped_anywhere=True))


def change(number, **facts):
    """A spoiler that changes one step."""

    def spoil(history):
        history.steps[JOB][number] = replace(history.steps[JOB][number], **facts)

    return spoil


def sign(*lines):
    def spoil(history):
        history.lines[JOB] += lines
        history.rows[JOB].update(lines)

    return spoil


def final(**facts):
    def spoil(history):
        history.jobs[JOB] = replace(history.jobs[JOB], **facts)

    return spoil


def drop(mark, fence):
    def spoil(history):
        gone = [each for each in history.lines[JOB] if (each.mark, each.fence) == (mark, fence)]
        history.lines[JOB] = [each for each in history.lines[JOB] if each not in gone]
        for each in gone:
            del history.rows[JOB][each]

    return spoil


SPOILERS = {
    "its row is gone": (lambda it: it.jobs.clear(), "it is gone"),
    "it is held": (final(state="inflight"), "still inflight"),
    "a lease is left": (lambda it: setattr(it, "leases", 1), "still a lease"),
    "an orphan": (lambda it: it.processes.append("1 python"), "still a process"),
    "a change out of nowhere": (change(3, before="scheduled"), "a change from 'scheduled' came"),
    "a number given twice": (change(3, fence=1), "fencing numbers are"),
    "a number left out": (change(1, fences=2), "no verb makes"),
    "a loss charged on a release": (change(7, losses=1), "no verb makes|do not add up"),
    "a second end": (
        lambda it: it.steps[JOB].append(step("done", "done", 4)),
        "accepted ends are",
    ),
    "ready again": (
        lambda it: it.steps[JOB].append(step("done", "ready", 4)),
        "no verb makes 'done'",
    ),
    "a letter of the living": (lambda it: it.letters.update([JOB]), "open dead letters"),
    "an uncounted execution": (final(executions=4), "do not add up"),
    "an uncounted loss": (final(losses=0), "do not add up"),
    "a loss without a record": (lambda it: it.records[JOB].pop(1), "recorded as"),
    "a failure recorded as lost": (
        lambda it: it.records[JOB].update({2: Record(end="lost")}),
        "recorded as",
    ),
    "rolled back and stored": (
        lambda it: it.jobs.update({UNDONE: Final(state="ready")}),
        "was rolled back, and it is there",
    ),
    "rolled back and moved": (
        lambda it: it.steps.update({UNDONE: [replace(step("", "ready", 0), job=UNDONE)]}),
        "was rolled back, and it is there",
    ),
    "rolled back and run": (
        lambda it: it.lines.update({UNDONE: [replace(line("START", 1, 10), job=UNDONE)]}),
        "was rolled back, and it has signed",
    ),
    "a valid lease taken away": (change(2, held_until=25.0), "was lost at"),
    "a lease taken away a moment too early": (change(2, held_until=20.3), "was lost at"),
    "another holder a moment too early": (change(3, at=19.8), "another was held until"),
    "two holders": (change(2, held_until=25.0), "another was held until"),
    "a holder before the last one gave up": (change(3, at=15.0), "another was held until"),
    "a lease that never was": (change(2, held_until=None), "was lost at"),
    "a run that nobody reserved": (sign(line("START", 5, 29)), "was not reserved"),
    "a run before its reserve": (
        lambda it: (drop("START", 4)(it), sign(line("START", 4, 20, attempt=3))(it)),
        "was not reserved",
    ),
    "another attempt number": (
        lambda it: (drop("START", 4)(it), sign(line("START", 4, 26.5))(it)),
        "was not reserved",
    ),
    "a run begun twice": (sign(line("START", 4, 27, attempt=3)), "its runs began as"),
    "a lost run begun later": (
        lambda it: (drop("START", 1)(it), sign(line("START", 1, 28))(it)),
        "its runs began as",
    ),
    "a failure too many": (
        lambda it: (final(max_attempts=1)(it), change(9, after="dead", attempts=1)(it)),
        "has failed 2 times, and may 1 times",
    ),
    "the result of another run": (final(returned=2), "its result is that of run 2"),
    "the result of a run that was lost": (final(returned=1), "its result is that of run 1"),
    "an ack behind the end of its lease": (change(9, held_until=27.5), "the ack of run 4 came at"),
    "a retry behind the end of its lease": (change(4, held_until=21), "the retry of run 2 came at"),
    "a return behind the end of its lease": (change(7, held_until=24), "the return of run 3 came"),
    "an ack without a lease": (change(9, held_until=None), "the ack of run 4 came without a lease"),
    "accepted and never ended": (drop("END", 4), "was accepted and has signed"),
    "accepted and never begun": (drop("START", 4), "was accepted and has signed"),
    "given back as if it had not begun": (sign(line("START", 3, 24.5)), "given back as if"),
    "a run that went on after its failure": (sign(line("END", 2, 23)), "went on after its retry"),
    "a row that no line knows": (
        lambda it: it.rows[JOB].update([line("END", 2, 21)]),
        "the table has what the file has not",
    ),
    "a row twice": (
        lambda it: it.rows[JOB].update([line("START", 2, 20.5)]),
        "the table has what the file has not",
    ),
    "a row of the accepted run is gone": (
        lambda it: it.rows[JOB].pop(line("END", 4, 27.5, attempt=3)),
        "has lost its END",
    ),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_a_spoilt_history_is_noticed(name):
    spoil, expected = SPOILERS[name]
    facts = good()
    spoil(facts)
    found = violations(facts)
    assert any(part in text for text in found for part in expected.split("|")), found


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([1], "it died of 1 lost leases, and may lose 2"),
        ([1, 2, 3], "it has lost 3 leases, and may lose 2"),
    ],
)
def test_a_job_dies_of_its_last_lease_and_of_none_before(losses, told):
    assert violations(losing([1, 2]), signed=False, most_losses=2) == []
    assert told in " ".join(violations(losing(losses), signed=False, most_losses=2))


def losing(numbers):
    """Each lease that it ever had is lost, and the last of them buries it."""
    facts = Facts(enqueued={JOB})
    facts.steps[JOB] = [step("", "ready", 0)]
    for number in numbers:
        after = "dead" if number == numbers[-1] else "ready"
        facts.steps[JOB] += [
            step("ready", "inflight", number, 1, 1, at=10 * number),
            step(
                "inflight",
                after,
                number,
                0,
                0,
                0,
                1,
                held_until=10 * number + 5,
                at=10 * number + 6,
            ),
        ]
        facts.records[JOB][number] = Record(end="lost")
    count = len(numbers)
    facts.jobs[JOB] = Final(state="dead", fence=count, executions=count, losses=count)
    facts.letters[JOB] = 1
    return facts


def test_only_who_has_no_attempt_left_is_exhausted():
    facts = requeued()
    facts.steps[JOB] = facts.steps[JOB][:3]
    facts.letters[JOB] = 1
    dead = Final(state="dead", fence=1, executions=1, attempts=1, reason="exhausted")
    facts.jobs[JOB] = replace(dead, max_attempts=1)
    assert violations(facts, signed=False) == []
    facts.jobs[JOB] = replace(dead, max_attempts=2)
    assert violations(facts, signed=False) == [
        f"job {JOB}: it is exhausted after 1 of 2 attempts",
    ]


def test_a_slow_line_is_given_more_time():
    facts = good()
    change(2, held_until=20.3)(facts)
    assert violations(facts, slack=0.5) == []


def test_who_stands_in_line_behind_a_lock_settles_later():
    facts = good()
    change(9, held_until=27)(facts)
    assert "the ack of run 4" in " ".join(violations(facts))
    assert violations(facts, in_line=1.0) == []
    assert violations(facts, stopped_anywhere=True) == []


def depending():
    """Waits for another, and is done."""
    facts = Facts(enqueued={JOB}, dependents={JOB})
    facts.steps[JOB] = [
        step("", "blocked", 0),
        step("blocked", "ready", 0, at=9),
        step("ready", "inflight", 1, 1, 1, at=10),
        step("inflight", "done", 1, held_until=40, at=12),
    ]
    facts.jobs[JOB] = Final(state="done", fence=1, executions=1)
    return facts


def test_only_what_waits_for_others_may_be_blocked():
    assert violations(depending(), signed=False) == []
    facts = depending()
    facts.dependents.clear()
    assert "no verb makes '' to 'blocked'" in " ".join(violations(facts, signed=False))


def requeued():
    """Dead after one failure, requeued by a person, done."""
    facts = Facts(enqueued={JOB})
    facts.steps[JOB] = [
        step("", "ready", 0),
        step("ready", "inflight", 1, 1, 1, at=10),
        step("inflight", "dead", 1, 0, 0, 1, held_until=40, at=12),
        step("dead", "ready", 1, 0, 0, -1, at=20),
        step("ready", "inflight", 2, 1, 1, at=24),
        step("inflight", "done", 2, held_until=60, at=28),
    ]
    facts.records[JOB] = {1: Record(end="failed")}
    facts.jobs[JOB] = Final(state="done", fence=2, executions=2)
    return facts


def test_operators_may_revive_what_is_dead_and_nobody_else_may():
    assert violations(requeued(), operators=True, signed=False) == []
    assert "its accepted ends are" in " ".join(violations(requeued(), signed=False))


def test_operators_end_only_what_they_have_touched():
    facts = Facts(enqueued={JOB})
    facts.steps[JOB] = [step("", "ready", 0), step("ready", "dead", 0, at=10)]
    facts.jobs[JOB], facts.letters[JOB] = Final(state="dead"), 1
    assert violations(facts, operators=True, signed=False) == []
    facts.left_alone.add(JOB)
    told = " ".join(violations(facts, operators=True, signed=False))
    assert "no verb makes 'ready' to 'dead'" in told


@pytest.mark.parametrize(
    ("moves", "told"),
    [
        ([step("done", "ready", 2)], "no verb makes 'done' to 'ready'"),
        ([step("done", "cancelled", 2)], "no verb makes 'done' to 'cancelled'"),
        ([step("done", "dead", 2)], "no verb makes 'done' to 'dead'"),
    ],
)
def test_even_operators_change_no_other_end(moves, told):
    facts = requeued()
    facts.steps[JOB] += moves
    assert told in " ".join(violations(facts, operators=True, signed=False))
