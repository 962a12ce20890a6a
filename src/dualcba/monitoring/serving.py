"""A small HTTP endpoint for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dualcba.monitoring.prometheus import CONTENT_TYPE

PATHS = ("/", "/metrics")


def make_server(text: Callable[[], str], port: int) -> ThreadingHTTPServer:
    """Return a local server that answers with `text()`; call its `serve_forever`.

    Port 0 chooses a free port, see `server_address`.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the text, or 404."""
            found = self.path.partition("?")[0] in PATHS
            body = text().encode() if found else b"expected /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
