"""Hosts in network namespaces of the test's own, with a PostgreSQL on the switch between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers import PostgreSQL
from tests.servers.base import DATABASE, USER, run_as

SUBNET = "10.213.77"
MIDDLE = f"{SUBNET}.1"


def missing() -> str:
    """Say why there can be no hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces want root"
    if absent := [name for name in ("ip", "nsenter", "setpriv") if not shutil.which(name)]:
        return f"{', '.join(absent)} is not installed (iproute2, util-linux)"
    name = f"th{os.getpid()}try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "network namespaces cannot be made here"
    run("ip", "netns", "del", name)
    return ""


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Network:
    """A switch in a namespace of its own, and hosts that hang on it by one line each."""

    def __init__(self) -> None:
        self._prefix = f"th{os.getpid()}"
        self.middle = f"{self._prefix}m"
        self._hosts: list[str] = []

    def __enter__(self) -> Network:
        run("ip", "netns", "add", self.middle)
        for words in (
            ["link", "set", "lo", "up"],
            ["link", "add", "switch", "type", "bridge"],
            ["addr", "add", f"{MIDDLE}/24", "dev", "switch"],
            ["link", "set", "switch", "up"],
        ):
            run("ip", "-n", self.middle, *words)
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self._hosts, self.middle):
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", name)

    def add(self) -> str:
        """Make one more host; return its name."""
        number = len(self._hosts) + 1
        host, line = f"{self._prefix}h{number}", f"line{number}"
        run("ip", "netns", "add", host)
        self._hosts.append(host)
        run("ip", "-n", host, "link", "set", "lo", "up")
        run(
            *("ip", "-n", self.middle, "link", "add", line, "type", "veth"),
            *("peer", "name", "up0", "netns", host),
        )
        run("ip", "-n", self.middle, "link", "set", line, "master", "switch", "up")
        run("ip", "-n", host, "addr", "add", f"{SUBNET}.{number + 1}/24", "dev", "up0")
        run("ip", "-n", host, "link", "set", "up0", "up")
        return host

    def cut(self, host: str) -> None:
        """Let nothing in or out of a host; it is told nothing."""
        run("ip", "-n", self.middle, "link", "set", self._line(host), "down")

    def mend(self, host: str) -> None:
        run("ip", "-n", self.middle, "link", "set", self._line(host), "up")

    def _line(self, host: str) -> str:
        return f"line{self._hosts.index(host) + 1}"


def inside(namespace: str) -> list[str]:
    """The words that run a command in a namespace, as the same process."""
    return ["nsenter", f"--net=/run/netns/{namespace}", "--"]


class MiddleServer(PostgreSQL):
    """A PostgreSQL on the switch; this process reaches it by a socket in a directory."""

    def __init__(self, network: Network) -> None:
        # Its own: a socket's path has to be short.
        self.socket = Path(tempfile.mkdtemp(prefix="th-"))
        self.socket.chmod(0o777)
        super().__init__(
            options={"listen_addresses": MIDDLE, "unix_socket_directories": str(self.socket)}
        )
        self._network = network

    @property
    def url_inside(self) -> str:
        """The address for hosts of the network."""
        return f"postgresql://{USER}:{self.password}@{MIDDLE}:{self.port}/{DATABASE}"

    def remove(self) -> None:
        super().remove()
        shutil.rmtree(self.socket, ignore_errors=True)

    def _create(self) -> None:
        super()._create()
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {SUBNET}.0/24 scram-sha-256\n")

    def _spawn(self, command, stdout):
        user = run_as()
        drop = ["setpriv", f"--reuid={user['user']}", f"--regid={user['group']}", "--clear-groups"]
        return subprocess.Popen(
            [*inside(self._network.middle), *drop, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            start_new_session=True,
        )

    def _connect(self):
        return super()._connect(str(self.socket))
