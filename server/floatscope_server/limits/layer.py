"""The layer behind the gate that keeps one client, and one class of requests, from taking all there is.

Requests are of four classes. Steps that come in, and everything else, are counted apart for each token. What
reads much, what writes logs out, and what brings steps in each have places of their own, so that slow reads
leave the way in free. A client that sends or takes its bytes too slowly loses its place.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from contextlib import AsyncExitStack
from typing import cast

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floatscope_server import scopes
from floatscope_server.answers import told
from floatscope_server.body import drain
from floatscope_server.callers import Caller
from floatscope_server.errors import Problem
from floatscope_server.limits.buckets import Buckets
from floatscope_server.limits.slots import NoSlot, Room, Slots
from floatscope_server.metrics.measures import Measures
from floatscope_server.workers.door import PASSED_ON

INGEST, READS, EXPORTS = "ingest", "reads", "exports"
ROOMS = {
    INGEST: Room(at_once=24, waiting=512, wait_s=20.0),  # each may hold 32 MiB before it is unpacked
    READS: Room(at_once=12, waiting=256, wait_s=10.0),  # of 40 threads; the rest is for what is quick
    EXPORTS: Room(at_once=4, waiting=16, wait_s=10.0),
}
BODY_PART_S = 20.0  # longest wait for the next part of a body
BODY_BYTES_PER_S = 65_536  # slower than that in all, after BODY_PART_S, is too slow
SEND_S = 60.0  # longest wait for a client that does not take its answer
BUSY_S = 2

_BATCH = re.compile(r"/api/v1/runs/[^/]+/ranks/[^/]+/batches/[^/]+")
_EXPORT = re.compile(r"/api/v1/runs/[^/]+/steps")
_QUICK = ("/healthz", "/readyz", "/login", "/logout", "/metrics", "/docs", "/openapi.json", "/api/v1/me")
_ENDLESS = "/api/v1/events"

_log = logging.getLogger(__name__)


class TooSlow(Exception):
    """The client does not take its answer."""


class Limits:
    """ingest_per_s, other_per_s: requests a second of one token, or one address where there is no token."""

    def __init__(self, app: ASGIApp, *, ingest_per_s: float, other_per_s: float, measures: Measures) -> None:
        self._app = app
        self._ingest = Buckets(ingest_per_s)
        self._other = Buckets(other_per_s)
        self._measures = measures
        self._slots = {name: Slots(room) for name, room in ROOMS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get(PASSED_ON) or scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        problem = self._too_often(scope)
        if problem is not None:
            await self._refuse(problem, scope, receive, send)
            return
        name = class_of(scope)
        async with AsyncExitStack() as place:
            if name is not None:
                try:
                    await place.enter_async_context(self._slots[name].one())
                except NoSlot:
                    await self._refuse(_busy(name), scope, receive, send)
                    return
            steady = _Receiving(receive) if scope["method"] in ("PUT", "POST", "PATCH") else receive
            try:
                await self._app(scope, steady, send if scope["path"] == _ENDLESS else watched(send))
            except TooSlow:  # the connection ends here; a fault of the server's it is not
                _log.warning("%s %r: the client did not take its answer", scope["method"], scope["path"])

    def _too_often(self, scope: Scope) -> Problem | None:
        if scope["path"] in ("/healthz", "/readyz"):
            return None
        caller = cast(Caller, scope["state"]["caller"])
        client = caller.token or f"{caller.name} {caller.address}"
        is_ingest = scopes.needed(scope["method"], scope["path"]) == scopes.INGEST
        wait_s = (self._ingest if is_ingest else self._other).take(client)
        return _too_often(wait_s, is_ingest=is_ingest) if wait_s else None

    async def _refuse(self, problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        self._measures.limited(problem.extra["limit"])
        await drain(Request(scope, _Receiving(receive)))
        answer: Response = told(Request(scope), problem, pages=scope["app"].state.services.pages)
        await answer(scope, receive, send)


def class_of(scope: Scope) -> str | None:
    """The class whose places a request takes; None for what is quick."""
    path, method = scope["path"], scope["method"]
    if method == "PUT" and _BATCH.fullmatch(path):
        return INGEST
    if method not in ("GET", "HEAD") or path in _QUICK or path == _ENDLESS:
        return None
    return EXPORTS if _EXPORT.fullmatch(path) else READS


class _Receiving:
    """Gives a body that comes in too slowly up: the request ends as if the client had left."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0
        self._since: float | None = None
        self._ended = False
        self._gave_up = False

    async def __call__(self) -> Message:
        if self._gave_up:
            return {"type": "http.disconnect"}
        if self._ended:  # what comes now is the client's leaving, which may take as long as it likes
            return await self._receive()
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        allowed_s = BODY_PART_S + self._bytes / BODY_BYTES_PER_S - (now - self._since)
        message: Message | None = None
        with anyio.move_on_after(max(min(BODY_PART_S, allowed_s), 0.0)):
            message = await self._receive()
        if message is None:
            self._gave_up = True
            return {"type": "http.disconnect"}
        self._bytes += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        return message


def watched(send: Send, *, patience_s: float = SEND_S) -> Send:
    """Ends an answer that the client does not take."""

    async def sending(message: Message) -> None:
        with anyio.move_on_after(patience_s) as waited:
            await send(message)
        if waited.cancelled_caught:
            raise TooSlow("the client did not take its answer")

    return sending


def _too_often(wait_s: float, *, is_ingest: bool) -> Problem:
    what = "batches" if is_ingest else "requests"
    setting = "FLOATSCOPE_INGEST_PER_S" if is_ingest else "FLOATSCOPE_REQUESTS_PER_S"
    after_s = max(math.ceil(wait_s), 1)
    return Problem(
        429,
        "Too many requests",
        f"this token sends more {what} a second than the server takes from one",
        hint=f"wait {after_s} s; {setting} of the server says how many",
        extra={"limit": "ingest_per_s" if is_ingest else "requests_per_s"},
        headers={"Retry-After": str(after_s)},
    )


def _busy(name: str) -> Problem:
    return Problem(
        503,
        "The server is busy",
        f"as many {name} as the server does at once are under way, and as many as may wait do",
        hint="send it again later; others of another kind go on",
        extra={"limit": f"{name} at once"},
        headers={"Retry-After": str(BUSY_S)},
    )
