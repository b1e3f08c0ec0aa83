"""A Slack that can be down, refuse, or ask to wait, and remembers what it took."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class FakeSlack:
    """Answers with ``plan`` first (status, headers), then with 200.

    got: bodies it took.  raw: the same as bytes, with their headers.  tried: times of all posts.
    """

    def __init__(self, port: int, plan: list[tuple[int, Mapping[str, str]]], says: bytes) -> None:
        self.plan = plan
        self.says = says
        self.got: list[dict[str, Any]] = []
        self.raw: list[tuple[bytes, Mapping[str, str]]] = []
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
                    slack.raw.append((body, dict(self.headers)))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(slack.says)

            def log_message(self, *_args: object) -> None:
                pass

        return Handler


@contextmanager
def slack(*plan: tuple[int, Mapping[str, str]], port: int = 0, says: bytes = b"ok") -> Iterator[FakeSlack]:
    """A running one."""
    found = FakeSlack(port, list(plan), says)
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.server_close()
        thread.join(5)


@contextmanager
def odd_receiver(behave: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """The address of a receiver that reads a request and then does something odd with the connection.

    behave gets the connection and an event that is set when it has to end.
    """
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)

    def serve() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                try:
                    connection.recv(65_536)
                    behave(connection, ended)
                except OSError:  # the sender had enough
                    continue

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/services/T0/B0/secret"
    finally:
        ended.set()
        for thread in threads:
            thread.join(5)
        listener.close()


def silent(_connection: socket.socket, ended: threading.Event) -> None:
    """Takes the request and says nothing."""
    ended.wait()


def dripping(connection: socket.socket, ended: threading.Event) -> None:
    """Answers one byte at a time, so that every single read is quick."""
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 10_000:
        connection.sendall(bytes([byte]))
        if ended.wait(0.02):
            return


def endless(connection: socket.socket, ended: threading.Event) -> None:
    """Sends headers without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not ended.is_set():
        connection.sendall(b"X-More: " + b"a" * 60_000 + b"\r\n")


def garbage(connection: socket.socket, _ended: threading.Event) -> None:
    """Answers what is not HTTP, and repeats a secret."""
    connection.sendall(b"\x00\xff /services/T0/B0/secret\r\n\r\n")
