"""The shop and its admin on a port of this machine, with a worker beside, until Ctrl-C."""

import re

from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

DEFAULT = "127.0.0.1:8000"
HIGHEST_PORT = 65_535


class SiteTrouble(Exception):
    """The address cannot be served."""


class Site(ThreadedWSGIServer):
    """Takes its port at once, so that one that is taken is said before the demo has run."""

    def __init__(self, address, worker):
        host, port = _read(address)
        self._worker = worker
        try:
            super().__init__((host, port), WSGIRequestHandler)
        except OSError as problem:
            raise SiteTrouble(
                f"--serve: {host}:{port} cannot be used: {problem.strerror or problem}. "
                "Name another port, as in --serve 8001."
            ) from problem
        self.url = f"http://{host}:{self.server_port}"

    def close(self):
        self.server_close()

    def serve(self):
        """Answer requests until a signal raises what ends it."""
        application = get_wsgi_application()
        self.set_app(StaticFilesHandler(application) if settings.DEBUG else application)
        self.serve_forever()

    def service_actions(self):
        """Between two requests: a site whose jobs nobody runs would show nothing."""
        super().service_actions()
        self._worker.require_alive()


def _read(address):
    found = re.fullmatch(r"(?:([A-Za-z0-9.-]+):)?(\d{1,5})", address)
    if not found or int(found[2]) > HIGHEST_PORT:
        raise SiteTrouble(f"--serve wants a port, or HOST:PORT as in {DEFAULT}; not {address!r}.")
    return found[1] or DEFAULT.partition(":")[0], int(found[2])
