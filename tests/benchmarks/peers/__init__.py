"""
Queues of others, measured beside ours on the same server in the same run.

Each module here drives one of them through its public API, in a process of its own:
`python -m tests.benchmarks.peers.<module> VERB URL`; `command` says what the verbs are.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """What the harness must know before it starts one."""

    key: str
    title: str
    module: str
    packages: tuple[str, ...]
    databases: tuple[str, ...] = ("postgresql",)
    python: tuple[int, int] = (3, 12)
    # Sizes of `--batch` to measure; without any, only what the driver says is best.
    batches: tuple[int, ...] = ()


PEERS = (
    Peer(
        key="pgqueuer",
        title="pgqueuer",
        module="tests.benchmarks.peers.pgqueuer_",
        packages=("pgqueuer>=1.6,<2", "asyncpg>=0.30", "psycopg[binary]>=3.2"),
        python=(3, 11),
        batches=(100, 500),
    ),
    Peer(
        key="oban",
        title="Oban for Python",
        module="tests.benchmarks.peers.oban_",
        packages=("oban>=0.7,<0.8", "psycopg[binary]>=3.2"),
    ),
    Peer(
        key="procrastinate",
        title="procrastinate",
        module="tests.benchmarks.peers.procrastinate_",
        packages=("procrastinate>=3.10,<4", "psycopg[binary]>=3.2"),
        python=(3, 11),
    ),
    Peer(
        key="ox",
        title="django-ox",
        module="tests.benchmarks.peers.ox",
        packages=("django-ox>=1.9,<2", "Django>=6.0", "psycopg[binary]>=3.2", "django-environ"),
    ),
    Peer(
        key="tasks-db",
        title="django-tasks-db",
        module="tests.benchmarks.peers.tasks_db",
        packages=(
            "django-tasks-db>=0.13,<0.14",
            "Django>=6.0",
            "psycopg[binary]>=3.2",
            "django-environ",
        ),
        databases=("postgresql", "sqlite"),
    ),
    Peer(
        key="huey",
        title="huey",
        module="tests.benchmarks.peers.huey_",
        packages=("huey>=3.5,<4",),
        databases=("sqlite",),
        python=(3, 11),
    ),
)
