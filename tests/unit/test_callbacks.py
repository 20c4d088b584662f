"""Where callbacks may go, and how a receiver knows them."""

from ipaddress import ip_address, ip_network

import pytest

from taskharbor_django.callbacks import (
    Destination,
    admits,
    destination,
    is_public,
    is_signed,
    signature,
)
from taskharbor_django.exceptions import InvalidJob

HOSTS = {"hooks.example.com": None, "billing.internal": ip_network("10.20.0.0/16")}

PRIVATE = [
    "0.0.0.0",  # noqa: S104  to be refused
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.9.9.9",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.1",
    "192.0.0.200",
    "192.88.99.1",
    "100:0:0:1::1",
    "3fff::1",
    "3fff:fff::1",
    "5f00::1",
    "::",
    "::1",
    "::7f00:1",  # IPv4-compatible
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",  # mapped
    "64:ff9b::7f00:1",  # NAT64
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "2002:7f00:1::",  # 6to4
    "2002:808:808::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",  # Teredo
    "2001:db8::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_no_callback_goes_to_an_address_that_is_not_public(address):
    assert not is_public(ip_address(address))
    assert not admits(None, ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00::1"])
def test_public_addresses_are_admitted(address):
    assert admits(None, ip_address(address))


def test_a_network_of_its_own_admits_its_addresses_and_no_others():
    network = ip_network("10.20.0.0/16")
    assert admits(network, ip_address("10.20.3.4"))
    for address in ("10.21.0.1", "8.8.8.8", "::ffff:10.20.3.4", "fe80::1%eth0"):
        assert not admits(network, ip_address(address))
    assert admits(ip_network("fd00::/8"), ip_address("fd00::1"))


def test_a_destination_is_read_from_the_url():
    assert destination("https://hooks.example.com", HOSTS) == Destination(
        host="hooks.example.com", port=443, target="/", network=None
    )
    found = destination("https://BILLING.internal:8443/a/b?c=d%20e", HOSTS)
    assert (found.host, found.port, found.target) == ("billing.internal", 8443, "/a/b?c=d%20e")
    assert found.network == ip_network("10.20.0.0/16")


REFUSED = [
    ("http://hooks.example.com/", "https:// only"),
    ("ftp://hooks.example.com/", "https:// only"),
    ("//hooks.example.com/", "https:// only"),
    ("https:///nowhere", "no host is not in"),
    ("https://example.com/", "example.com is not in"),
    ("https://hooks.example.com.evil.test/", "is not in"),
    ("https://hooks.example.com./", "is not in"),
    ("https://127.0.0.1/", "127.0.0.1 is not in"),
    ("https://[::1]/", "::1 is not in"),
    ("https://2130706433/", "2130706433 is not in"),
    ("https://me:secret@hooks.example.com/", "no user, password or fragment"),
    ("https://hooks.example.com@evil.test/", "no user, password or fragment"),
    ("https://@hooks.example.com/", "no user, password or fragment"),
    ("https://hooks.example.com/#part", "no user, password or fragment"),
    ("https://hooks.example.com:99999/", "no URL"),
    ("https://hooks.example.com:0/", "no URL: there is no port 0"),
    ("https://[::1/", "no URL"),
    ("https://hooks.example.com/ HTTP/1.1", "printable ASCII"),
    ("https://hooks.example.com/\r\nX-Evil: 1", "printable ASCII"),
    ("https://hooks.example.com/\t", "printable ASCII"),
    ("https://hooks.exämple.com/", "printable ASCII"),
]


@pytest.mark.parametrize(("url", "why"), REFUSED)
def test_what_is_no_destination_is_refused_and_why(url, why):
    with pytest.raises(InvalidJob, match=why) as refusal:
        destination(url, HOSTS)
    assert refusal.value.field == "callback_url"


def test_without_hosts_callbacks_are_off():
    with pytest.raises(InvalidJob, match="callbacks are off"):
        destination("https://hooks.example.com/", {})


class TestSignature:
    def test_it_holds_for_this_secret_body_and_time_alone(self):
        given = signature("s3cret", 1_000, b"body")
        right = {"timestamp": 1_000, "body": b"body", "given": given, "now": 1_100.0}
        assert given.startswith("v1=")
        assert is_signed("s3cret", **right)
        for wrong in ({"body": b"bodY"}, {"timestamp": 1_001}, {"given": "v1=00"}):
            assert not is_signed("s3cret", **(right | wrong))
        assert not is_signed("other", **right)

    @pytest.mark.parametrize("given", ["", "v1=é", "\ud800"])
    def test_what_is_no_signature_is_none(self, given):
        assert not is_signed("s", timestamp=1_000, body=b"", given=given, now=1_000)

    @pytest.mark.parametrize(("now", "holds"), [(700, True), (1_300, True), (1_301, False)])
    def test_an_old_one_is_a_replay(self, now, holds):
        given = signature("s", 1_000, b"")
        assert is_signed("s", timestamp=1_000, body=b"", given=given, now=now) is holds
