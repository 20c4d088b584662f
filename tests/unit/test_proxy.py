"""The line that fault tests put between a worker and its database does what it says."""

import socket
import socketserver
import threading
import time

import pytest

from tests.servers import Proxy


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1000):
            self.server.heard.append(data)
            self.request.sendall(data.upper())


@pytest.fixture
def echo():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        server.heard = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo):
    with Proxy(echo.server_address[1]) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy):
    opened = []

    def connect():
        opened.append(socket.create_connection(("127.0.0.1", proxy.port), timeout=30))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


def ask(client, text=b"hello"):
    client.sendall(text)
    return client.recv(1000)


def test_it_forwards_both_ways_and_counts(proxy, connect):
    client = connect()
    assert [ask(client), ask(client, b"again"), ask(connect())] == [b"HELLO", b"AGAIN", b"HELLO"]
    assert (proxy.accepted, proxy.sent) == (2, 3)


def test_a_cut_resets_connections_and_lets_new_ones_through(proxy, connect):
    client = connect()
    ask(client)
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert ask(connect()) == b"HELLO"


def test_silence_closes_nothing_and_lasts_for_those_who_met_it(proxy, connect, echo):
    client = connect()
    ask(client)
    proxy.silence()
    late = connect()
    for silent in (client, late):
        silent.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ask(silent)
    proxy.mend()
    with pytest.raises(TimeoutError):
        ask(client)
    assert ask(connect()) == b"HELLO"
    assert echo.heard == [b"hello", b"hello"]


def test_a_refusal_lasts_until_it_is_mended(proxy, connect):
    client = connect()
    ask(client)
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.mend()
    assert ask(connect()) == b"HELLO"


def test_a_server_that_is_gone_resets_who_comes(proxy, connect):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy.target = unused.getsockname()[1]
        with pytest.raises(ConnectionResetError):
            ask(connect())


def test_a_delay_counts_each_way(proxy, connect):
    client = connect()
    proxy.delay = 0.1
    before = time.monotonic()
    ask(client)
    assert time.monotonic() - before >= 0.2


def test_a_trap_lets_the_server_know_and_not_the_client(proxy, connect, echo):
    client = connect()
    proxy.cut_after(b"COMMIT")
    assert ask(client) == b"HELLO"
    with pytest.raises(ConnectionResetError):
        ask(client, b"and COMMIT it")
    assert echo.heard[-1] == b"and COMMIT it"
    assert ask(connect(), b"COMMIT") == b"COMMIT"


def test_an_address_leads_through_it(proxy):
    told = proxy.url("postgresql://me:secret@127.0.0.1:5432/shop")
    assert told == f"postgresql://me:secret@127.0.0.1:{proxy.port}/shop"
