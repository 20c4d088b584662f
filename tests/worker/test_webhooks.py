"""Deliveries to a real server with TLS on this machine, and to places where none may go."""

import json
import socket
import ssl
import threading
import time
from contextlib import closing, suppress

import pytest
import trustme

from taskharbor_django import webhooks
from taskharbor_django.callbacks import Destination, destination, is_signed
from taskharbor_django.conf import get_settings
from taskharbor_django.exceptions import PermanentError, TemporaryError
from taskharbor_django.models import Job
from taskharbor_django.webhooks import judged, post
from tests.testapp.tasks import add

from .conftest import drain

SECRET = "known to both"
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver(threading.Thread):
    """Answers each request with the next of its answers; keeps what it was sent."""

    def __init__(self, certificate, *answers):
        super().__init__(daemon=True)
        self.answers = list(answers)
        self.requests = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self._context)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def run(self):
        while True:
            try:
                raw, _ = self._socket.accept()
            except OSError:
                return
            with raw:
                self._serve(raw)

    def _serve(self, raw):
        raw.settimeout(20)
        try:
            with self._context.wrap_socket(raw, server_side=True) as line:
                self.requests.append(self._read(line))
                answer = self.answers.pop(0) if self.answers else OK
                answer(line) if callable(answer) else line.sendall(answer)
        except OSError:
            self.requests.append(None)

    @staticmethod
    def _read(line):
        data = b""
        while b"\r\n\r\n" not in data:
            data += line.recv(65_536)
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(each.split(": ", 1) for each in lines)
        while len(body) < int(headers["Content-Length"]):
            body += line.recv(65_536)
        return first, headers, body

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.join(20)


@pytest.fixture
def authority(monkeypatch, tmp_path):
    """A certificate authority that this test, and nobody else, trusts."""
    made = trustme.CA()
    path = tmp_path / "ca.pem"
    made.cert_pem.write_to_path(str(path))
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return made


@pytest.fixture
def receiver(authority):
    """Start a server for a host; it is gone at the end of the test."""
    started = []

    def start(*answers, host="localhost"):
        server = Receiver(authority.issue_cert(host), *answers)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def admitted(settings):
    """An allow-list that admits this machine under its own name."""
    settings.TASKHARBOR = {
        "CALLBACK_HOSTS": ["localhost=127.0.0.0/8", "hooks.example.com"],
        "CALLBACK_SECRET": SECRET,
    }


@pytest.fixture
def names(monkeypatch):
    """A resolver that answers what the test says, one answer for each question."""
    answers = []

    def resolve(host, port, **_):
        addresses = answers.pop(0)
        if isinstance(addresses, Exception):
            raise addresses
        return [
            (socket.AF_INET6 if ":" in it else socket.AF_INET, 1, 6, "", (it, port))
            for it in addresses
        ]

    monkeypatch.setattr(webhooks.socket, "getaddrinfo", resolve)
    return answers


def at(server, path="/hook", host="localhost"):
    return destination(f"https://{host}:{server.port}{path}", get_settings().callback_hosts)


@pytest.mark.django_db(transaction=True)
class TestADelivery:
    def test_a_worker_delivers_what_became_of_a_job(self, receiver, admitted):
        server = receiver()
        url = f"https://localhost:{server.port}/hook?order=7"
        handle = add.using(callback_url=url).enqueue(1, 2)
        drain()
        assert handle.result == 3
        (delivery,) = Job.objects.filter(parent=handle.id)
        assert delivery.state == "done"
        ((first, headers, body),) = server.requests
        assert first == "POST /hook?order=7 HTTP/1.1"
        assert headers["Host"] == f"localhost:{server.port}"
        assert headers["X-TaskHarbor-Delivery"] == str(delivery.pk)
        facts = json.loads(body)
        assert (facts["job"], facts["state"]) == (str(handle.id), "done")
        timestamp = int(headers["X-TaskHarbor-Timestamp"])
        assert is_signed(
            SECRET,
            timestamp=timestamp,
            body=body,
            given=headers["X-TaskHarbor-Signature"],
            now=timestamp,
        )

    def test_one_that_fails_is_tried_again_later(self, receiver, admitted):
        server = receiver(b"HTTP/1.1 503 Busy\r\n\r\n")
        handle = add.using(callback_url=f"https://localhost:{server.port}/").enqueue(1)
        drain()
        (delivery,) = Job.objects.filter(parent=handle.id)
        assert (delivery.state, delivery.attempts) == ("scheduled", 1)
        assert "the answer was 503" in delivery.last_error
        Job.objects.filter(pk=delivery.pk).update(
            run_at=delivery.created_at, available_at=delivery.created_at
        )
        drain()
        assert Job.objects.get(pk=delivery.pk).state == "done"
        assert len(server.requests) == 2

    def test_no_proxy_of_the_environment_is_asked(self, receiver, admitted, monkeypatch):
        server = receiver()
        with closing(socket.create_server(("127.0.0.1", 0))) as proxy:
            for name in ("https_proxy", "all_proxy", "http_proxy"):
                for spelt in (name, name.upper()):
                    monkeypatch.setenv(spelt, f"http://127.0.0.1:{proxy.getsockname()[1]}")
            for name in ("no_proxy", "NO_PROXY"):
                monkeypatch.delenv(name, raising=False)
            handle = add.using(callback_url=f"https://localhost:{server.port}/").enqueue(1)
            drain()
            assert Job.objects.get(parent=handle.id).state == "done"
            proxy.setblocking(False)
            with pytest.raises(BlockingIOError):
                proxy.accept()
        assert [first for first, _, _ in server.requests] == ["POST / HTTP/1.1"]

    def test_a_host_that_was_struck_off_the_list_is_not_told(self, receiver, admitted, settings):
        server = receiver()
        handle = add.using(callback_url=f"https://localhost:{server.port}/").enqueue(1)
        drain(queues=["other"])
        settings.TASKHARBOR = {"CALLBACK_HOSTS": ["other.example"], "CALLBACK_SECRET": SECRET}
        drain()
        (delivery,) = Job.objects.filter(parent=handle.id)
        assert (delivery.state, delivery.failure_code) == ("dead", "callback_host")
        assert server.requests == []


class TestTheLine:
    def test_a_certificate_of_another_host_is_refused(self, receiver, admitted):
        server = receiver(host="other.example.com")
        with pytest.raises(TemporaryError, match=r"CERTIFICATE_VERIFY_FAILED|Hostname mismatch"):
            post(at(server), {}, b"")
        assert server.requests in ([None], [])

    def test_so_is_one_that_nobody_vouches_for(self, receiver, admitted, monkeypatch):
        server = receiver()
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(TemporaryError, match="CERTIFICATE_VERIFY_FAILED"):
            post(at(server), {}, b"")

    @pytest.mark.parametrize(
        ("host", "port", "sent"),
        [
            ("hooks.example.com", 443, "hooks.example.com"),
            ("hooks.example.com", 8443, "hooks.example.com:8443"),
            ("fd00::1", 443, "[fd00::1]"),
            ("fd00::1", 8443, "[fd00::1]:8443"),
        ],
    )
    def test_it_says_which_host_is_meant(self, host, port, sent):
        where = Destination(host=host, port=port, target="/", network=None)
        assert f"\r\nHost: {sent}\r\n".encode() in webhooks.request(where, {}, b"")

    def test_of_the_answer_only_the_status_is_read(self, receiver, admitted):
        def endless(line):
            line.sendall(b"HTTP/1.1 200 OK\r\n")
            with suppress(OSError):
                while True:
                    line.sendall(b"X: " + b"x" * 65_000 + b"\r\n")

        assert post(at(receiver(endless)), {}, b"") == 200

    @pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/2 200\r\n", b"x" * 5_000])
    def test_what_is_no_answer_is_none(self, receiver, admitted, answer):
        with pytest.raises(TemporaryError, match="no HTTP"):
            post(at(receiver(answer)), {}, b"")

    def test_it_takes_no_longer_than_its_time_however_the_answer_trickles(
        self, receiver, admitted, monkeypatch
    ):
        enough = threading.Event()

        def trickle(line):
            while not enough.wait(0.05):
                line.sendall(b"H")

        monkeypatch.setattr(webhooks, "TIMEOUT", 0.5)
        server = receiver(trickle)
        with pytest.raises(TemporaryError, match=r"no answer within|timed out"):
            post(at(server), {}, b"")
        enough.set()

    def test_no_time_left_is_no_time(self):
        with pytest.raises(TimeoutError, match="no answer within 10 seconds"):
            webhooks.left(time.monotonic())

    def test_a_handshake_has_no_more_than_what_connecting_left_of_it(self):
        with closing(socket.socket()) as line, pytest.raises(TimeoutError, match="no answer"):
            webhooks.secured(line, "localhost", time.monotonic())

    def test_a_receiver_that_says_nothing_at_all(self, admitted, monkeypatch):
        monkeypatch.setattr(webhooks, "TIMEOUT", 0.3)
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            port = silent.getsockname()[1]
            where = destination(f"https://localhost:{port}/", get_settings().callback_hosts)
            with pytest.raises(TemporaryError, match=r"localhost: .*timed out"):
                post(where, {}, b"")

    def test_nobody_there(self, admitted):
        with closing(socket.create_server(("127.0.0.1", 0))) as bound:
            port = bound.getsockname()[1]
        where = destination(f"https://localhost:{port}/", get_settings().callback_hosts)
        with pytest.raises(TemporaryError, match=r"localhost: .*refused"):
            post(where, {}, b"")

    def test_a_name_that_does_not_exist(self, admitted, names):
        names.append(socket.gaierror("no such name"))
        with pytest.raises(TemporaryError, match="no such name"):
            post(Destination(host="hooks.example.com", port=443, target="/", network=None), {}, b"")


class TestWhereItLeads:
    WHERE = Destination(host="hooks.example.com", port=443, target="/", network=None)

    @pytest.mark.parametrize(
        "address",
        ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"],
    )
    def test_a_public_host_that_leads_inside_is_not_connected_to(self, names, address, monkeypatch):
        monkeypatch.setattr(webhooks.socket, "socket", None)  # nothing is opened at all
        names.append([address])
        with pytest.raises(PermanentError, match="where no callback may go") as refusal:
            post(self.WHERE, {}, b"")
        assert refusal.value.code == "callback_address"

    def test_a_host_with_its_own_network_that_leads_elsewhere(self, receiver, admitted, names):
        server = receiver()
        names.append(["8.8.8.8"])
        with pytest.raises(PermanentError, match=r"leads to 8\.8\.8\.8"):
            post(at(server), {}, b"")

    def test_a_name_that_changes_its_answer_is_asked_once(
        self, receiver, authority, admitted, names
    ):
        """The address that was judged is the one that is connected to: there is no second look."""
        server = receiver(host="hooks.example.com")
        network = get_settings().callback_hosts["localhost"]
        where = Destination(host="hooks.example.com", port=server.port, target="/", network=network)
        names += [["127.0.0.1"], ["10.0.0.1"]]
        assert post(where, {}, b"") == 204
        assert names == [["10.0.0.1"]]

    def test_an_address_that_never_answers_leaves_time_for_the_next(self, names, monkeypatch):
        given = []

        class Mute(socket.socket):
            def connect(self, _):
                given.append(self.gettimeout())
                raise TimeoutError("timed out")

        monkeypatch.setattr(webhooks.socket, "socket", Mute)
        names.append(["2606:4700::1111", "8.8.8.8"])
        with pytest.raises(TemporaryError, match="timed out"):
            post(self.WHERE, {}, b"")
        assert given[0] <= webhooks.TIMEOUT / 2 < given[1] <= webhooks.TIMEOUT

    def test_addresses_that_pass_are_tried_in_turn(self, receiver, admitted, names):
        server = receiver()
        names.append(["10.0.0.1", "127.0.0.2", "127.0.0.1"])  # inside; nobody there; the server
        assert post(at(server), {}, b"") == 204


@pytest.mark.parametrize("status", [200, 204, 299])
def test_what_counts_as_done(status):
    assert judged(status) == status


@pytest.mark.parametrize(("status", "code"), [(301, "redirect"), (308, "redirect"), (410, "gone")])
def test_what_is_hopeless(status, code):
    with pytest.raises(PermanentError) as refusal:
        judged(status)
    assert refusal.value.code == code


@pytest.mark.parametrize("status", [100, 400, 404, 429, 500, 503])
def test_what_is_tried_again(status):
    with pytest.raises(TemporaryError, match=str(status)):
        judged(status)
