"""
The delivery of callbacks: one small POST, and nothing that a receiver could lead astray.

The name is resolved here, each address is judged, and the connection goes to one that passed: no
second look into the DNS can change where. No redirect is followed, no proxy asked, and of the
answer only the status is read.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

from . import __version__
from .backoff import Backoff
from .callbacks import Address, Destination, admits, destination, signature
from .conf import get_settings
from .context import JobContext
from .exceptions import InvalidJob, PermanentError, TemporaryError
from .operations.callback import CALLBACK_TASK
from .tasks import task

TIMEOUT = 10.0  # for all of it, once the name is resolved
ANSWER_MAX_BYTES = 1024
GONE = 410


@task(
    name=CALLBACK_TASK,
    takes_context=True,
    max_attempts=10,
    backoff=Backoff(initial=timedelta(seconds=10), maximum=timedelta(hours=1)),
)
def deliver(context: JobContext, url: str, facts: dict[str, Any]) -> int:
    """Tell a URL what became of a job."""
    settings = get_settings()
    try:
        where = destination(url, settings.callback_hosts)
    except InvalidJob as problem:  # the list has become shorter since the job was enqueued
        raise PermanentError(str(problem), code="callback_host") from None
    body = json.dumps(facts, separators=(",", ":"), sort_keys=True).encode()
    timestamp = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"taskharbor-django/{__version__}",
        "X-TaskHarbor-Delivery": str(context.job_id),
        "X-TaskHarbor-Timestamp": str(timestamp),
        "X-TaskHarbor-Signature": signature(settings.callback_secret or "", timestamp, body),
    }
    return judged(post(where, headers, body))


def judged(status: int) -> int:
    """Take a status for done, worth another try, or hopeless."""
    if 200 <= status < 300:
        return status
    if 300 <= status < 400:
        raise PermanentError(
            f"the answer was {status}: redirects are not followed", code="redirect"
        )
    if status == GONE:
        raise PermanentError("the answer was 410: gone", code="gone")
    raise TemporaryError(f"the answer was {status}")


def post(where: Destination, headers: dict[str, str], body: bytes) -> int:
    """Send one request to an address that passed; return the status of the answer."""
    until = time.monotonic() + TIMEOUT
    try:
        with connected(where, until) as raw, secured(raw, where.host, until) as line:
            line.settimeout(left(until))
            line.sendall(request(where, headers, body))
            return status_of(line, until)
    except (OSError, ValueError) as problem:  # TLS trouble is an OSError, an odd name a ValueError
        raise TemporaryError(f"{where.host}: {problem}") from problem


def connected(where: Destination, until: float) -> socket.socket:
    """Connect to the first address that passes and answers."""
    refused, problem = [], None
    found = list(resolved(where))
    for place, (address, family, sockaddr) in enumerate(found):
        if not admits(where.network, address):
            refused.append(str(address))
            continue
        line = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Its share: an address that swallows everything leaves the next ones theirs.
            line.settimeout(left(until) / (len(found) - place))
            line.connect(sockaddr)
        except OSError as error:
            line.close()
            problem = error
        else:
            return line
    if problem is not None:
        raise problem
    raise PermanentError(
        f"{where.host} leads to {', '.join(refused) or 'nothing'}, where no callback may go",
        code="callback_address",
    )


def resolved(where: Destination) -> Iterator[tuple[Address, socket.AddressFamily, Any]]:
    for family, _, _, _, sockaddr in socket.getaddrinfo(
        where.host, where.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    ):
        yield ip_address(sockaddr[0]), family, sockaddr


def secured(line: socket.socket, host: str, until: float) -> ssl.SSLSocket:
    line.settimeout(left(until))
    return ssl.create_default_context().wrap_socket(line, server_hostname=host)


def request(where: Destination, headers: dict[str, str], body: bytes) -> bytes:
    host = f"[{where.host}]" if ":" in where.host else where.host
    host = host if where.port == 443 else f"{host}:{where.port}"
    lines = [
        f"POST {where.target} HTTP/1.1",
        f"Host: {host}",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def status_of(line: ssl.SSLSocket, until: float) -> int:
    """Read the first line of the answer and no more than it takes."""
    answer = b""
    while b"\n" not in answer and len(answer) < ANSWER_MAX_BYTES:
        line.settimeout(left(until))
        more = line.recv(ANSWER_MAX_BYTES - len(answer))
        if not more:
            break
        answer += more
    found = re.match(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r\n]", answer)
    if found is None:
        raise TemporaryError("the answer was no HTTP")
    return int(found[1])


def left(until: float) -> float:
    """The seconds that are left; TimeoutError when none are."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError(f"no answer within {TIMEOUT:g} seconds")
    return seconds
