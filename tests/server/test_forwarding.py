"""Requests that are passed on to the worker that owns the run: once, whole, bounded, never in a circle."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from floatscope.protocol.names import MAX_BODY_BYTES
from floatscope_server.workers import forwarding
from floatscope_server.workers.door import CLIENT_HEADER, PASSED_ON, SECRET_HEADER, Door
from floatscope_server.workers.forwarding import Forwarding, Peers
from floatscope_server.workers.owners import Elsewhere, Owners

BATCH = "/api/v1/runs/r/ranks/0/batches/0"
OTHER = Elsewhere("http://other", "floatscope-7")


class Places:
    """Owners that say one place after the other, the last one for good. None: here."""

    def __init__(self, *places: Elsewhere | None) -> None:
        self.places = list(places)
        self.asked: list[tuple[str, bool]] = []
        self.released: list[str] = []

    def here(self, _run_id: str) -> bool:
        return False

    def claim(self, run_id: str, *, again: bool = False) -> Elsewhere | None:
        self.asked.append((run_id, again))
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]

    def release(self, run_id: str) -> None:
        self.released.append(run_id)


class Others:
    """Other workers: answers, or raises, what it was given, in turn."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, bytes]] = []

    async def send(self, place: Elsewhere, _scope: Scope, content: bytes) -> httpx.Response:
        self.got.append((place.url or "", content))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Says what came in."""
    content = await Request(scope, receive).body()
    status = 404 if scope["path"].endswith("/unknown") else 200
    said = {"size": len(content), "client": scope["client"], "passed_on": bool(scope.get(PASSED_ON))}
    await JSONResponse(said, status)(scope, receive, send)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "WAITS_S", (0.0, 0.0, 0.0))


def ask(app: Any, method: str, path: str, **parts: Any) -> httpx.Response:
    """One request to an ASGI application, in a thread of its own: this one may have an event loop already."""

    async def scene() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, client=("10.1.2.3", 50))
        async with httpx.AsyncClient(transport=transport, base_url="http://here:1234") as client:
            return await client.request(method, path, **parts)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(scene())).result()


def layer(places: Places, others: Others, *, passed_on: bool = False) -> Any:
    inner = Forwarding(application, owners=cast(Owners, places), peers=cast(Peers, others))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await inner({**scope, PASSED_ON: True} if passed_on else scope, receive, send)

    return app


def test_the_owner_answers() -> None:
    answer = httpx.Response(409, json={"reason": "gap"}, headers={"x-kind": "a", "connection": "close"})
    others = Others(answer)
    found = ask(layer(Places(OTHER), others), "PUT", BATCH, content=b"steps")
    assert (found.status_code, found.json()) == (409, {"reason": "gap"})
    assert found.headers["x-kind"] == "a"
    assert "connection" not in found.headers
    assert others.got == [("http://other", b"steps")]


def test_a_dead_owner_is_asked_about_again_and_the_run_taken_over() -> None:
    places = Places(OTHER, Elsewhere(None), None)
    others = Others(httpx.ConnectError("refused"))
    found = ask(layer(places, others), "PUT", BATCH, content=b"x" * 1000)
    assert found.json()["size"] == 1000
    assert places.asked == [("r", False), ("r", True), ("r", True)]
    assert len(others.got) == 1


@pytest.mark.parametrize(
    "fault", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("died")]
)
def test_an_owner_that_cannot_be_reached(fault: Exception) -> None:
    others = Others(fault)
    found = ask(layer(Places(OTHER), others), "PUT", BATCH, content=b"x")
    assert found.status_code == 503
    assert int(found.headers["retry-after"]) >= 1
    assert found.headers["content-type"] == "application/problem+json"
    assert len(others.got) == (1 if isinstance(fault, httpx.ReadTimeout) else 3)


def test_an_owner_that_is_not_one_any_more_is_asked_about_again() -> None:
    others = Others(httpx.Response(421), httpx.Response(200, json={"by": "next"}))
    found = ask(layer(Places(OTHER), others), "PUT", BATCH, content=b"x")
    assert found.json() == {"by": "next"}


def test_what_was_passed_on_is_not_passed_on_again() -> None:
    others = Others(httpx.Response(200))
    found = ask(layer(Places(OTHER), others, passed_on=True), "PUT", BATCH, content=b"x" * 100)
    assert found.status_code == 421
    assert others.got == []
    served = ask(layer(Places(None), others, passed_on=True), "PUT", BATCH, content=b"x" * 100)
    assert served.json()["size"] == 100


def test_a_body_that_is_too_large_is_refused_where_it_arrives() -> None:
    others = Others(httpx.Response(200))
    headers = {"content-length": str(MAX_BODY_BYTES + 1)}
    found = ask(layer(Places(OTHER), others), "PUT", BATCH, content=b"x", headers=headers)
    assert found.status_code == 413
    assert others.got == []


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        (json.dumps({"run_id": "r-1", "name": "n"}).encode(), ["r-1"]),
        (b'{"name": "n"}', []),
        (b'{"run_id": "../x"}', []),
        (b'{"run_id": 7}', []),
        (b"not json", []),
        (b"[]", []),
    ],
)
def test_creating_a_run_goes_to_the_owner_of_its_id(content: bytes, asked: list[str]) -> None:
    places = Places(None)
    found = ask(layer(places, Others(httpx.Response(200))), "POST", "/api/v1/runs", content=content)
    assert found.json()["size"] == len(content)
    assert [run_id for run_id, _again in places.asked] == asked


def test_reading_is_served_anywhere_and_unknown_runs_are_nobodys() -> None:
    places = Places(OTHER, None)
    others = Others(httpx.Response(200))
    for path in ("/api/v1/runs/r/verdict", "/api/v1/runs/r"):
        assert ask(layer(places, others), "GET", path).status_code == 200
    assert ask(layer(places, others), "POST", "/api/v1/alerts/a").status_code == 200
    assert (places.asked, others.got) == ([], [])
    gone = Places(None)
    assert ask(layer(gone, others), "POST", "/api/v1/runs/r/unknown").status_code == 404
    assert ask(layer(gone, others), "DELETE", "/api/v1/runs/q").status_code == 200
    assert gone.released == ["r", "q"]


def test_what_other_workers_get(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[httpx.Request] = []

    def other(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        name = "floatscope-7" if len(seen) > 1 else "another"
        return httpx.Response(200, content=b"{}", headers={"x-floatscope-name": name})

    real = httpx.AsyncClient
    made: list[dict[str, Any]] = []

    def client(**parts: Any) -> httpx.AsyncClient:
        made.append(parts)
        return real(transport=httpx.MockTransport(other), **parts)

    peers = Peers("5ec2e7")
    inner = Forwarding(application, owners=cast(Owners, Places(OTHER)), peers=peers)
    sent = {"authorization": "Bearer t", "content-encoding": "gzip", "x-floatscope-worker": "guess"}
    sent |= {"x-floatscope-client": "9.9.9.9 1", "connection": "keep-alive", "host": "public:1"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(httpx, "AsyncClient", client)
            await inner(scope, receive, send)

    assert ask(app, "PUT", BATCH + "?a=%20b", content=b"x" * 10, headers=sent).status_code == 200
    assert len(seen) == 2, "the first answer was not the worker's"
    request = seen[1]
    assert str(request.url) == "http://other" + BATCH + "?a=%20b"
    assert request.headers.get_list("x-floatscope-worker") == ["5ec2e7"]
    assert request.headers.get_list("x-floatscope-client") == ["10.1.2.3 50"]
    assert request.headers["host"] == "public:1"
    assert request.headers["authorization"] == "Bearer t"
    assert request.headers["content-encoding"] == "gzip"
    assert request.headers["content-length"] == "10"
    assert made[0]["trust_env"] is False


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 403),
        ({SECRET_HEADER: b"wrong"}, 403),
        ({SECRET_HEADER: b"5ec2e7"}, {"client": None, "passed_on": True}),
        ({SECRET_HEADER: b"5ec2e7", CLIENT_HEADER: b"::1 80"}, {"client": ["::1", 80], "passed_on": True}),
    ],
)
def test_the_private_door(headers: dict[bytes, bytes], expected: Any) -> None:
    door = Door(application, port=1234, secret="5ec2e7", name="floatscope-1")
    found = ask(door, "GET", "/x", headers=list(headers.items()))
    if isinstance(expected, int):
        assert found.status_code == expected
    else:
        assert found.json() == {"size": 0, **expected}
        assert found.headers["x-floatscope-name"] == "floatscope-1"


def test_at_the_public_door_the_secret_means_nothing() -> None:
    door = Door(application, port=99, secret="5ec2e7", name="floatscope-1")
    found = ask(door, "GET", "/x", headers=[(SECRET_HEADER, b"5ec2e7"), (CLIENT_HEADER, b"9.9.9.9 1")])
    assert found.json() == {"size": 0, "client": ["10.1.2.3", 50], "passed_on": False}
