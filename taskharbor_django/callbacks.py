"""Where callbacks may go, and how they are signed: pure functions, for both ends of the line."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from urllib.parse import urlsplit

from .exceptions import InvalidJob

HTTPS = 443
SIGNATURE_VERSION = "v1"

Network = IPv4Network | IPv6Network | None
Address = IPv4Address | IPv6Address

# Forms of IPv6 that carry an IPv4 address: what they lead to is decided elsewhere.
_CARRIERS = [
    ip_network(text)
    for text in (
        "::/96",
        "::ffff:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
    )
]
# Reserved by IANA, and taken for public by the ipaddress of one supported Python or another.
_RESERVED = [
    ip_network(text)
    for text in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "100:0:0:1::/64",
        "3fff::/20",
        "5f00::/16",
    )
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """Where one callback goes."""

    host: str
    port: int
    target: str
    network: Network


def destination(url: str, hosts: Mapping[str, Network]) -> Destination:
    """Read a callback's URL, or raise InvalidJob saying why no callback may go there."""
    if not hosts:
        raise _refused("callbacks are off: TASKHARBOR['CALLBACK_HOSTS'] is empty")
    # Whatever is not plain ASCII could end the line of a request, or a parser's patience.
    if not re.fullmatch(r"[!-~]+", url):
        raise _refused("a URL has printable ASCII characters and no spaces")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError as problem:
        raise _refused(f"no URL: {problem}") from None
    if port == 0:
        raise _refused("no URL: there is no port 0")
    if parts.scheme.lower() != "https":
        raise _refused("callbacks go to https:// only")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _refused("a callback's URL has no user, password or fragment")
    if host not in hosts:
        raise _refused(f"{host or 'no host'} is not in TASKHARBOR['CALLBACK_HOSTS']")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(host=host, port=port or HTTPS, target=target, network=hosts[host])


def _refused(why: str) -> InvalidJob:
    return InvalidJob(f"callback_url: {why}", field="callback_url")


def admits(network: Network, address: Address) -> bool:
    """Say whether a callback may connect here: in the host's own network, or else in public."""
    if network is not None:
        return address.version == network.version and address in network
    return is_public(address)


def is_public(address: Address) -> bool:
    """Say whether an address is reached by everyone, and by none of the ways around that."""
    if address.version == 6 and _leads_elsewhere(address):
        return False
    if any(address in network for network in _RESERVED):
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


def _leads_elsewhere(address: IPv6Address) -> bool:
    return address.is_site_local or any(address in carrier for carrier in _CARRIERS)


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Sign a body together with its time, so that neither can be changed."""
    signed = f"{timestamp}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return f"{SIGNATURE_VERSION}={digest}"


def is_signed(
    secret: str, *, timestamp: int, body: bytes, given: str, now: float, tolerance: float = 300
) -> bool:
    """For receivers: say whether this came from who knows the secret, and not long ago."""
    fresh = abs(now - timestamp) <= tolerance
    # As bytes: texts that are not ASCII, which anybody may send, cannot be compared.
    wanted = signature(secret, timestamp, body).encode()
    return hmac.compare_digest(wanted, given.encode("utf-8", "replace")) and fresh
