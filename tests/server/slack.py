"""A Slack that can be down, refuse, or ask to wait, and remembers what it took."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class FakeSlack:
    """Answers with ``plan`` first (status, headers), then with 200.

    got: bodies it took.  tried: times of all posts.
    """

    def __init__(self, port: int, plan: list[tuple[int, Mapping[str, str]]]) -> None:
        self.plan = plan
        self.got: list[dict[str, Any]] = []
        self.tried: list[float] = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/T0/B0/secret"

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        slack = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                slack.tried.append(time.monotonic())
                status, headers = slack.plan.pop(0) if slack.plan else (200, {})
                if status == 200:
                    slack.got.append(json.loads(body))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_args: object) -> None:
                pass

        return Handler


@contextmanager
def slack(*plan: tuple[int, Mapping[str, str]], port: int = 0) -> Iterator[FakeSlack]:
    """A running one."""
    found = FakeSlack(port, list(plan))
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.server_close()
        thread.join(5)
