"""Somebody who wants to be told: an https server on this machine, while the demo runs."""

import json
import secrets
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from taskharbor_django.callbacks import is_signed

HOST, NETWORK = "localhost", "127.0.0.0/8"
NAMES = f"subjectAltName=DNS:{HOST}", "keyUsage=critical,digitalSignature,keyCertSign"


class Receiver:
    """Takes callbacks from `start` to `close`; `told` is what was said, and who could sign it."""

    def __init__(self):
        self.told = []
        self.secret = secrets.token_hex()
        self._directory = tempfile.TemporaryDirectory()
        self._server = None

    def start(self):
        """Listen on a free port; False where there is no openssl that makes a certificate."""
        key, certificate = (Path(self._directory.name) / name for name in ("key.pem", "own.pem"))
        if not _certified(key, certificate):
            return False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        # The handshake is for the thread of each request: one that hangs holds up nobody else.
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return True

    @property
    def url(self):
        return f"https://{HOST}:{self._server.server_port}/parcels"

    @property
    def environment(self):
        """What tells a worker to call here, and to trust this certificate alone."""
        if self._server is None:
            return {}
        return {
            "CALLBACK_URL": self.url,
            "CALLBACK_NETWORK": NETWORK,
            "CALLBACK_SECRET": self.secret,
            "SSL_CERT_FILE": str(Path(self._directory.name) / "own.pem"),
        }

    def close(self):
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._directory.cleanup()

    def _handler(self):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                signed = is_signed(
                    receiver.secret,
                    timestamp=int(self.headers["X-TaskHarbor-Timestamp"]),
                    body=body,
                    given=self.headers["X-TaskHarbor-Signature"],
                    now=time.time(),
                )
                receiver.told.append((json.loads(body), signed))
                self.send_response(204 if signed else 403)
                self.end_headers()

            def log_message(self, *_):
                """Say nothing: the demo does."""

        return Handler


def _certified(key, certificate):
    """Make a key, and a certificate that vouches for itself, good until tomorrow."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return False
    names = (part for name in NAMES for part in ("-addext", name))
    made = ("-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2")
    command = [openssl, "req", "-x509", *made, "-subj", f"/CN={HOST}", *names]
    # No shell, and nothing in it comes from outside.
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    return done.returncode == 0
