"""Requests that change a run go to the worker that owns it, whichever worker they arrive at.

The worker that takes a request in checks who sends it, reads the body within the usual bound and passes it
on as it is, once: what was passed on is never passed on again. An owner that cannot be reached has died, or
soon counts as dead; then the run is taken over here.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import httpx
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floatscope.protocol import strict_json
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_server import body
from floatscope_server.answers import ProblemAnswer
from floatscope_server.errors import Problem
from floatscope_server.workers.door import CLIENT_HEADER, NAME_HEADER, PASSED_ON, SECRET_HEADER
from floatscope_server.workers.owners import Elsewhere, Owners

CHANGING = ("PUT", "POST", "PATCH", "DELETE")
RUNS = "/api/v1/runs"
OF_A_RUN = re.compile(rf"{RUNS}/({RUN_ID_PATTERN})(?:/.*)?")
WAITS_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # before each attempt: a dead owner's lock is free at once
TIMEOUT = httpx.Timeout(30.0, connect=1.0, pool=5.0)
LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=30.0)
MISDIRECTED = 421
NOT_PASSED_ON = frozenset(
    (
        *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
        *(b"content-length", b"accept-encoding", b"proxy-connection", SECRET_HEADER, CLIENT_HEADER),
    )
)
NOT_PASSED_BACK = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"date", b"server", NAME_HEADER)
)

_log = logging.getLogger(__name__)


class Peers:
    """Connections to other workers. ``secret``: what they know this one by."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._client: httpx.AsyncClient | None = None
        self.passed_on = 0

    async def send(self, place: Elsewhere, scope: Scope, content: bytes) -> httpx.Response:
        """Passes a request on and returns the whole answer. Raises httpx.HTTPError, also if it is not that
        worker who answers.
        """
        if self._client is None:  # made on the loop that uses it; no proxy of the environment is asked
            self._client = httpx.AsyncClient(timeout=TIMEOUT, limits=LIMITS, trust_env=False)
        query = scope["query_string"]
        path = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
        client = scope.get("client")
        headers = [(k, v) for k, v in scope["headers"] if k not in NOT_PASSED_ON]
        headers += [(b"accept-encoding", b"identity"), (SECRET_HEADER, self._secret)]
        if client is not None:
            headers.append((CLIENT_HEADER, f"{client[0]} {client[1]}".encode()))
        target = httpx.URL(place.url or "").copy_with(raw_path=path)
        answer = await self._client.request(scope["method"], target, headers=headers, content=content)
        if answer.headers.get(NAME_HEADER.decode()) != place.worker:
            raise httpx.RemoteProtocolError("another program answers at the worker's address")
        self.passed_on += 1
        return answer

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class Forwarding:
    """The layer behind the gate: serves what this worker owns, passes the rest on."""

    def __init__(self, app: ASGIApp, *, owners: Owners, peers: Peers) -> None:
        self._app = app
        self._owners = owners
        self._peers = peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in CHANGING:
            await self._app(scope, receive, send)
            return
        found = OF_A_RUN.fullmatch(scope["path"])
        if found is not None:
            run_id, content = found[1], None
        elif scope["path"] == RUNS and scope["method"] == "POST":
            try:
                content = await body.read(Request(scope, receive))
            except Problem as problem:
                await self._refuse(problem, scope, receive, send)
                return
            receive = _replayed(content, receive)
            run_id = await anyio.to_thread.run_sync(_run_id_in, content)
        else:
            run_id, content = None, None
        if run_id is None:
            await self._app(scope, receive, send)
        else:
            await self._of_run(run_id, content, scope, receive, send)

    async def _of_run(
        self, run_id: str, content: bytes | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if self._owners.here(run_id):
            await self._serve(run_id, scope, receive, send)
            return
        for attempt, wait_s in enumerate(WAITS_S):
            await asyncio.sleep(wait_s)
            place = await anyio.to_thread.run_sync(
                lambda again: self._owners.claim(run_id, again=again), attempt > 0
            )
            if place is None:
                await self._serve(run_id, scope, receive, send)
                return
            if scope.get(PASSED_ON):
                await self._refuse(_misdirected(run_id), scope, receive, send)
                return
            if content is None:
                try:
                    content = await body.read(Request(scope, receive))
                except Problem as problem:
                    await self._refuse(problem, scope, receive, send)
                    return
                receive = _replayed(content, receive)
            if place.url is None:
                continue
            try:
                answer = await self._peers.send(place, scope, content)
            except (httpx.ReadTimeout, httpx.PoolTimeout) as error:
                _log.warning("the owner of run %s at %s is slow: %r", run_id, place.url, error)
                break
            except httpx.HTTPError as error:
                _log.info("the owner of run %s at %s cannot be reached: %r", run_id, place.url, error)
                continue
            if answer.status_code != MISDIRECTED:
                await _pass_back(answer, send)
                return
        await self._refuse(_unreachable(run_id), scope, receive, send)

    async def _serve(self, run_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            if status == 404 or (scope["method"] == "DELETE" and status < 300):  # there is no such run
                await anyio.to_thread.run_sync(self._owners.release, run_id)

    async def _refuse(self, problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        await body.drain(Request(scope, receive))
        await ProblemAnswer(problem)(scope, receive, send)


def _run_id_in(content: bytes) -> str | None:
    """The run_id in the body of ``POST /runs``; None if there is none that could be right."""
    try:
        said = strict_json.loads(content)
    except ProtocolError:
        return None
    run_id = said.get("run_id") if isinstance(said, Mapping) else None
    return run_id if isinstance(run_id, str) and re.fullmatch(RUN_ID_PATTERN, run_id) else None


def _replayed(content: bytes, receive: Receive) -> Receive:
    """Gives a body that was read already once more, then what the client says."""
    left: list[Any] = [{"type": "http.request", "body": content, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again


async def _pass_back(answer: httpx.Response, send: Send) -> None:
    headers = [(k.lower(), v) for k, v in answer.headers.raw if k.lower() not in NOT_PASSED_BACK]
    headers.append((b"content-length", str(len(answer.content)).encode()))
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})


def _misdirected(run_id: str) -> Problem:
    return Problem(MISDIRECTED, "Misdirected", f"run {run_id!r} is served by another worker")


def _unreachable(run_id: str) -> Problem:
    return Problem(
        503,
        "The run's worker does not answer",
        f"the worker that serves run {run_id!r} cannot be reached now; nothing is known to have changed",
        hint="send it again: what was stored already is not stored twice",
        headers={"Retry-After": "2"},
    )
