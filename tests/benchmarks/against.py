"""Ours and the peers, asked the same in turn: one worker process, no-op jobs, the same server."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from .ground import ROOT
from .measures import Figure, Goal, Measure
from .meter import PATH, RUNS
from .peers import PEERS

OURS = "tests.benchmarks.peers.own"
# At most so many seconds' worth of jobs for those that do hundreds in a second.
SLOW = {"oban": 5_000, "procrastinate": 1_000, "ox": 1_000, "tasks-db": 800}
# The rate of ours must be so many times that of the peer.
TIMES = {
    "pgqueuer at 100": 1.0,
    "pgqueuer at 500": 1.0,
    "procrastinate": 10.0,
    "ox": 20.0,
    "tasks-db": 20.0,
}
TIMES_ON_SQLITE = {"tasks-db": 3.0}


def present(peer):
    """Whether a peer can be measured with this interpreter and what is installed."""
    name = peer.packages[0].partition(">")[0]
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return sys.version_info >= peer.python


def comparison(database):
    """The measure of all peers that are here, on one kind of database."""
    peers = [peer for peer in PEERS if database in peer.databases and present(peer)]
    goals = TIMES if database == "postgresql" else TIMES_ON_SQLITE
    names = [name for peer in peers for name in _runs(peer)]
    figures = [Figure(name="ours", unit="jobs/s")]
    for name in names:
        goal = Goal(least=goals[name]) if name in goals else None
        figures += [Figure(name=name, unit="jobs/s"), Figure(name=f"ours / {name}", goal=goal)]
        figures.append(Figure(name=f"{name}: worker CPU", unit="us per job"))
    figures.append(Figure(name="ours: worker CPU", unit="us per job"))
    if "pgqueuer at 500" in names:
        figures.append(Figure(name="CPU of ours / pgqueuer at 500", goal=Goal(most=1.0)))
    run = _on_postgresql if database == "postgresql" else _on_sqlite
    return Measure(
        name=f"peers_{database}",
        title=f"Drain against others, {database}",
        run=lambda ground, sizes: run(ground, sizes, peers),
        figures=tuple(figures),
    )


def _runs(peer):
    return [f"{peer.key} at {batch}" for batch in peer.batches] or [peer.key]


def _on_postgresql(ground, sizes, peers):
    return _compare(lambda key: _new_database(ground, key), ground, sizes, peers)


def _on_sqlite(ground, sizes, peers):
    return _compare(lambda key: _new_file(ground, key), ground, sizes, peers)


def _new_database(ground, key):
    name = f"bench_{key.replace('-', '_')}"
    ground.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    ground.run(f"CREATE DATABASE {name}")
    return f"{ground.url.rpartition('/')[0]}/{name}"


def _new_file(ground, key):
    for file in ground.scratch.glob(f"{key}.sqlite3*"):
        file.unlink()
    return f"sqlite:///{ground.scratch / key}.sqlite3"


def _compare(new, ground, sizes, peers):
    found = {}
    for batch in (100, 500):
        found[f"ours at {batch}"] = _drain(new, ground, OURS, "ours", jobs=sizes.jobs, batch=batch)
    for peer in peers:
        jobs = min(sizes.jobs, SLOW.get(peer.key, sizes.jobs))
        for name, batch in zip(_runs(peer), peer.batches or (None,), strict=True):
            found[name] = _drain(new, ground, peer.module, peer.key, jobs=jobs, batch=batch)
    return _values(found)


def _values(found):
    """Rates, ours over theirs with the same batch where they have one, and CPU."""
    ours = found["ours at 500"]
    values = {"ours": ours[0], "ours: worker CPU": ours[1]}
    for name, (rate, cpu) in found.items():
        if not name.startswith("ours"):
            same = found["ours at 100"] if name.endswith("at 100") else ours
            values |= {name: rate, f"ours / {name}": same[0] / rate, f"{name}: worker CPU": cpu}
    if "pgqueuer at 500" in found:
        values["CPU of ours / pgqueuer at 500"] = ours[1] / found["pgqueuer at 500"][1]
    return values


def _drain(new, ground, module, key, *, jobs, batch):
    """Jobs per second between the first run and the last, and CPU microseconds per job."""
    url = new(key)
    meter = ground.scratch / "peer.json"
    meter.unlink(missing_ok=True)
    _ask(module, "prepare", url)
    _ask(module, "enqueue", url, "--jobs", str(jobs))
    ground.run("CHECKPOINT")
    size = [] if batch is None else ["--batch", str(batch)]
    environment = {PATH: str(meter), RUNS: str(jobs)}
    left = _ask(module, "drain", url, "--jobs", str(jobs), *size, **environment)
    if left["open"]:
        raise RuntimeError(f"{module} left {left['open']} of {jobs} jobs undone")
    read = json.loads(meter.read_text())
    return (jobs - 1) / (read["last"] - read["first"]), read["cpu"] / jobs * 1e6


def _ask(module, verb, url, *options, **environment):
    done = subprocess.run(
        [sys.executable, "-m", module, verb, url, *options],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout) if done.stdout.strip() else None


def bars(measure):
    """The rates as (name, value, is ours), the fastest first."""
    titles = {name: _title(peer, name) for peer in PEERS for name in _runs(peer)}
    found = [
        (titles.get(figure.name, "TaskHarbor"), figure.median, figure.name == "ours")
        for figure in measure.figures
        if figure.unit == "jobs/s" and figure.values
    ]
    return sorted(found, key=lambda bar: -bar[1])


def _title(peer, name):
    return f"{peer.title}, batch {name.rpartition(' ')[2]}" if " at " in name else peer.title
