"""Requests made to cost more than they should: answered early, in bounded memory, and life goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zstandard
from starlette.requests import Request
from starlette.types import Message

from floatscope_server import body as bodies
from floatscope_server.ingest import Ingest, Receipt
from tests.server.conftest import Serve
from tests.server.live import TOKEN, Client
from tests.server.samples import body, rows

MIB = 2**20


def sent(client: Client, head: bytes, *, then: bytes = b"") -> bytes:
    """What comes back for these bytes on a new connection."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            connection.sendall(head + then)
        parts = []
        with contextlib.suppress(ConnectionResetError):  # closed with bytes of ours unread
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts)


def head(*lines: str) -> bytes:
    return "\r\n".join(("GET /healthz HTTP/1.1", "Host: x", "Connection: close", *lines, "", "")).encode()


def test_headers_are_bounded(client: Client) -> None:
    assert sent(client, head()).startswith(b"HTTP/1.1 200")
    assert b" 200 " not in sent(client, head(f"X-Long: {'x' * MIB}"))[:20]
    assert b" 200 " not in sent(client, head(*(f"X-{n}: {'v' * 100}" for n in range(9000))))[:20]
    line = f"GET /{'a' * MIB} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    assert b" 200 " not in sent(client, line)[:20]
    assert client.get("/healthz").status == 200


@pytest.mark.parametrize(
    "value",
    ["-1", "abc", "1e3", "9" * 400, "10, 11", "+5"],
)
def test_odd_lengths_are_refused(client: Client, value: str) -> None:
    request = (
        f"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: {value}\r\nConnection: close\r\n\r\n".encode()
    )
    assert b" 4" in sent(client, request)[:13]
    assert client.get("/healthz").status == 200


def test_a_length_and_chunks_at_once_are_not_two_requests(client: Client) -> None:
    smuggled = b"GET /api/v1/runs HTTP/1.1\r\nHost: x\r\n\r\n"
    lines = (
        f"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: {len(smuggled) + 5}\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    answer = sent(client, lines.encode(), then=b"0\r\n\r\n" + smuggled)
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_websocket_is_not_opened(client: Client) -> None:
    lines = (
        *("GET /api/v1/events HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}x"),
        *("Connection: Upgrade, close", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", ""),
    )
    assert b" 401 " in sent(client, "\r\n".join(lines).encode())[:20]


def test_packing_inside_packing_is_not_unpacked_again(client: Client) -> None:
    client.open_run("r")
    twice = gzip.compress(gzip.compress(body(rows(0, 1))))
    for encoding in ("gzip, gzip", "gzip,zstd"):
        assert client.put("r", 0, twice, headers={"Content-Encoding": encoding}).status == 415
    assert client.put("r", 0, twice, headers={"Content-Encoding": "gzip"}).status == 422


DEEP = [b"[" * 200_000, b'{"a":' * 200_000, b'{"steps": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"]
MANY = json.dumps({"steps": [{"step": 1, **{f"s{n}": 1.0 for n in range(200_000)}}]}).encode()
HUGE = b'{"steps": [{"step": 1, "loss": ' + b"9" * 1_000_000 + b"}]}"
FIELDS = json.dumps({f"k{n}": n for n in range(100_000)}).encode()


@pytest.mark.parametrize("content", [*DEEP, MANY, HUGE], ids=["lists", "objects", "nested", "keys", "number"])
def test_json_made_to_hurt_is_refused_in_a_batch(client: Client, content: bytes) -> None:
    client.open_run("r")
    answer = client.put("r", 0, content)
    assert (answer.status, answer.headers["content-type"]) == (422, "application/problem+json")
    assert len(answer.content) < 4096
    assert client.put("r", 0, body(rows(0, 1))).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/runs"),
        ("POST", "/api/v1/tokens"),
        ("POST", "/api/v1/channels"),
        ("PATCH", "/api/v1/runs/r"),
        ("POST", "/api/v1/runs/r/finish"),
        ("POST", "/login"),
    ],
)
def test_json_made_to_hurt_is_refused_elsewhere(client: Client, method: str, path: str) -> None:
    client.open_run("r")
    for content in (*DEEP, b"9" * 500_000, b'"' + b"\\u0000" * 100_000 + b'"'):
        answer = client.call(method, path, content)
        assert 400 <= answer.status < 500, (path, content[:20], answer.status)
        assert len(answer.content) < 8192
    if path not in ("/api/v1/runs", "/login", "/api/v1/runs/r/finish"):
        assert client.call(method, path, FIELDS).status in (413, 422)


def test_a_form_of_very_many_fields_is_refused(client: Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    content = b"&".join(b"a%d=1" % number for number in range(2000))
    assert client.call("POST", "/login", content, headers=form).status == 400
    refused = client.call("POST", "/login", b"token=" + b"x" * 20_000, headers=form)
    assert (refused.status, refused.json["expected"]) == (413, "at most 16 KiB")


def test_many_cookies_and_parameters_are_read_in_no_time(client: Client) -> None:
    cookies = "; ".join(f"c{n}=v" for n in range(3000))
    query = "&".join(f"q{n}=1" for n in range(3000))
    stranger = Client(client.port, None)
    answer = stranger.call("GET", f"/?{query}", headers={"Cookie": cookies})
    assert answer.status == 303


def test_nothing_is_read_of_a_body_that_claims_more_than_would_be_read() -> None:
    """Nobody waits for it: the client learns at once that it is too large."""

    async def receive() -> Message:
        raise AssertionError("read on")

    headers = [(b"content-length", b"10000000000")]
    asyncio.run(bodies.drain(Request({"type": "http", "method": "PUT", "headers": headers}, receive)))


@pytest.mark.timeout(20)
def test_who_never_sends_the_body_holds_a_connection_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "DRAIN_S", 0.05)
    asked = []

    async def receive() -> Message:
        asked.append(1)
        await asyncio.Event().wait()
        raise AssertionError("nobody sends anything")

    headers = [(b"content-length", b"1000")]
    asyncio.run(bodies.drain(Request({"type": "http", "method": "PUT", "headers": headers}, receive)))
    assert asked == [1]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_what_is_large_when_unpacked_is_known_before_it_is_held(encoding: str) -> None:
    content = bytes(5 * MIB) + b"x"
    sent = gzip.compress(content) if encoding == "gzip" else zstandard.compress(content)
    with pytest.raises(bodies.LargeBody):
        bodies.unpack(sent, encoding, most=MIB)
    found = bodies.unpack(sent, encoding, most=len(content))
    assert (found.content, found.digest) == (content, bodies.unpack(content, None).digest)


def test_large_bodies_are_stored_one_at_a_time_and_small_ones_beside_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six at once would be six times 256 MiB and what is made of them."""
    monkeypatch.setattr(bodies, "LARGE_BYTES", 4096)
    entered, go_on, put = threading.Semaphore(0), threading.Event(), Ingest.put
    inside: list[int] = []
    most: list[int] = []

    def watched(self: Ingest, run_id: str, **given: Any) -> Receipt:
        if len(given["body"].content) <= 4096:
            return put(self, run_id, **given)
        with counted(inside, most):
            entered.release()
            assert go_on.wait(20)
            return put(self, run_id, **given)

    monkeypatch.setattr(Ingest, "put", watched)
    client = serve()
    packed = {"Content-Encoding": "gzip"}
    large = gzip.compress(body(rows(0, 500)))
    for number in range(8):
        client.open_run(f"r{number}")
    with ThreadPoolExecutor(7) as pool:
        waiting = [pool.submit(client.put, f"r{n}", 0, large, headers=packed) for n in range(7)]
        assert entered.acquire(timeout=20)
        assert client.put("r7", 0, gzip.compress(body(rows(0, 1))), headers=packed).status == 200
        go_on.set()
        assert [done.result().status for done in waiting] == [200] * 7
    assert most == [1] * 7


@contextlib.contextmanager
def counted(inside: list[int], most: list[int]) -> Iterator[None]:
    """Notes how many are inside at once."""
    inside.append(1)
    most.append(len(inside))
    try:
        yield
    finally:
        inside.pop()
