"""
A model of the lease: one job, a few workers, and every order in which things can happen.

`explore` walks through all states that a protocol can reach, breadth first, and returns the first
(so the shortest) story that breaks an invariant. Each field of `Protocol` is one rule of the real
one; a protocol without it must break, or the model proves nothing about that rule.

A worker that was stopped needs no action of its own: whoever holds a token may act at any later
time. What a transaction looks at first and does later is two actions, with any others in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

LEASE = 2  # ticks
ENDED = ("done", "dead", "cancelled")
ENDS = {"ack": "done", "fail": "dead", "retry": "ready"}


@dataclass(frozen=True)
class Protocol:
    """The rules; each can be left out."""

    settle_checks_token: bool = True
    settle_checks_state: bool = True
    settle_checks_expiry: bool = True
    claim_checks_state: bool = True
    reclaim_checks_under_lock: bool = True
    forced_cancel_takes_token: bool = True
    reserve_raises_number: bool = True
    sweep_finds_orphans: bool = True


@dataclass(frozen=True)
class Bounds:
    """How far to look."""

    workers: int = 2
    reserves: int = 3
    answers_lost: bool = True
    rows_lost: bool = True


class Hold(NamedTuple):
    """What a worker was given, and believes to have still."""

    token: int
    number: int


class State(NamedTuple):
    job: str = "ready"
    lease: int = 0  # the token on the job's row
    number: int = 0  # the fencing number
    cancel_asked: bool = False
    leases: tuple[tuple[int, int], ...] = ()  # lease rows: token, ticks left
    reserves: int = 0
    holds: tuple[Hold | None, ...] = (None, None)
    picks: tuple[bool, ...] = (False, False)  # who has seen the job ready, and will claim it
    beats: tuple[bool, ...] = (False, False)  # whose heartbeat was sent in time, and will arrive
    seen_expired: int = 0  # the token that a reclaim has seen, and will take back
    ended_by: int = 0  # the token whose call ended the job
    lease_lost: bool = False  # a lease row was dropped from outside, which happens once
    broken: str = ""  # what must not have happened

    def left(self, token: int) -> int:
        """How long the lease with this token is valid; 0 when it has expired or is gone."""
        return dict(self.leases).get(token, 0)

    @property
    def valid(self) -> int:
        """The one token that may move the job, 0 when there is none."""
        return self.lease if self.job == "inflight" and self.left(self.lease) else 0


Step = tuple[str, State]


def start(bounds: Bounds) -> State:
    nobody = (False,) * bounds.workers
    return State(holds=(None,) * bounds.workers, picks=nobody, beats=nobody)


def at(values: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


# -- the actions -----------------------------------------------------------------------------------


def steps(state: State, rules: Protocol, bounds: Bounds) -> Iterator[Step]:
    """Everything that may happen next."""
    yield from _time(state)
    yield from _reclaim(state, rules, bounds)
    yield from _operator(state, rules)
    for worker in range(bounds.workers):
        yield from _reserve(state, rules, bounds, worker)
        if state.holds[worker]:
            yield from _heartbeat(state, worker)
            yield from _settle(state, rules, bounds, worker)


def _time(state: State) -> Iterator[Step]:
    if any(left for _, left in state.leases):
        yield "a tick", state._replace(leases=tuple((t, max(0, n - 1)) for t, n in state.leases))


def _reserve(state: State, rules: Protocol, bounds: Bounds, worker: int) -> Iterator[Step]:
    if state.picks[worker]:
        state = state._replace(picks=at(state.picks, worker, False))
        if state.job != "ready" and rules.claim_checks_state:
            yield f"worker {worker} finds nothing to claim", state
            return
        if state.reserves < bounds.reserves:
            yield f"worker {worker} claims", _claimed(state, rules, worker)
    elif state.job == "ready" and state.holds[worker] is None:
        yield (
            f"worker {worker} sees the job ready",
            state._replace(picks=at(state.picks, worker, True)),
        )


def _claimed(state: State, rules: Protocol, worker: int) -> State:
    if state.valid:
        return state._replace(broken="a job was given out while a lease of it was valid")
    if state.job in ENDED:
        return state._replace(broken="an ended job was given out")
    token, number = state.reserves + 1, state.number + rules.reserve_raises_number
    if number <= state.number:
        return state._replace(broken="the fencing number did not rise")
    return state._replace(
        job="inflight",
        lease=token,
        number=number,
        leases=(*state.leases, (token, LEASE)),
        reserves=token,
        holds=at(state.holds, worker, Hold(token, number)),
    )


def _heartbeat(state: State, worker: int) -> Iterator[Step]:
    token = state.holds[worker].token
    known = token in dict(state.leases)
    covers = state.job == "inflight" and state.lease == token
    if known and covers and not state.beats[worker]:
        if state.left(token):
            sent = state._replace(beats=at(state.beats, worker, True))
            yield f"worker {worker} sends a heartbeat", sent
    elif known and covers:
        # By the time it was sent at: the lease may have expired on the way, and stands again.
        renewed = tuple((t, LEASE if t == token else left) for t, left in state.leases)
        arrived = state._replace(leases=renewed, beats=at(state.beats, worker, False))
        yield f"the heartbeat of worker {worker} arrives", arrived
    elif known and not covers:
        rest = tuple(row for row in state.leases if row[0] != token)
        yield f"worker {worker} removes the empty lease {token}", state._replace(leases=rest)
    else:
        yield f"worker {worker} learns that it lost", _let_go(state, worker)


def _let_go(state: State, worker: int) -> State:
    return state._replace(holds=at(state.holds, worker, None), beats=at(state.beats, worker, False))


def accepts(state: State, rules: Protocol, hold: Hold) -> bool:
    """Whether a settle with this token would move the job."""
    if rules.settle_checks_state and state.job != "inflight":
        return False
    if rules.settle_checks_expiry and not state.left(state.lease):
        return False
    if not rules.settle_checks_token:
        return True
    return (state.lease, state.number) == (hold.token, hold.number)


def _settle(state: State, rules: Protocol, bounds: Bounds, worker: int) -> Iterator[Step]:
    hold = state.holds[worker]
    if not accepts(state, rules, hold):
        # Told apart from a refusal: its own call that had ended the job, the answer lost.
        mistaken = state.job in ENDED and state.lease == hold.token != state.ended_by
        told = "a worker took the end that another made for its own" if mistaken else ""
        yield f"worker {worker} is refused", _let_go(state._replace(broken=told), worker)
        return
    for kind in ENDS:
        moved = _moved(state, hold, kind)
        yield f"worker {worker} settles: {kind}", _let_go(moved, worker)
        if bounds.answers_lost:
            yield f"worker {worker} settles: {kind}, and the answer is lost", moved


def _moved(state: State, hold: Hold, kind: str) -> State:
    if state.job in ENDED:
        return state._replace(broken="a job ended twice")
    if state.valid != hold.token:
        return state._replace(broken="the word of one who did not hold the job was accepted")
    job = "cancelled" if kind == "retry" and state.cancel_asked else ENDS[kind]
    by_token = job in ("done", "dead")
    return state._replace(
        job=job,
        lease=hold.token if by_token else 0,
        ended_by=hold.token if job in ENDED else 0,
    )


def _reclaim(state: State, rules: Protocol, bounds: Bounds) -> Iterator[Step]:
    if state.seen_expired:
        token, state = state.seen_expired, state._replace(seen_expired=0)
        if state.left(token) and rules.reclaim_checks_under_lock:
            yield f"reclaim finds lease {token} renewed", state
        else:
            yield f"reclaim takes lease {token} back", _taken_back(state, token)
    else:
        for token, left in state.leases:
            if not left:
                yield f"reclaim sees lease {token} expired", state._replace(seen_expired=token)
    if state.leases and bounds.rows_lost and not state.lease_lost:
        yield "lease rows are lost", state._replace(leases=(), lease_lost=True)
    if rules.sweep_finds_orphans and _is_orphan(state):
        yield "a sweep takes the job back", _given_back(state)


def _is_orphan(state: State) -> bool:
    return state.job == "inflight" and state.lease not in dict(state.leases)


def _taken_back(state: State, token: int) -> State:
    rest = state._replace(leases=tuple(row for row in state.leases if row[0] != token))
    if state.job != "inflight" or state.lease != token:
        return rest
    if state.valid:
        return state._replace(broken="a job was taken from one whose lease was valid")
    return _given_back(rest)


def _given_back(state: State) -> State:
    return state._replace(job="cancelled" if state.cancel_asked else "ready", lease=0)


def _operator(state: State, rules: Protocol) -> Iterator[Step]:
    if state.job == "inflight":
        kept = 0 if rules.forced_cancel_takes_token else state.lease
        yield "somebody cancels by force", state._replace(job="cancelled", lease=kept)
        if not state.cancel_asked:
            yield "somebody asks to cancel", state._replace(cancel_asked=True)
    elif state.job == "ready":
        yield "somebody cancels", state._replace(job="cancelled")


# -- what must hold in every state -----------------------------------------------------------------


def wrong(state: State, rules: Protocol) -> str:
    """Say what is wrong: at most one token may be accepted, and nobody may need a dead worker."""
    if state.broken:
        return state.broken
    accepted = {hold.token for hold in state.holds if hold and accepts(state, rules, hold)}
    if len(accepted) > 1:
        return "two leases are accepted at once"
    if state.job == "inflight" and not _comes_loose(state, rules):
        return "the job is stuck: without its worker it never moves again"
    return ""


def _comes_loose(state: State, rules: Protocol) -> bool:
    """Let all workers be dead: time, reclaim and sweep alone must bring the job back."""
    expired = state._replace(leases=tuple((token, 0) for token, _ in state.leases), seen_expired=0)
    for token, _ in expired.leases:
        expired = _taken_back(expired, token)
    return expired.job != "inflight" or (rules.sweep_finds_orphans and _is_orphan(expired))


# -- the walk --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """How many states there are, and what broke how, if anything did."""

    states: int
    broken: str = ""
    story: tuple[str, ...] = ()


def explore(rules: Protocol | None = None, bounds: Bounds | None = None) -> Found:
    rules, bounds = rules or Protocol(), bounds or Bounds()
    came: dict[State, tuple[State, str] | None] = {start(bounds): None}
    queue = deque(came)
    while queue:
        state = queue.popleft()
        if told := wrong(state, rules):
            return Found(len(came), told, tuple(_story(came, state)))
        for step, after in steps(state, rules, bounds):
            if after not in came:
                came[after] = state, step
                queue.append(after)
    return Found(len(came))


def _story(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    told: list[str] = []
    while (before := came[state]) is not None:
        state, step = before
        told.insert(0, step)
    return told
