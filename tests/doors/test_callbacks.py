"""What leaves by a callback, and where it ends: seen by the receivers, which are real servers."""

import contextlib
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme

from taskharbor_django import PermanentError, registry, task
from taskharbor_django.models import Job
from tests.testapp.tasks import add
from tests.worker.conftest import drain

pytestmark = pytest.mark.django_db(transaction=True)

FACTS = {
    *("job", "task", "queue", "state", "attempts", "correlation_id"),
    *("created_at", "finished_at", "failure_category", "failure_code"),
}
HEADERS = {
    *("Host", "Content-Type", "User-Agent", "Content-Length", "Connection"),
    *("X-TaskHarbor-Delivery", "X-TaskHarbor-Timestamp", "X-TaskHarbor-Signature"),
}


class Receiver(ThreadingHTTPServer):
    """Answers whatever it is asked with one status, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, context, status=204, location=None):
        super().__init__(("127.0.0.1", 0), Answer)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.status, self.location = status, location
        self.requests = []

    @property
    def url(self):
        return f"https://localhost:{self.server_port}/hook"


class Answer(BaseHTTPRequestHandler):
    def answer(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.requests.append((self.command, self.path, self.headers, body))
        self.send_response(self.server.status)
        if self.server.location is not None:
            self.send_header("Location", self.server.location)
        self.end_headers()

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815  the names of the standard library

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def receiver(monkeypatch, tmp_path, settings):
    """Start servers that callbacks may go to; they are gone at the end of the test."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    hosts = {"CALLBACK_HOSTS": ["localhost=127.0.0.0/8"], "CALLBACK_SECRET": "known to both"}
    settings.TASKHARBOR = {**settings.TASKHARBOR, **hosts}
    with contextlib.ExitStack() as stack:

        def start(**answer):
            server = stack.enter_context(Receiver(context, **answer))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join, 20)
            stack.callback(server.shutdown)
            return server

        yield start


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_though_callbacks_might_go_where_it_leads(receiver, status):
    other = receiver()
    first = receiver(status=status, location=other.url)
    handle = add.using(callback_url=first.url).enqueue(1)
    drain()
    assert [(method, path) for method, path, *_ in first.requests] == [("POST", "/hook")]
    assert other.requests == []
    delivery = Job.objects.get(parent=handle.id)
    assert (delivery.state, delivery.failure_code) == ("dead", "redirect")
    # It would have been heard: the other one is a receiver as good as the first.
    add.using(callback_url=other.url).enqueue(1)
    drain()
    assert len(other.requests) == 1


@pytest.mark.parametrize("state", ["done", "dead"])
def test_nothing_but_these_facts_and_headers_leaves(receiver, monkeypatch, state):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    @task(name="tests.told", max_attempts=1)
    def ends(argument):
        if state == "dead":
            raise PermanentError(f"in-an-error {argument}", code="refused")
        return "in-a-result"

    server = receiver()
    options = {"tags": {"who": "in-a-tag"}, "idempotency_key": "in-a-key"}
    ends.using(callback_url=server.url, **options).enqueue("in-an-argument")
    drain()
    ((method, path, headers, body),) = server.requests
    facts = json.loads(body)
    assert (method, path, facts["state"]) == ("POST", "/hook", state)
    assert facts.keys() == FACTS
    assert sorted(headers.keys()) == sorted(HEADERS)
    assert b"in-a" not in body
    assert "in-a" not in str(headers)
