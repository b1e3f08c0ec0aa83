"""The HTTP client against a server on a real socket that does not keep to the rules."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from floatscope.client import MAX_ANSWER_BYTES, HttpTransport, TransportError
from tests.agent.fake_server import FakeServer, HttpServer


@contextmanager
def serving(token: str | None = None) -> Iterator[HttpServer]:
    fake = FakeServer()
    fake.token = token
    server = HttpServer(fake)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def connected(url: str, *, token: str | None = None, timeout_s: float = 0.3) -> Iterator[HttpTransport]:
    client = HttpTransport(url, token=token, timeout_s=timeout_s, user_agent="test")
    try:
        yield client
    finally:
        client.close()


def create(client: HttpTransport) -> int:
    return client.request("POST", "/api/v1/runs", b'{"run_id": "r"}', {}).status


def test_one_connection_serves_many_requests() -> None:
    with serving() as server:
        ports: set[int] = set()

        def note(handler: BaseHTTPRequestHandler) -> bool:
            ports.add(handler.client_address[1])
            return False

        server.misbehave = note
        with connected(server.url) as client:
            assert [create(client) for _ in range(5)] == [201, 200, 200, 200, 200]
        assert len(ports) == 1
        assert len(server.server.requests) == 5, "no request is sent twice"


def test_the_token_is_sent_and_a_path_prefix_is_kept() -> None:
    with serving(token="secret") as server:
        with connected(server.url, token="secret") as client:
            assert create(client) == 201
        with connected(server.url, token="wrong") as client:
            assert create(client) == 401
        with connected(server.url + "/base/", token="secret") as client:
            assert client.request("POST", "/x", b"", {}).status == 404
        assert server.server.requests[-1] == ("POST", "/base/x")


def test_a_connection_that_the_server_closed_while_idle_is_opened_again() -> None:
    with serving() as server:

        def close_after(handler: BaseHTTPRequestHandler) -> bool:
            handler.close_connection = True
            return False

        server.misbehave = close_after
        with connected(server.url) as client:
            assert [create(client) for _ in range(3)] == [201, 200, 200]


def hang(handler: BaseHTTPRequestHandler) -> bool:
    time.sleep(1.0)
    return True


def hang_up(handler: BaseHTTPRequestHandler) -> bool:
    handler.close_connection = True
    return True


def speak_nonsense(handler: BaseHTTPRequestHandler) -> bool:
    handler.wfile.write(b"\x00\xff this is not HTTP\r\n\r\n")
    handler.close_connection = True
    return True


def break_off(handler: BaseHTTPRequestHandler) -> bool:
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"half":')
    handler.close_connection = True
    return True


def flood(handler: BaseHTTPRequestHandler) -> bool:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
    handler.wfile.write(b"x" * (MAX_ANSWER_BYTES + 100_000))
    handler.close_connection = True
    return True


def drip(handler: BaseHTTPRequestHandler) -> bool:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)
    handler.close_connection = True
    return True


@pytest.mark.parametrize("fault", [hang, hang_up, speak_nonsense, break_off, flood, drip])
def test_whatever_a_server_does_is_a_transport_error_in_bounded_time(
    fault: Callable[[BaseHTTPRequestHandler], bool],
) -> None:
    with serving() as server:
        server.misbehave = fault
        began = time.monotonic()
        with connected(server.url) as client:
            with pytest.raises(TransportError):
                create(client)
            assert time.monotonic() - began < 2.0
            server.misbehave = lambda handler: False
            assert create(client) == 201, "the next request starts afresh"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1, 2]", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_an_answer_that_is_no_json_object_has_no_body(body: bytes) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        return True

    with serving() as server:
        server.misbehave = answer
        with connected(server.url) as client:
            found = client.request("POST", "/api/v1/runs", b"{}", {})
        assert (found.status, found.body) == (200, None)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with connected(url) as client, pytest.raises(TransportError, match="refused"):
            create(client)


def test_abort_from_another_thread_ends_a_request_that_hangs() -> None:
    with serving() as server:
        server.misbehave = hang
        with connected(server.url, timeout_s=30.0) as client:
            threading.Timer(0.1, client.abort).start()
            began = time.monotonic()
            with pytest.raises(TransportError):
                create(client)
            assert time.monotonic() - began < 0.8
            with pytest.raises(TransportError, match="end of the run"):
                create(client)
